"""Ledgers as tests of them need them."""

from actors.fetch.rules.cutting import cut
from actors.fetch.rules.holding import (
    Completed,
    GaveUp,
    Taken,
    complete,
    give_up,
    take,
)
from actors.fetch.rules.ledger import Ledger, OpenSlice, first_ledger
from actors.fetch.rules.settings import FetchSettings

MINUTE = 60_000
SETTINGS = FetchSettings(slice_ms=MINUTE, settle_ms=0, again_ms=(), max_open=4, retry_spread=0)


def ids(ledger: Ledger) -> list[str]:
    return [held.slice_id for held in ledger.open]


def cut_up_to(minutes: int, settings: FetchSettings = SETTINGS) -> Ledger:
    return cut(first_ledger(0), settings, minutes * MINUTE)


def taken(ledger: Ledger, slice_id: str, now_ms: int = 0, holder: str = "n1") -> tuple[Ledger, OpenSlice]:
    after, result = take(ledger, slice_id, holder, now_ms)
    assert isinstance(result, Taken), result
    return after, result.slice


def finished(ledger: Ledger, slice_id: str, now_ms: int = 0) -> tuple[Ledger, Completed]:
    after, held = taken(ledger, slice_id, now_ms)
    after, result = complete(after, slice_id, held.fence, now_ms)
    assert isinstance(result, Completed), result
    return after, result


def hole_at(ledger: Ledger, slice_id: str, now_ms: int = 0) -> Ledger:
    after, held = taken(ledger, slice_id, now_ms)
    after, result = give_up(after, slice_id, held.fence, "no such shop", now_ms)
    assert isinstance(result, GaveUp), result
    return after
