"""Douyin shop: business parameters as JSON with sorted keys, pages from 0, and success is code 10000."""

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
    grant,
    number_key,
    wall_ms,
)

SECRET = "douyin-secret"
_METHOD = "order.searchList"
_SIGNED = ("app_key", "method", "param_json", "timestamp", "v")


def _refuse(code: int, sub_code: str, message: str) -> MallRefusal:
    said = {"code": code, "msg": message, "sub_code": sub_code, "sub_msg": message, "log_id": "1"}
    return MallRefusal(Answer(said, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    form = {**call.query, **call.form}
    text = SECRET + "".join(name + form.get(name, "") for name in _SIGNED) + SECRET
    if form.get("sign") != hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest():
        raise _refuse(40003, "isv.signature-invalid", "sign is wrong")
    if (call.path, form.get("method")) == ("/token/refresh", "token.refresh"):
        said = grant(clerk, json.loads(form["param_json"]).get("refresh_token"))
        return Answer({"code": 10000, "msg": "success", "data": said.content}, kind="login")
    if form.get("access_token") != clerk.token:
        raise _refuse(40003, "isv.access-token-expired", "access_token is no longer valid")
    try:
        asked = json.loads(form["param_json"])
        if list(asked) != sorted(asked):
            raise _refuse(40003, "isv.signature-invalid", "the keys of param_json are not sorted")
        if abs(wall_ms(form["timestamp"], 8) - clerk.now_ms) > 600_000:
            raise _refuse(40003, "isv.timestamp-invalid", "timestamp is too far away")
        if (call.path, form["method"], form["v"]) != ("/order/searchList", _METHOD, "2"):
            raise _refuse(40004, "isv.method-invalid", "unknown method")
        low, high = int(asked["update_time_start"]), int(asked["update_time_end"])
        size, page = int(asked["size"]), int(asked["page"])
        if not 1 <= size <= 100 or page < 0:
            raise ValueError("size or page")
    except (KeyError, TypeError, ValueError) as error:
        raise _refuse(40004, "isv.parameter-invalid", f"wrong parameter: {error}") from error
    is_newest = asked["order_asc"] is not True
    seen = clerk.list(Inquiry(low * 1000, high * 1000, page * size, size), newest=is_newest)
    rows = [
        {"order_id": str(number_key(number)), "update_time": at_ms // 1000, "order_status": 5, "version": version}
        for at_ms, number, version in seen.rows
    ]
    data = {"page": page, "size": size, "total": seen.total, "shop_order_list": rows}
    return Answer({"code": 10000, "msg": "success", "sub_code": "", "sub_msg": "", "data": data, "log_id": "1"})


def spoil(retry_after_s: int) -> Answer:
    return _refuse(50002, "isp.service-unavailable", "called too often").answer


DOUYIN = Dialect(
    "douyin",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100},
    {"app_key": "dy-app", "app_secret": SECRET, "refresh_token": REFRESH_TOKEN},
    answer,
    spoil,
)
