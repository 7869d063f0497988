"""Pinduoduo, order numbers by change time: half an hour at most, pages from the last one back, errors under 200."""

from __future__ import annotations

import hashlib

from platforms.mall.dialects.dialect import (
    FIRST_TOKEN,
    REFRESH_TOKEN,
    Answer,
    Clerk,
    Dialect,
    Inquiry,
    MallCall,
    MallRefusal,
    count,
    grant,
    text_key,
    wall,
)

SECRET = "pdd-secret"
_LONGEST_S = 1800


def _refuse(code: int, message: str) -> MallRefusal:
    said = {"error_code": code, "error_msg": message, "sub_code": str(code), "sub_msg": message, "request_id": "1"}
    return MallRefusal(Answer({"error_response": said}, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    form = {**call.query, **call.form}
    pairs = sorted((name, value) for name, value in form.items() if name != "sign" and value)
    text = SECRET + "".join(f"{name}{value}" for name, value in pairs) + SECRET
    if form.get("sign") != hashlib.md5(text.encode()).hexdigest().upper():
        raise _refuse(20004, "wrong sign")
    if form.get("type") == "pdd.pop.auth.token.refresh":
        said = grant(clerk, form.get("refresh_token"))
        return Answer({"pop_auth_token_refresh_response": said.content}, kind="login")
    if form.get("access_token") != clerk.token:
        raise _refuse(10019, "access_token has expired")
    try:
        if abs(int(form["timestamp"]) * 1000 - clerk.now_ms) > 600_000:
            raise _refuse(20005, "timestamp has expired")
        low, high = int(form["start_updated_at"]), int(form["end_updated_at"])
        size, page = count(form.get("page_size"), 100), count(form.get("page"), 1)
    except (KeyError, ValueError) as error:
        raise _refuse(10001, f"wrong parameter: {error}") from error
    is_known = call.path == "/api/router" and form.get("type") == "pdd.order.number.list.increment.get"
    if not is_known or not {"order_status", "refund_status", "is_lucky_flag"} <= form.keys():
        raise _refuse(10000, "unknown type, or a needed parameter is missing")
    if not 0 <= high - low <= _LONGEST_S or size > 100:
        raise _refuse(20031, "at most 30 minutes, and 100 a page")
    seen = clerk.list(Inquiry(low * 1000, high * 1000, (page - 1) * size, size), newest=True)
    rows = [
        {"order_sn": text_key(number), "updated_at": wall(at_ms, 8), "order_status": 1, "version": version}
        for at_ms, number, version in seen.rows
    ]
    return Answer({"order_sn_increment_get_response": {"order_sn_list": rows, "total_count": seen.total}})


def spoil(retry_after_s: int) -> Answer:
    return _refuse(70031, "called too often").answer


PINDUODUO = Dialect(
    "pinduoduo",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100},
    {"client_id": "pdd-client", "client_secret": SECRET, "access_token": FIRST_TOKEN, "refresh_token": REFRESH_TOKEN},
    answer,
    spoil,
)
