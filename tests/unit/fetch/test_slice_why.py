"""Why a slice is not read: one reason for each of its states, with its end where that is known."""

from typing import Any

import pytest

from actors.fetch.overview import Overview, SliceWorld, SpentRate
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice
from actors.fetch.rules.slices import Slice
from actors.fetch.slice_why import SliceWhy, slice_why

NOW_MS = 1_000_000
TAIL = Slice("t", 1, 60_000, 90_000)
OPEN = OpenSlice("t", 1, 60_000, 90_000)


def of(
    *,
    piece: Slice = TAIL,
    state: str = "running",
    source_reason: str = "",
    nodes: tuple[str, ...] = ("n1",),
    pin: str = "",
    sink: str = "",
    spent: SpentRate | None = None,
    **ledger: Any,
) -> SliceWhy:
    shown = Overview("mall/s1", state=state, reason=source_reason)
    record = Ledger(0, 90_000, 60_000, **{"open": (OPEN,), **ledger})
    return slice_why(shown, record, piece, SliceWorld(5_000, pin, nodes, sink, spent=spent), NOW_MS)


HELD = OpenSlice("t", 1, 60_000, 90_000, fence=3, holder="n2", taken_ms=70_000, attempt=2)
TRIED = OpenSlice("t", 1, 60_000, 90_000, attempt=2, not_before_ms=NOW_MS + 9, reason="500")
SPENT = SpentRate("the `platform_rate` of mall", 0.5, 1_700)
LATER = Slice("t", 1, NOW_MS - 2_000, NOW_MS)


@pytest.mark.parametrize(
    ("told", "state", "code", "reason", "until_ms"),
    [
        (of(holes=(Hole("t", 1, 60_000, 90_000, attempts=5, reason="500"),), open=()), "hole", "hole", "redrive", 0),
        (of(open=(HELD,)), "taken", "held", "n2 reads it since 1970-01-01T00:01:10Z, attempt 2", 0),
        (of(open=(), epoch=2), "old", "over", "rewound", 0),
        (of(open=()), "stored", "over", "stored", 0),
        (of(piece=Slice("b", 1, 0, 1_000)), "stored", "over", "not open", 0),
        (of(state="paused", source_reason="stock"), "open", "paused", "paused: stock", 0),
        (of(state="parked", source_reason="401"), "open", "parked", "parked: 401", 0),
        (of(state="down"), "open", "down", "is down", 0),
        (of(state="throttled", hold_until_ms=NOW_MS + 5), "open", "throttled", "throttled", NOW_MS + 5),
        (of(piece=LATER), "not_cut", "settle", "may still come", NOW_MS + 5_000),
        (of(piece=LATER, state="paused"), "not_cut", "paused", "paused", 0),
        (of(open=(TRIED,)), "open", "retry", "attempt 1 failed: 500", NOW_MS + 9),
        (of(nodes=()), "open", "nobody", "no live node fetches", 0),
        (of(nodes=(), pin="cn"), "open", "nobody", "with the label cn", 0),
        (of(state="down", nodes=()), "open", "nobody", "no live node fetches", 0),
        (of(state="throttled", nodes=(), hold_until_ms=NOW_MS + 5), "open", "nobody", "no live node fetches", 0),
        (of(state="paused", nodes=()), "open", "paused", "its source is paused: a person paused it", 0),
        (of(sink="9 messages wait"), "open", "sink", "9 messages wait", 0),
        (
            of(spent=SPENT),
            "open",
            "rate",
            "the `platform_rate` of mall, 0.5 a second over all nodes, is",
            NOW_MS + 1_700,
        ),
        (of(open=(HELD,), spent=SPENT), "taken", "rate", "n2 reads it, and waits: the `platform_rate`", NOW_MS + 1_700),
        (of(sink="9 messages wait", spent=SPENT), "open", "sink", "9 messages wait", 0),
        (of(), "open", "turn", "one of 1 slices", 0),
        (of(nodes=("a", "b", "c", "d")), "open", "turn", "(a, b, c and 1 more)", 0),
    ],
)
def test_one_thing_is_in_the_way_of_a_slice(told: SliceWhy, state: str, code: str, reason: str, until_ms: int) -> None:
    assert (told.state, told.code, told.until_ms) == (state, code, until_ms)
    assert reason in told.reason
    assert told.id.startswith("mall/s1/")
