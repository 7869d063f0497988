"""JD, orders of POP sellers: business parameters as JSON in one form field, wall time, errors under 200."""

from __future__ import annotations

import hashlib
import json

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

SECRET = "jd-secret"
KEY = "jd-app"
_METHOD = "jingdong.pop.order.search"
_MONTH_MS = 31 * 86_400_000


def _refuse(code: str, message: str) -> MallRefusal:
    said = {"error_response": {"code": code, "zh_desc": message, "en_desc": message}}
    return MallRefusal(Answer(said, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    form = {**call.query, **call.form}
    if call.path == "/oauth2/refresh_token":
        if (form.get("app_key"), form.get("app_secret"), form.get("grant_type")) != (KEY, SECRET, "refresh_token"):
            raise MallRefusal(Answer({"code": 402, "msg": "app_secret is wrong"}, 401, kind="refused"))
        return grant(clerk, form.get("refresh_token"))
    text = "".join(name + form[name] for name in sorted(form) if name != "sign")
    if form.get("sign") != hashlib.md5((SECRET + text + SECRET).encode()).hexdigest().upper():
        raise _refuse("12", "Invalid signature")
    if form.get("access_token") != clerk.token:
        raise _refuse("19", "Invalid access_token")
    try:
        asked = json.loads(form["360buy_param_json"])
        if abs(wall_ms(form["timestamp"], 8) - clerk.now_ms) > 600_000:
            raise _refuse("17", "Invalid timestamp")
        if (call.path, form["method"], form["v"]) != ("/routerjson", _METHOD, "2.0"):
            raise _refuse("10", "Invalid method")
        if not asked["order_state"] or not asked["optional_fields"] or str(asked["dateType"]) != "0":
            raise ValueError("order_state, optional_fields or dateType")
        low, high = wall_ms(asked["start_date"], 8), wall_ms(asked["end_date"], 8)
        size, page = count(asked["page_size"], 10), count(asked["page"], 1)
    except (KeyError, TypeError, ValueError) as error:
        raise _refuse("21", f"wrong parameter: {error}") from error
    if not 0 <= high - low <= _MONTH_MS or size > 100:
        raise _refuse("21", "at most a month, and 100 a page")
    seen = clerk.list(Inquiry(low, high, (page - 1) * size, size), newest=str(asked.get("sortType")) == "1")
    rows = [
        {"orderId": str(number_key(number)), "modified": wall(at_ms, 8), "orderState": "FINISHED_L", "version": version}
        for at_ms, number, version in seen.rows
    ]
    told = {"apiResult": {"success": True, "numberCode": 0}, "orderTotal": seen.total, "orderInfoList": rows}
    return Answer({"jingdong_pop_order_search_responce": {"code": "0", "searchorderinfo_result": told}})


def spoil(retry_after_s: int) -> Answer:
    return _refuse("67", "called too often").answer


JD = Dialect(
    "jd",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100},
    {"app_key": KEY, "app_secret": SECRET, "access_token": FIRST_TOKEN, "refresh_token": REFRESH_TOKEN},
    answer,
    spoil,
)
