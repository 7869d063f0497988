"""eBay, sell/fulfillment: a filter in brackets, offset and limit, a total, a limit over 200 refused."""

from __future__ import annotations

import base64
import re

from platforms.mall.dialects.dialect import (
    CLIENT,
    Answer,
    Clerk,
    Dialect,
    Inquiry,
    MallCall,
    MallRefusal,
    count,
    iso,
    iso_ms,
    oauth,
    text_key,
)

_FILTER = re.compile(r"lastmodifieddate:\[(.+)\.\.(.+)\]")


def _refuse(status: int, error_id: int, message: str) -> MallRefusal:
    said = {"errors": [{"errorId": error_id, "domain": "API_FULFILLMENT", "category": "REQUEST", "message": message}]}
    return MallRefusal(Answer(said, status, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    if call.path == "/identity/v1/oauth2/token":
        given = base64.b64decode(call.headers.get("authorization", "").removeprefix("Basic ")).decode()
        user, _, password = given.partition(":")
        return oauth(call, clerk, (user, password))
    if call.headers.get("authorization") != f"Bearer {clerk.token}":
        raise _refuse(401, 1001, "Invalid access token")
    if call.method != "GET" or call.path != "/sell/fulfillment/v1/order":
        raise _refuse(404, 1002, "No such resource")
    wanted = _FILTER.fullmatch(call.query.get("filter", ""))
    if wanted is None:
        raise _refuse(400, 30700, "Invalid filter")
    try:
        low, high = iso_ms(wanted[1]), iso_ms(wanted[2])
        size, begin = count(call.query.get("limit"), 50), count(call.query.get("offset"), 0, least=0)
    except ValueError as error:
        raise _refuse(400, 30800, f"wrong parameter: {error}") from error
    if size > 200:
        raise _refuse(400, 30820, "Invalid limit value. It should be between 1 and 200.")
    seen = clerk.list(Inquiry(low, high, begin, size))
    rows = [
        {"orderId": text_key(number), "lastModifiedDate": iso(at_ms), "version": version}
        for at_ms, number, version in seen.rows
    ]
    return Answer({"total": seen.total, "limit": size, "offset": begin, "orders": rows})


def spoil(retry_after_s: int) -> Answer:
    said = {"errors": [{"errorId": 2001, "domain": "ACCESS", "category": "REQUEST", "message": "Too many requests."}]}
    return Answer(said, 429)


EBAY = Dialect(
    "ebay",
    {"lower": "includes", "upper": "includes", "page_size": 200},
    CLIENT,
    answer,
    spoil,
)
