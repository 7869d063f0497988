"""Mercado Libre: fifty a page, an offset up to 10,000, 429 without a header, and unknown filters ignored in silence."""

from __future__ import annotations

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
    number_key,
    oauth,
)

_FROM, _TO = "order.date_last_updated.from", "order.date_last_updated.to"
_HOURS = -4


def _refuse(status: int, error: str, message: str) -> MallRefusal:
    said = {"message": message, "error": error, "status": status, "cause": []}
    return MallRefusal(Answer(said, status, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    if call.path == "/oauth/token":
        return oauth(call, clerk, (call.form.get("client_id"), call.form.get("client_secret")))
    if call.headers.get("authorization") != f"Bearer {clerk.token}":
        raise _refuse(401, "unauthorized", "invalid access token")
    if call.method != "GET" or call.path != "/orders/search" or not call.query.get("seller"):
        raise _refuse(404, "not_found", "resource not found")
    query = call.query
    try:
        low = iso_ms(query[_FROM]) if _FROM in query else None
        high = iso_ms(query[_TO]) if _TO in query else None
        size, begin = count(query.get("limit"), 50), count(query.get("offset"), 0, least=0)
    except ValueError as error:
        raise _refuse(400, "bad_request", f"wrong parameter: {error}") from error
    if size > 50 or begin > 10_000:
        raise _refuse(400, "bad_request", "limit or offset too large")
    seen = clerk.list(Inquiry(low, high, begin, size), by_key=True)  # by creation, never by change
    rows = [
        {"id": number_key(number), "status": "paid", "last_updated": iso(at_ms, _HOURS), "version": version}
        for at_ms, number, version in seen.rows
    ]
    return Answer({"results": rows, "paging": {"total": seen.total, "offset": begin, "limit": size}})


def spoil(retry_after_s: int) -> Answer:
    return _refuse(429, "local_rate_limited", "too many requests").answer


MERCADOLIBRE = Dialect(
    "mercadolibre",
    {"lower": "includes", "upper": "includes", "page_size": 50, "deepest": 10_000},
    {"seller": "4711", **CLIENT},
    answer,
    spoil,
)
