"""Shopify, GraphQL: a search text in a variable, a cursor, no total, and errors with points under 200."""

from __future__ import annotations

import json
import re
from typing import Any

from platforms.mall.dialects.dialect import (
    CLIENT_ID,
    CLIENT_SECRET,
    FIRST_TOKEN,
    Answer,
    Clerk,
    Dialect,
    Inquiry,
    MallCall,
    MallRefusal,
    iso,
    iso_ms,
    number_key,
)
from platforms.mall.points import PointBucket

_PATH = re.compile(r"/admin/api/\d{4}-\d{2}/graphql\.json")
_SEARCH = re.compile(r"updated_at:>='([^']+)' (?:AND )?updated_at:<='([^']+)'")
_BASE = 2
"""Points of a list without orders. Each order that it may have is one more."""
_USUAL = PointBucket(2_000, 100.0)


def _cost(points: PointBucket, left: float, requested: int, actual: int | None) -> dict[str, Any]:
    status = {"maximumAvailable": float(points.most), "currentlyAvailable": int(left), "restoreRate": points.per_s}
    return {"cost": {"requestedQueryCost": requested, "actualQueryCost": actual, "throttleStatus": status}}


def _refuse(code: str, message: str, extensions: dict[str, Any] | None = None, kind: str = "refused") -> MallRefusal:
    said = {"errors": [{"message": message, "extensions": {"code": code}}], "extensions": extensions or {}}
    return MallRefusal(Answer(said, kind=kind))


def _too_fast(points: PointBucket, left: float, requested: int) -> MallRefusal:
    return _refuse("THROTTLED", "Throttled", _cost(points, left, requested, None), "throttled")


def answer(call: MallCall, clerk: Clerk) -> Answer:
    if (call.method, call.path) == ("POST", "/admin/oauth/access_token"):
        form = call.form
        client = (form.get("client_id"), form.get("client_secret"), form.get("grant_type"))
        if client != (CLIENT_ID, CLIENT_SECRET, "client_credentials"):
            raise MallRefusal(Answer({"error": "invalid_client"}, 400, kind="refused"))
        return Answer({"access_token": clerk.token, "scope": "read_orders", "expires_in": 86399}, kind="login")
    if call.headers.get("x-shopify-access-token") != clerk.token:
        raise MallRefusal(Answer({"errors": "[API] Invalid API key or access token"}, 401, kind="refused"))
    if call.method != "POST" or not _PATH.fullmatch(call.path):
        raise MallRefusal(Answer({"errors": "Not Found"}, 404, kind="refused"))
    try:
        asked: dict[str, Any] = json.loads(call.body)
        query, variables = str(asked["query"]), dict(asked.get("variables") or {})
        if query.count("{") != query.count("}") or "sortKey: UPDATED_AT" not in query or "endCursor" not in query:
            raise ValueError("the query does not parse, or does not sort or page")
        wanted = _SEARCH.fullmatch(str(variables["query"]))
        if wanted is None:  # a filter that the search does not know is ignored, and everything comes
            raise ValueError("the search is not as this mall reads it")
        low, high, size = iso_ms(wanted[1]), iso_ms(wanted[2]), int(variables["first"])
        begin = int(variables.get("after") or 0)
    except (KeyError, TypeError, ValueError) as error:
        raise _refuse("BAD_REQUEST", f"wrong query: {error}") from error
    if not 1 <= size <= 250:
        raise _refuse("BAD_REQUEST", "first must be between 1 and 250")
    points, requested = clerk.points or _USUAL, _BASE + size
    if clerk.points is not None and not clerk.points.take(requested, clerk.now_ms):
        raise _too_fast(clerk.points, clerk.points.left(clerk.now_ms), requested)
    seen = clerk.list(Inquiry(low, high, begin, size))
    nodes = [
        {"id": f"gid://shopify/Order/{number_key(number)}", "updatedAt": iso(at_ms, 0, "seconds"), "version": version}
        for at_ms, number, version in seen.rows
    ]
    page = {"hasNextPage": seen.end is not None, "endCursor": str(begin + len(nodes)) if nodes else None}
    left = float(points.most - _BASE - len(nodes))
    if clerk.points is not None:
        clerk.points.give_back(size - len(nodes))
        left = clerk.points.left(clerk.now_ms)
    cost = _cost(points, left, requested, _BASE + len(nodes))
    return Answer({"data": {"orders": {"nodes": nodes, "pageInfo": page}}, "extensions": cost})


def spoil(retry_after_s: int) -> Answer:
    requested = _BASE + 250
    return _too_fast(_USUAL, requested - _USUAL.per_s * max(1, retry_after_s), requested).answer


SHOPIFY = Dialect(
    "shopify",
    {"grain_ms": 1000, "lower": "includes", "upper": "includes", "page_size": 250, "totals": "none"},
    {
        "access_token": FIRST_TOKEN,
        "api_version": "2026-10",
        "client_id": CLIENT_ID,
        "client_secret": CLIENT_SECRET,
    },
    answer,
    spoil,
)
