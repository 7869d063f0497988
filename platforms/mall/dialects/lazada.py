"""Lazada, orders/get: both bounds include, offset up to 5000, the total under 200, a code of text."""

from __future__ import annotations

import hashlib
import hmac

from platforms.mall.dialects.dialect import (
    REFRESH_TOKEN,
    Answer,
    Clerk,
    Dialect,
    Inquiry,
    MallCall,
    MallRefusal,
    count,
    grant,
    iso_ms,
    number_key,
    wall,
)

SECRET = "lazada-secret"
_DEEPEST = 5000


def _refuse(code: str, message: str) -> MallRefusal:
    return MallRefusal(Answer({"code": code, "type": "ISV", "message": message, "request_id": "1"}, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    query, path = dict(call.query), call.path.removeprefix("/rest")
    signed = query.pop("sign", "")
    text = path + "".join(name + query[name] for name in sorted(query))
    if signed != hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest().upper():
        raise _refuse("IncompleteSignature", "The request signature does not conform to platform standards")
    if path == "/auth/token/refresh":
        return grant(clerk, query.get("refresh_token"))
    if query.get("access_token") != clerk.token:
        raise _refuse("IllegalAccessToken", "The specified access token is invalid or expired")
    if call.method != "GET" or path != "/orders/get":
        raise _refuse("InvalidApiPath", "The specified API path is invalid")
    try:
        if abs(int(query["timestamp"]) - clerk.now_ms) > 7_200_000:
            raise _refuse("IllegalTimestamp", "The timestamp is too far away")
        low = iso_ms(query["update_after"])
        high = iso_ms(query["update_before"]) if "update_before" in query else None
        size, begin = count(query.get("limit"), 100), count(query.get("offset"), 0, least=0)
    except (KeyError, ValueError) as error:
        raise _refuse("36", f"wrong parameter: {error}") from error
    if size > 100 or begin > _DEEPEST:
        raise _refuse("19", "a limit of 100 and an offset of 5000 are the most")
    seen = clerk.list(Inquiry(low, high, begin, size))
    rows = [
        {"order_id": number_key(number), "updated_at": wall(at_ms, 8, "%Y-%m-%d %H:%M:%S %z"), "version": version}
        for at_ms, number, version in seen.rows
    ]
    data = {"count": len(rows), "countTotal": seen.total, "orders": rows}
    return Answer({"code": "0", "data": data, "request_id": "1"})


def spoil(retry_after_s: int) -> Answer:
    return _refuse("ApiCallLimit", "The app has exceeded its limit of calls").answer


LAZADA = Dialect(
    "lazada",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100},
    {"app_key": "100132", "app_secret": SECRET, "refresh_token": REFRESH_TOKEN},
    answer,
    spoil,
    base="/rest",
)
