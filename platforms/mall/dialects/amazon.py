"""Amazon, orders/v0: an end at least two minutes old, a next token, no total, the limit in a header."""

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
    oauth,
    text_key,
)

_TWO_MINUTES_MS = 120_000
_RATE = "x-amzn-RateLimit-Limit"
_USUAL = 100.0
"""What the mall allows if it has no limit. The platform itself tells 0.0167 for its lists."""


def _refuse(status: int, code: str, message: str) -> MallRefusal:
    said = {"errors": [{"code": code, "message": message, "details": ""}]}
    return MallRefusal(Answer(said, status, kind="refused"))


def answer(call: MallCall, clerk: Clerk) -> Answer:
    if call.path == "/auth/o2/token":
        return oauth(call, clerk, (call.form.get("client_id"), call.form.get("client_secret")))
    if call.headers.get("x-amz-access-token") != clerk.token:
        raise _refuse(403, "Unauthorized", "The access token you provided has expired.")
    if call.method != "GET" or call.path != "/orders/v0/orders":
        raise _refuse(404, "NotFound", "No such resource")
    query = call.query
    try:
        if not query["MarketplaceIds"]:
            raise ValueError("MarketplaceIds")
        if "NextToken" in query:
            low, high, begin = map(int, query["NextToken"].split("/"))
        else:
            low, high, begin = iso_ms(query["LastUpdatedAfter"]), iso_ms(query["LastUpdatedBefore"]), 0
        size = count(query.get("MaxResultsPerPage"), 100)
    except (KeyError, ValueError) as error:
        raise _refuse(400, "InvalidInput", f"wrong parameter: {error}") from error
    if high > clerk.now_ms - _TWO_MINUTES_MS or "CreatedAfter" in query or size > 100:
        raise _refuse(400, "InvalidInput", "LastUpdatedBefore must be two minutes before now")
    seen = clerk.list(Inquiry(low, high, begin, size))
    rows = [
        {"AmazonOrderId": text_key(number), "LastUpdateDate": iso(at_ms, 0, "seconds"), "version": version}
        for at_ms, number, version in seen.rows
    ]
    payload: dict[str, object] = {"Orders": rows, "LastUpdatedBefore": iso(high, 0, "seconds")}
    if seen.end is not None:
        payload["NextToken"] = f"{low}/{high}/{seen.end}"
    return Answer({"payload": payload}, headers={_RATE: f"{clerk.config.faults.rate_per_s or _USUAL:g}"})


def spoil(retry_after_s: int) -> Answer:
    said = {"errors": [{"code": "QuotaExceeded", "message": "You exceeded your quota for the requested resource."}]}
    return Answer(said, 429, {_RATE: f"{_USUAL:g}"})


AMAZON = Dialect(
    "amazon",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 100, "totals": "none"},
    {"marketplace_ids": "ATVPDKIKX0DER", **CLIENT},
    answer,
    spoil,
)
