"""What an answer's headers tell of the platform's limit: how many requests are left, until when, or how many a second.

The usual names, as platforms and RFC drafts write them. A header that cannot be read tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from platforms.outcomes import http_date_ms

_LEFT = ("ratelimit-remaining", "x-ratelimit-remaining", "x-rate-limit-remaining")
_RESET = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
_USED_OF = ("x-shopify-shop-api-call-limit",)
_PER_S = ("x-amzn-ratelimit-limit",)
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,6})?", re.ASCII)
_SINCE_1970_S = 1_000_000_000
_DAY_MS = 86_400_000


class ToldLimit(NamedTuple):
    """left: requests. reset_ms: until there are more. per_s: requests a second. None: not told."""

    left: int | None = None
    reset_ms: int | None = None
    per_s: float | None = None


_NOTHING = ToldLimit()


def told_limit(headers: Mapping[str, str]) -> ToldLimit:
    """Return what the headers tell. Their names are in lower case."""
    if not any("limit" in name for name in headers):
        return _NOTHING
    left = _first(headers, _LEFT)
    used, _, most = headers.get(_USED_OF[0], "").partition("/")
    if left is None and (spent := _number(used)) is not None and (of := _number(most)) is not None:
        left = max(0.0, of - spent)
    return ToldLimit(None if left is None else int(left), _reset_ms(headers), _first(headers, _PER_S) or None)


def _reset_ms(headers: Mapping[str, str]) -> int | None:
    """Return the wait. It is written as seconds, or as the time at which it ends, by the platform's own clock."""
    value = _first(headers, _RESET)
    if value is not None and value >= _SINCE_1970_S:
        now_ms = http_date_ms(headers.get("date", ""))
        value = None if now_ms is None else max(0.0, value - now_ms / 1_000)
    return None if value is None else min(_DAY_MS, round(value * 1_000))


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := _number(headers.get(name, ""))) is not None), None)


def _number(text: str) -> float | None:
    found = _NUMBER.match(text.strip())
    return float(found[0]) if found else None
