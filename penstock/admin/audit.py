"""Reads a range of time from a platform once more, and compares the list with the stored orders.

Second looks find late orders up to their horizon. Only another request shows what a platform lists after that. A row
counts as stored if the stream of orders holds it in this version or a later one. If the platform has no versions, the
latest state that the stream holds must have the same content. For a row that it does not hold, the
coverage says why: its time was not read yet, or so long ago that the stream has dropped it, or it came late.

The requests go at the source's own rate, one at a time. Memory holds at most some hundred thousand keys.
"""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from penstock.admin.coverage import Coverage, Stretch
from penstock.admin.platform_calls import SourceClient
from penstock.admin.records import Records
from platforms.adapter import Row, content_version
from platforms.bounds import Window
from platforms.lists import begin_reading
from streams.errors import MalformedMessage
from streams.messages.fetch import Order, decode_orders
from streams.reads.log import Extent, extent_of, read_log

__all__ = ["Audit", "Fate", "Finding", "Known", "audit", "dropped_before_ms", "fate_of", "horizon_ms"]

DAY_MS = 86_400_000
SPARE_MS = 3_600_000
"""An order is stored after its modified time, by clocks that differ by less than this."""
MOST_FINDINGS = 1_000
MOST_LISTED = 200_000
"""Rows that are held at once. Beyond, the stream of orders is read once more for the next ones."""

Fate = Literal["stored", "unread", "aged", "late", "missed"]
"""stored: in the stream. unread: its time was not read (yet). aged: read so long ago that the stream of orders has
dropped it. late: not in the stream, and a second look is still to come. missed: not in the stream, and no look will
come."""


class Finding(Struct, frozen=True):
    """A row that is listed now and not stored. `stored_version`: the stored version, if any."""

    key: str
    version: int
    modified_ms: int | None
    fate: Fate
    stored_version: int | None = None


class Audit(Struct):
    """The result of an audit: rows listed, how many of each fate, and the first 1,000 that are late or missed. `short`:
    orders that the platform counts and did not list this time. `is_cut_off`: a list of it broke off."""

    listed: int = 0
    stored: int = 0
    unread: int = 0
    aged: int = 0
    late: int = 0
    missed: int = 0
    requests: int = 0
    is_proven: bool = True
    short: int = 0
    is_cut_off: bool = False
    findings: list[Finding] = []

    @property
    def is_good(self) -> bool:
        """True if all listed rows that should be stored are, as far as the platform lists all of them."""
        return not (self.late or self.missed or self.short or self.is_cut_off)

    def count(self, fate: Fate) -> None:
        setattr(self, fate, getattr(self, fate) + 1)


class Known(NamedTuple):
    """The facts that decide fates: the range's coverage, how long second looks go on after a row's time, and the moment
    before which the stream of orders may have dropped what was read (0: it has dropped nothing)."""

    coverage: Coverage
    horizon_ms: int
    dropped_before_ms: int
    now_ms: int


def fate_of(row: Row, known: Known) -> Fate:
    """Return the fate of a listed row that is not stored in this version."""
    stretch = _stretch_at(known.coverage, row.modified_ms)
    at_ms = stretch.start_ms if row.modified_ms is None else row.modified_ms
    if stretch.state != "read":
        return "unread"
    if known.dropped_before_ms and _read_ms(stretch, at_ms, known) < known.dropped_before_ms:
        return "aged"
    return "late" if known.now_ms < at_ms + known.horizon_ms else "missed"


def dropped_before_ms(orders: Extent, now_ms: int) -> int:
    """Return the moment before which stored orders may be gone, 0 if all that ever came is still there."""
    if orders.first_seq <= 1 and orders.messages:
        return 0
    if not orders.messages:
        return now_ms if orders.last_seq else 0
    return orders.first_ms


def horizon_ms(settings: FetchSettings, declared_ms: tuple[int, ...] | None = None) -> int:
    """Return for how long after its time a row may still be found by a second look. `declared_ms`: the looks that the
    adapter declares."""
    looks_ms = settings.looks_ms(declared_ms)
    return max(looks_ms) + settings.again_slice_ms if looks_ms else 0


def _stretch_at(coverage: Coverage, at_ms: int | None) -> Stretch:
    """Return the stretch of a moment. For a row without one (or from outside the range), return the first that is
    unread."""
    stretches = coverage.stretches
    if at_ms is not None and coverage.start_ms <= at_ms < coverage.end_ms:
        return stretches[bisect_right(stretches, at_ms, key=lambda stretch: stretch.start_ms) - 1]
    return next((stretch for stretch in stretches if stretch.state != "read"), stretches[-1])


def _read_ms(stretch: Stretch, at_ms: int, known: Known) -> int:
    """Return when a moment was first read, as far as it matters. 0 if only the ledger knows that it was."""
    if not stretch.is_attested or stretch.last_ms < known.dropped_before_ms:
        return 0
    if stretch.first_ms >= known.dropped_before_ms:
        return stretch.first_ms
    reads = [event for event in known.coverage.readings if event.start_ms <= at_ms < event.end_ms]
    return min((event.finished_ms for event in reads), default=0)


# ---- asking


async def audit(
    records: Records,
    source: SourceKey,
    client: SourceClient,
    coverage: Coverage,
    *,
    settings: FetchSettings,
    progress: Callable[[float], None] = lambda _share: None,
) -> Audit:
    """Read the coverage's range, as far as it has passed, from the platform again and compare. `progress` gets the
    share that is done. Raises PenstockError if the platform does not answer."""
    orders = await extent_of(records.connection, records.namespace.stream("ORDERS"))
    now_ms, told, listed = records.now_ms(), Audit(), dict[str, Row]()
    known = Known(
        coverage, horizon_ms(settings, client.adapter.declaration.again_ms), dropped_before_ms(orders, now_ms), now_ms
    )
    stored = StoredOrders(records, source, is_version_ordered=client.adapter.declaration.is_version_ordered)
    for window in _days(coverage.start_ms, min(coverage.end_ms, now_ms)):
        reading = begin_reading(client.adapter, window, sets_bad_aside=True)
        while (ask := reading.next()) is not None:
            listed |= {row.key: row._replace(body=b"") for row in await client.request(reading, ask)}
            progress((ask.window.end_ms - coverage.start_ms) / (coverage.end_ms - coverage.start_ms))
        told.requests += reading.result.requests
        told.short += reading.result.missing
        told.is_cut_off = told.is_cut_off or any(not part.missing for part in reading.result.short)
        told.is_proven = told.is_proven and reading.result.is_proven and not reading.bad
        if len(listed) >= MOST_LISTED or window.end_ms >= min(coverage.end_ms, now_ms):
            _judge(listed, await stored.missing(listed, since_ms=coverage.start_ms), known, told)
            listed = {}
    return told


def _days(start_ms: int, end_ms: int) -> list[Window]:
    return [Window(at, min(at + DAY_MS, end_ms)) for at in range(start_ms, end_ms, DAY_MS)]


def _judge(listed: Mapping[str, Row], missing: Mapping[str, int | None], known: Known, told: Audit) -> None:
    told.listed += len(listed)
    told.stored += len(listed) - len(missing)
    for key, version in missing.items():
        row = listed[key]
        fate = fate_of(row, known)
        told.count(fate)
        if fate in ("late", "missed") and len(told.findings) < MOST_FINDINGS:
            told.findings.append(Finding(key, row.version, row.modified_ms, fate, version))


class StoredOrders:
    """The orders of one source in the stream, which knows them in the order in which they came, not by key."""

    def __init__(self, records: Records, source: SourceKey, *, is_version_ordered: bool) -> None:
        self._records = records
        self._source = source
        self._is_ordered = is_version_ordered

    async def missing(self, listed: Mapping[str, Row], *, since_ms: int) -> dict[str, int | None]:
        """Return the keys that are not stored in the listed version or a later one, with the stored version, if any. It
        reads all that was stored from shortly before `since_ms` on, since an order modified later was stored later."""
        if not listed:
            return {}
        if not self._is_ordered:
            return await self._unlike(listed, since_ms=since_ms)
        missing: dict[str, int | None] = dict.fromkeys(listed)
        async for order in self._stored(since_ms):
            row = listed.get(order.order_key)
            if row is not None and order.version >= row.version:
                missing.pop(order.order_key, None)
                if not missing:
                    break
            elif order.order_key in missing:
                missing[order.order_key] = max(order.version, missing[order.order_key] or 0)
        return missing

    async def _unlike(self, listed: Mapping[str, Row], *, since_ms: int) -> dict[str, int | None]:
        """Return the keys whose latest stored state has another content than the listed one, and those not stored. A
        stored version is the moment of its reading here."""
        latest: dict[str, tuple[int, int]] = {}
        async for order in self._stored(since_ms):
            if order.order_key in listed and order.version >= latest.get(order.order_key, (0, 0))[0]:
                latest[order.order_key] = (order.version, content_version(bytes(order.body)))
        unlike: dict[str, int | None] = {}
        for key, row in listed.items():
            version, content = latest.get(key, (None, None))
            if content != row.version:
                unlike[key] = version
        return unlike

    async def _stored(self, since_ms: int) -> AsyncIterator[Order]:
        namespace = self._records.namespace
        stream, subject = namespace.stream("ORDERS"), namespace.orders(self._source.platform, self._source.source)
        async for entry in read_log(self._records.connection, stream, subject, start_ms=max(0, since_ms - SPARE_MS)):
            for order in _orders(entry.payload):
                yield order


def _orders(payload: bytes) -> list[Order]:
    """Return a message's orders, an empty list for a foreign message, which no sink takes for an order either."""
    try:
        return decode_orders(payload)
    except MalformedMessage:
        return []
