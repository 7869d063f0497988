"""WooCommerce: the body is the list, both bounds exclude at whole seconds, pages by number, the total in a header."""

from __future__ import annotations

import base64

from platforms.mall.dialects.dialect import (
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

KEY, SECRET = "ck_woo", "cs_woo"
_T = "%Y-%m-%dT%H:%M:%S"
_SHOP_HOURS = 9  # times of the shop's own clock, where nobody asks for GMT


def _refuse(status: int, code: str, message: str) -> MallRefusal:
    return MallRefusal(Answer({"code": code, "message": message, "data": {"status": status}}, status, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    if call.headers.get("authorization") != "Basic " + base64.b64encode(f"{KEY}:{SECRET}".encode()).decode():
        raise _refuse(401, "woocommerce_rest_cannot_view", "Sorry, you cannot list resources.")
    if call.method != "GET" or call.path != "/wp-json/wc/v3/orders":
        raise _refuse(404, "rest_no_route", "No route was found matching the URL and request method.")
    query = call.query
    hours = 0 if query.get("dates_are_gmt") == "true" else _SHOP_HOURS
    try:
        low = wall_ms(query["modified_after"], hours, _T) if "modified_after" in query else None
        high = wall_ms(query["modified_before"], hours, _T) if "modified_before" in query else None
        size, page = count(query.get("per_page"), 10), count(query.get("page"), 1)
    except ValueError as error:
        raise _refuse(400, "rest_invalid_param", f"wrong parameter: {error}") from error
    if size > 100:
        raise _refuse(400, "rest_invalid_param", "per_page must be between 1 and 100")
    seen = clerk.list(Inquiry(low, high, (page - 1) * size, size), by_key=query.get("orderby") == "id")
    rows = [
        {
            "id": number_key(number),
            "status": "completed",
            "date_modified": wall(at_ms, _SHOP_HOURS, _T),
            "date_modified_gmt": wall(at_ms, 0, _T),
            "version": version,
        }
        for at_ms, number, version in seen.rows
    ]
    total = seen.total or 0
    return Answer(rows, headers={"X-WP-Total": str(total), "X-WP-TotalPages": str(-(-total // size))})


def spoil(retry_after_s: int) -> Answer:
    return _refuse(503, "busy", "a plugin of the shop is at work").answer


WOOCOMMERCE = Dialect(
    "woocommerce",
    {"grain_ms": 1000, "lower": "excludes", "upper": "excludes", "page_size": 100, "paging": "number"},
    {"consumer_key": KEY, "consumer_secret": SECRET},
    answer,
    spoil,
)
