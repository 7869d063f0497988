"""Reads what `penstock verify` answers from: a source's ledger, and the events that say who read which second."""

from actors.fetch.rules.ledger import Ledger
from actors.fetch.sources import SourceKey
from penstock.admin.coverage import Coverage, cover
from penstock.admin.records import Records
from streams.errors import MalformedMessage
from streams.messages.fetch import SliceCompleted, decode_event
from streams.reads.log import read_log

__all__ = ["read_coverage"]

SPARE_MS = 3_600_000
"""A window is read after its end by the cutting node's clock. A clock that is off by more than this is noticed."""


async def read_coverage(
    records: Records, source: SourceKey, start_ms: int, end_ms: int
) -> tuple[Ledger | None, Coverage]:
    """Return the source's ledger and what is known of `[start_ms, end_ms)`. Raises NoSuchSource, PenstockError.
    Memory and time grow with the readings since `start_ms`, of which only those that touch the range are kept."""
    _, ledger = await records.need(source)
    subject = records.namespace.event("fetch", "slice_completed", source.platform, source.source)
    found: list[SliceCompleted] = []
    stream, since_ms = records.namespace.stream("EVENTS"), max(0, start_ms - SPARE_MS)
    async for entry in read_log(records.connection, stream, subject, start_ms=since_ms):
        try:
            event = decode_event(entry.payload)
        except MalformedMessage:
            continue  # of a later release, or somebody's own: it cannot attest anything
        if isinstance(event, SliceCompleted) and event.start_ms < end_ms and event.end_ms > start_ms:
            found.append(event)
    return ledger, cover(ledger, found, start_ms, end_ms)
