"""Taobao, trades by the time at which they entered the index: newest first, pages by number, errors under 200."""

from __future__ import annotations

import hashlib
import hmac

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
    number_key,
    wall,
    wall_ms,
)

SECRET = "taobao-secret"
KEY = "12345678"
_DAY_MS = 86_400_000


def _refuse(code: int, sub_code: str, message: str) -> MallRefusal:
    said = {"code": code, "msg": message, "sub_code": sub_code, "sub_msg": message, "request_id": "1"}
    return MallRefusal(Answer({"error_response": said}, kind="refused"))


def _check(form: dict[str, str], clerk: Clerk) -> None:
    text = "".join(name + form[name] for name in sorted(form) if name != "sign" and form[name])
    if form.get("sign_method") == "hmac":
        signed = hmac.new(SECRET.encode(), text.encode(), hashlib.md5).hexdigest()
    else:
        signed = hashlib.md5((SECRET + text + SECRET).encode()).hexdigest()
    if form.get("sign") != signed.upper():
        raise _refuse(25, "isv.invalid-signature", "Invalid signature")
    if abs(wall_ms(form["timestamp"], 8) - clerk.now_ms) > 600_000:
        raise _refuse(31, "isv.invalid-timestamp", "Invalid timestamp")
    if form.get("session") != clerk.token:
        raise _refuse(27, "invalid-sessionkey", "Invalid session")


def answer(call: MallCall, clerk: Clerk) -> Answer:
    form = {**call.query, **call.form}
    if call.path == "/token":
        client = (form.get("client_id"), form.get("client_secret"), form.get("grant_type"))
        if client != (KEY, SECRET, "refresh_token"):
            raise MallRefusal(Answer({"error": "invalid_client"}, 401, kind="refused"))
        return grant(clerk, form.get("refresh_token"))
    try:
        _check(form, clerk)
        if (call.path, form["method"], form["v"]) != ("/router/rest", "taobao.trades.sold.incrementv.get", "2.0"):
            raise _refuse(22, "isv.invalid-method", "Invalid method")
        low_ms, high_ms = wall_ms(form["start_create"], 8), wall_ms(form["end_create"], 8)
        size, page = count(form.get("page_size"), 40), count(form.get("page_no"), 1)
    except (KeyError, ValueError) as error:
        raise _refuse(40, "isv.missing-parameter", f"{error}") from error
    if not 0 <= high_ms - low_ms <= _DAY_MS or size > 100:
        raise _refuse(41, "isv.invalid-parameter", "at most a day, and 100 a page")
    seen = clerk.list(Inquiry(low_ms, high_ms, (page - 1) * size, size), newest=True)
    rows = [
        {
            "tid": number_key(number),
            "modified": wall(clerk.changed_ms((at_ms, number, version)), 8),
            "status": "TRADE_FINISHED",
            "version": version,
        }
        for at_ms, number, version in seen.rows
    ]
    trades = {"trades": {"trade": rows}} if rows else {}  # an empty list is left out
    said = {**trades, "total_results": seen.total, "request_id": "1"}
    return Answer({"trades_sold_incrementv_get_response": said})


def spoil(retry_after_s: int) -> Answer:
    message = f"This ban will last for {max(1, retry_after_s)} more seconds"
    return Answer({"error_response": {"code": 7, "msg": "App Call Limited", "sub_msg": message}})


TAOBAO = Dialect(
    "taobao",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100, "by_arrival": True},
    {"app_key": KEY, "app_secret": SECRET, "session": FIRST_TOKEN, "refresh_token": REFRESH_TOKEN},
    answer,
    spoil,
)
