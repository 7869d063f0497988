"""Magento 2: conditions in groups, UTC without a zone, and a page past the end that repeats the last one."""

from __future__ import annotations

import json
import re

from platforms.mall.dialects.dialect import (
    FIRST_TOKEN,
    Answer,
    Clerk,
    Dialect,
    Inquiry,
    MallCall,
    MallRefusal,
    count,
    number_key,
    wall,
    wall_ms,
)

PASSWORD = "magento-password"
_PART = re.compile(r"searchCriteria\[filter_groups\]\[(\d+)\]\[filters\]\[(\d+)\]\[(\w+)\]")


def _refuse(status: int, message: str) -> MallRefusal:
    return MallRefusal(Answer({"message": message}, status, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    if (call.method, call.path) == ("POST", "/rest/V1/integration/admin/token"):
        if json.loads(call.body) != {"username": "reader", "password": PASSWORD}:
            raise _refuse(401, "The account sign-in was incorrect.")
        return Answer(clerk.token, kind="login")
    if call.headers.get("authorization") != f"Bearer {clerk.token}":
        raise _refuse(401, "The consumer isn't authorized to access %resources.")
    if call.method != "GET" or call.path != "/rest/V1/orders":
        raise _refuse(404, "Request does not match any route.")
    try:
        low, high = _bounds(call)
        size = count(call.query.get("searchCriteria[pageSize]"), 1_000_000)
        page = count(call.query.get("searchCriteria[currentPage]"), 1)
    except (KeyError, ValueError) as error:
        raise _refuse(400, f"wrong criteria: {error}") from error
    by_key = call.query.get("searchCriteria[sortOrders][0][field]") == "entity_id"
    seen = clerk.list(Inquiry(low, high, (page - 1) * size, size), by_key=by_key)
    rows = [
        {"entity_id": number_key(number), "state": "complete", "updated_at": wall(at_ms, 0), "version": version}
        for at_ms, number, version in seen.rows
    ]
    return Answer({"items": rows, "search_criteria": {}, "total_count": seen.total})


def _bounds(call: MallCall) -> tuple[int | None, int | None]:
    """Groups must all hold, and of the filters of one group any: two bounds in one group would bound nothing."""
    filters: dict[str, dict[str, str]] = {}
    for name, value in call.query.items():
        if (part := _PART.fullmatch(name)) is not None:
            if part[2] != "0":
                return None, None
            filters.setdefault(part[1], {})[part[3]] = value
    low = high = None
    for each in filters.values():
        if each["field"] != "updated_at":
            raise ValueError(each["field"])
        at_ms = wall_ms(each["value"], 0)
        match each["condition_type"]:
            case "gteq":
                low = at_ms
            case "lt":
                high = at_ms
            case other:
                raise ValueError(other)
    return low, high


def spoil(retry_after_s: int) -> Answer:
    return Answer({"message": "Internal Error. Details are available in Magento log file."}, 500)


MAGENTO = Dialect(
    "magento",
    {
        "grain_ms": 1000,
        "lower": "includes",
        "upper": "excludes",
        "page_size": 300,
        "past_end": "last",
        "crowd": 150,
        "crowds": 1,
    },
    {"token": FIRST_TOKEN, "username": "reader", "password": PASSWORD},
    answer,
    spoil,
)
