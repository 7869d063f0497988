"""What an answer tells of the platform's limit: how many requests are left, until when, how many a second or at once.

An adapter file says where (`[rate.told]`). Without that the usual headers count, as platforms and RFC drafts write
them. What cannot be read tells nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import ceil, isfinite
from typing import Any, NamedTuple

import msgspec

from platforms.adapter import Adapter, Response
from platforms.declared_file import RatePart, ToldPart
from platforms.errors import BadDeclaration
from platforms.fields import Field, Picker
from platforms.mending import read_json
from platforms.outcomes import http_date_ms
from platforms.times import TimeStyle, time_reader

_LEFT = ("ratelimit-remaining", "x-ratelimit-remaining", "x-rate-limit-remaining")
_RESET = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
_USED_OF = ("x-shopify-shop-api-call-limit",)
_PER_S = ("x-amzn-ratelimit-limit",)
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,9})?", re.ASCII)
_ISO = re.compile(r"\d{4}-\d{2}-\d{2}T.*", re.ASCII)
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_SINCE_1970_S = 1_000_000_000
_DAY_MS = 86_400_000

_read_iso = time_reader(TimeStyle("iso_offset"))


class ToldLimit(NamedTuple):
    """left: requests. reset_ms: until there are more. per_s: requests a second. most: requests at once. None: not
    told. is_rough: requests do not all cost the same, and `per_s` is what it would be if all did as this one."""

    left: int | None = None
    reset_ms: int | None = None
    per_s: float | None = None
    most: int | None = None
    is_rough: bool = False


_NOTHING = ToldLimit()


def told_by(adapter: Adapter, response: Response, *, is_detail: bool = False) -> ToldLimit:
    """Return what an answer tells. An adapter whose platform tells of its limits in its own way has a function `told`
    with the same arguments."""
    told: Callable[..., ToldLimit] | None = getattr(adapter, "told", None)  # `isinstance` of a protocol costs much more
    return told_limit(response.headers) if told is None else told(response, is_detail=is_detail)


# ---- the usual headers


def told_limit(headers: Mapping[str, str]) -> ToldLimit:
    """Return what the usual headers tell. Their names are in lower case."""
    if not any("limit" in name for name in headers):
        return _NOTHING
    left = _first(headers, _LEFT)
    used, most = _pair(headers.get(_USED_OF[0]))
    if left is None and used is not None and most is not None:
        left = max(0.0, most - used)
    reset = next((headers[name] for name in _RESET if _number(headers.get(name)) is not None), None)
    reset_ms = _wait_ms(reset, headers)
    return ToldLimit(None if left is None else int(left), reset_ms, _first(headers, _PER_S) or None)


def _first(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    return next((value for name in names if (value := _number(headers.get(name))) is not None), None)


def _number(value: Any) -> float | None:
    """Return a value as a number, 0 or more. Text may go on behind it."""
    if isinstance(value, int | float):
        return max(0.0, float(value)) if isfinite(value) else None
    found = _NUMBER.match(value.strip()) if isinstance(value, str) else None
    return float(found[0]) if found else None


def _pair(value: Any) -> tuple[float | None, float | None]:
    """Return both numbers of a text such as `32/40`, or the one number that there is."""
    first, _, second = value.partition("/") if isinstance(value, str) else (value, "", "")
    return _number(first), _number(second)


def _wait_ms(value: Any, headers: Mapping[str, str]) -> int | None:
    """Return the wait. It is written in seconds, or as the time at which it ends, by the platform's own clock."""
    if isinstance(value, str) and _ISO.fullmatch(value.strip()):
        try:
            at_ms = _read_iso(value.strip())
        except ValueError:
            return None
    else:
        number = _number(value)
        if number is None or number < _SINCE_1970_S:
            return None if number is None else min(_DAY_MS, ceil(number * 1_000))
        at_ms = int(number if number >= 1_000 * _SINCE_1970_S else number * 1_000)
    now_ms = http_date_ms(headers.get("date", ""))
    return None if now_ms is None or at_ms is None else min(_DAY_MS, max(0, at_ms - now_ms))


# ---- what a file says


class ToldReader:
    """Reads what answers tell of one limit of a file. `where`: its table. `has_body`: answers have more than rows."""

    def __init__(self, where: str, rate: RatePart, told: ToldPart, *, has_body: bool) -> None:
        """BadDeclaration for what cannot be meant, with its place."""
        self._rate = rate
        places = places_of(told)
        if not places.keys() & {"left", "used", "restore"}:
            raise BadDeclaration(where, "names nothing that tells how full the limit is; write left, used or restore")
        if "left" in places and "used" in places:
            raise BadDeclaration(f"{where}.used", "goes without left: one of them says how full the limit is")
        headers = {name: header_of(place) for name, place in places.items()}
        self._headers = {name: header for name, header in headers.items() if header is not None}
        for name, header in self._headers.items():
            if not _HEADER.fullmatch(header):
                problem = f"{places[name]!r} names no header; write 'header:X-Limit-Left', or a path in the body"
                raise BadDeclaration(f"{where}.{name}", problem)
        paths = {
            name: Field(f"{where}.{name}", place, str | int | float, is_optional=True)
            for name, place in places.items()
            if name not in self._headers
        }
        if paths and not has_body:
            raise BadDeclaration(next(iter(paths.values())).where, "is a path, and the body is the list; name a header")
        self._picker = Picker("Told", paths) if paths else None

    def read(self, response: Response, *, is_detail: bool) -> ToldLimit:
        """Return what an answer tells of this limit."""
        unit = self._rate.cost if self._rate.detail_cost is None or not is_detail else self._rate.detail_cost
        if not unit:
            return _NOTHING
        found = self._values(response)
        (left, most), (used, of) = _pair(found.get("left")), _pair(found.get("used"))
        most = _number(found.get("most")) or most or of
        if left is None and used is not None and most is not None:
            left = max(0.0, most - used)
        cost, needs, restore = (_number(found.get(name)) for name in ("cost", "needs", "restore"))
        took, wants = cost or needs or unit, needs or cost or unit
        reset_ms = _wait_ms(found.get("reset"), response.headers)
        back_per_s = restore or self._rate.per_second
        if reset_ms is None and left is not None and left < wants and back_per_s:
            reset_ms = min(_DAY_MS, ceil((wants - left) / back_per_s * 1_000))
        return ToldLimit(
            left=None if left is None else int(left / wants),
            reset_ms=reset_ms,
            per_s=restore / took if restore else None,
            most=None if not most else max(1, int(most / wants)),
            is_rough=bool(cost),
        )

    def _values(self, response: Response) -> dict[str, Any]:
        found: dict[str, Any] = {name: response.headers.get(header) for name, header in self._headers.items()}
        if self._picker is not None:
            with suppress(msgspec.DecodeError, ValueError, RecursionError):
                head = read_json(self._picker.decode, response.body)
                found |= {name: get(head) for name, get in self._picker.getters.items()}
        return found


def strictest(told: Sequence[ToldLimit]) -> ToldLimit:
    """Return what holds if an answer tells of several limits."""
    if len(told) == 1:
        return told[0]
    left, most = _least([each.left for each in told]), _least([each.most for each in told])
    pace = min((each for each in told if each.per_s is not None), key=lambda each: each.per_s or 0.0, default=_NOTHING)
    resets = [each.reset_ms for each in told if each.reset_ms is not None and each.left == left]
    return ToldLimit(left, max(resets, default=None), pace.per_s, most, pace.is_rough)


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def places_of(told: ToldPart | None) -> dict[str, str]:
    """Return what a file names of a limit, and where."""
    return {} if told is None else {name: place for name, place in msgspec.structs.asdict(told).items() if place}


def header_of(place: str) -> str | None:
    """Return the name of a header in lower case, None for a path."""
    return place.removeprefix("header:").strip().lower() if place.startswith("header:") else None
