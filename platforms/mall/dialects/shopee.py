"""Shopee, v2: a list of bare order numbers by cursor, details fifty at a time, errors as text under 200."""

from __future__ import annotations

import hashlib
import hmac
import json

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
    number_of,
    text_key,
)

KEY = "shopee-partner-key"
_LONGEST_S = 15 * 86_400
_LIST = "/api/v2/order/get_order_list"
_LOGIN = "/api/v2/auth/access_token/get"
_DETAIL = "/api/v2/order/get_order_detail"


def _refuse(error: str, message: str, status: int = 200) -> MallRefusal:
    return MallRefusal(Answer({"error": error, "message": message, "request_id": "1"}, status, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    query = call.query
    if call.path == _LOGIN:
        return _login(call, clerk)
    parts = [query.get("partner_id", ""), call.path, query.get("timestamp", "")]
    parts += [query.get("access_token", ""), query.get("shop_id", "")]
    if query.get("sign") != hmac.new(KEY.encode(), "".join(parts).encode(), hashlib.sha256).hexdigest():
        raise _refuse("error_sign", "Wrong sign.", 403)
    if query["access_token"] != clerk.token:
        raise _refuse("error_auth", "Invalid access_token.", 403)
    try:
        if abs(int(query["timestamp"]) * 1000 - clerk.now_ms) > 300_000:
            raise _refuse("error_param", "Invalid timestamp.")
        return _list(call, clerk) if call.path == _LIST else _details(call, clerk)
    except (KeyError, ValueError) as error:
        raise _refuse("error_param", f"wrong parameter: {error}") from error


def _login(call: MallCall, clerk: Clerk) -> Answer:
    text = call.query.get("partner_id", "") + call.path + call.query.get("timestamp", "")
    if call.query.get("sign") != hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest():
        raise _refuse("error_sign", "Wrong sign.", 403)
    asked = json.loads(call.body)
    if (asked["partner_id"], asked["shop_id"]) != (1001, 77):
        raise _refuse("error_param", "partner_id and shop_id are numbers")
    return grant(clerk, asked["refresh_token"])


def _list(call: MallCall, clerk: Clerk) -> Answer:
    query = call.query
    if query["time_range_field"] != "update_time":
        raise ValueError(query["time_range_field"])
    low, high, size = int(query["time_from"]), int(query["time_to"]), count(query["page_size"], 20)
    if not 0 <= high - low <= _LONGEST_S or size > 100:
        raise _refuse("error_param", "Start time must be earlier than end time and diff in 15days.")
    seen = clerk.list(Inquiry(low * 1000, high * 1000, count(query.get("cursor"), 0, least=0), size))
    said = {
        "more": seen.end is not None,
        "next_cursor": "" if seen.end is None else str(seen.end),
        "order_list": [{"order_sn": text_key(number)} for _, number, _ in seen.rows],
    }
    return Answer({"error": "", "message": "", "response": said, "request_id": "1"})


def _details(call: MallCall, clerk: Clerk) -> Answer:
    keys = call.query["order_sn_list"].split(",")
    if call.path != _DETAIL or not 1 <= len(keys) <= 50:
        raise ValueError(f"{len(keys)} orders at {call.path}")
    found = [row for key in keys if (row := clerk.find(number_of(key))) is not None]
    orders = [
        {"order_sn": text_key(number), "update_time": at_ms // 1000, "order_status": "COMPLETED", "version": version}
        for at_ms, number, version in found
    ]
    said = {"error": "", "message": "", "response": {"order_list": orders}, "request_id": "1"}
    return Answer(said, kind="detail")


def spoil(retry_after_s: int) -> Answer:
    return _refuse("error_too_frequent", "Call too frequent.").answer


SHOPEE = Dialect(
    "shopee",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100, "totals": "none"},
    {"partner_id": "1001", "partner_key": KEY, "shop_id": "77", "refresh_token": REFRESH_TOKEN},
    answer,
    spoil,
)
