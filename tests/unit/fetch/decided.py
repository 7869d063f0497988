"""Slices that were taken and came to an end, for the tests of decisions."""

from msgspec.structs import replace

from actors.fetch.fetcher.decisions import (
    Ended,
    Offered,
    Outcome,
    Short,
    Standing,
    decide,
)
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import Ledger, OpenSlice, Shortfall, first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.actor import Work
from streams.messages.fetch import FetchEvent

SHOP = SourceKey("mall", "s1")
NOW = 10_000_000
SETTINGS = FetchSettings(slice_ms=60_000, retries=2, max_open=3)
SHORT = Short("short by 12 of 52: a crowd", Shortfall(12, 52))


def opened() -> Ledger:
    """Return a ledger with three open slices that nobody holds."""
    return cut(first_ledger(0), SETTINGS, NOW)


def taken(ledger: Ledger, *, attempt: int = 1, now_ms: int = NOW) -> tuple[Ledger, OpenSlice]:
    """Return the ledger with its first slice in our hands, in this attempt."""
    first = replace(ledger.open[0], attempt=attempt)
    ledger, step = decide(replace(ledger, open=(first, *ledger.open[1:])), offer(first.slice_id), now_ms)
    assert isinstance(step.then, Work)
    return ledger, step.then.request.slice


def offer(slice_id: str, standing: Standing = "ours") -> Offered:
    return Offered(SHOP, slice_id, "n1", SETTINGS, standing)


def ended(piece: OpenSlice, outcome: Outcome, settings: FetchSettings = SETTINGS) -> Ended:
    return Ended(SHOP, piece, outcome, settings, chance=0.5)


def read_as(ledger: Ledger, at: int, outcome: Outcome) -> tuple[Ledger, tuple[FetchEvent, ...]]:
    """Take the open slice of that place and end it so."""
    later_ms = max(NOW, ledger.open[at].not_before_ms, ledger.hold_until_ms)
    ledger, step = decide(ledger, offer(ledger.open[at].slice_id), later_ms)
    assert isinstance(step.then, Work)
    ledger, step = decide(ledger, ended(step.then.request.slice, outcome), later_ms)
    return ledger, step.events
