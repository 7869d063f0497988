"""What of a range was read: by example for each state, and by property against the ledger's own moves."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.fetch.rules import holding, steering
from actors.fetch.rules.cutting import cut
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Shortfall, first_ledger
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.slices import Kind, Slice
from penstock.admin.coverage import Coverage, cover
from streams.backoff import Backoff
from streams.messages.fetch import SliceCompleted

M = 60_000


def event(slice_id: str, *, at_ms: int = 0, rows: int = 1, new_rows: int = 1, **more: object) -> SliceCompleted:
    _, start, end = slice_id.split("-")
    made = SliceCompleted(
        platform="p",
        source="s",
        slice_id=slice_id,
        start_ms=int(start),
        end_ms=int(end),
        attempt=1,
        fence=at_ms,
        node="n1",
        started_ms=at_ms,
        finished_ms=at_ms,
        rows=rows,
        new_rows=new_rows,
        requests=1,
        is_proven=True,
    )
    return msgspec.structs.replace(made, **more)


def states(coverage: Coverage) -> list[tuple[str, int, int]]:
    return [(each.state, each.start_ms, each.end_ms) for each in coverage.stretches]


def test_each_state_is_told_with_its_bounds() -> None:
    ledger = Ledger(
        start_ms=M,
        frontier_ms=5 * M,
        watermark_ms=2 * M,
        open=(OpenSlice("t", 1, 2 * M, 3 * M, attempt=2, fence=7, holder="n2", reason="reset"),),
        holes=(Hole("t", 1, 4 * M, 5 * M, since_ms=1, attempts=6, reason="HTTP 500"),),
    )
    found = cover(ledger, [event(f"t1-{M}-{2 * M}"), event(f"t1-{3 * M}-{4 * M}")], 0, 6 * M)
    assert states(found) == [
        ("gap", 0, M),
        ("read", M, 2 * M),
        ("open", 2 * M, 3 * M),
        ("read", 3 * M, 4 * M),
        ("hole", 4 * M, 5 * M),
        ("ahead", 5 * M, 6 * M),
    ]
    assert found.stretches[2].reason == "held by n2, attempt 2: reset"
    assert found.stretches[4].reason == "given up after 6 attempts: HTTP 500"
    assert not found.is_whole
    assert found.length_ms("open", "hole") == 2 * M


def test_neighbours_are_joined_with_who_read_them_and_how_many_rows() -> None:
    ledger = Ledger(0, 3 * M, 3 * M)
    readings = [
        event(f"t1-0-{M}", at_ms=5, rows=3),
        event(f"t1-{M}-{2 * M}", at_ms=9, rows=4, node="n2"),
        event(f"t1-{2 * M}-{3 * M}", at_ms=7, rows=0, new_rows=0),
        event(f"a1-0-{3 * M}", at_ms=20, rows=8, new_rows=1, node="n3"),
    ]
    (stretch,) = cover(ledger, [*readings, readings[0]], 0, 3 * M).stretches
    assert (stretch.readings, stretch.rows, stretch.late_rows) == (4, 7, 1)
    assert stretch.nodes == ("n1", "n2", "n3")
    assert (stretch.first_ms, stretch.last_ms) == (5, 20)


def test_what_only_the_ledger_knows_is_read_but_not_attested() -> None:
    found = cover(Ledger(0, 3 * M, 3 * M), [event(f"t1-{M}-{2 * M}", is_proven=False)], 0, 3 * M)
    assert found.is_whole
    assert [each.is_attested for each in found.stretches] == [False, True, False]
    assert (found.unattested_ms, found.unproven_ms) == (2 * M, M)


def test_without_a_ledger_only_events_count() -> None:
    found = cover(None, [event(f"t4-{M}-{2 * M}")], 0, 2 * M)
    assert states(found) == [("gap", 0, M), ("read", M, 2 * M)]


def test_time_before_the_start_is_read_by_a_backfill() -> None:
    ledger = Ledger(5 * M, 6 * M, 6 * M, open=(OpenSlice("b", 1, 2 * M, 3 * M, pass_name="old"),))
    found = cover(ledger, [event(f"b1-{M}-{2 * M}")], 0, 4 * M)
    assert states(found) == [("gap", 0, M), ("read", M, 2 * M), ("open", 2 * M, 3 * M), ("gap", 3 * M, 4 * M)]


def test_a_hole_is_closed_by_a_later_read_only() -> None:
    ledger = Ledger(0, M, 0, holes=(Hole("t", 1, 0, M, since_ms=100),))
    assert not cover(ledger, [event(f"b1-0-{M}", at_ms=99)], 0, M).is_whole
    assert cover(ledger, [event(f"b1-0-{M}", at_ms=101)], 0, M).is_whole


def test_an_accepted_hole_is_still_unread() -> None:
    ledger = Ledger(0, M, M, holes=(Hole("t", 1, 0, M, reason="gone", accepted_by="kim"),))
    (stretch,) = cover(ledger, [], 0, M).stretches
    assert stretch.state == "hole"
    assert "accepted by kim" in stretch.reason


def test_a_failed_second_look_does_not_unread_anything() -> None:
    ledger = Ledger(0, M, M, holes=(Hole("a", 1, 0, M, since_ms=100), Hole("b", 1, 0, M, pass_name="x", since_ms=100)))
    assert cover(ledger, [event(f"t1-0-{M}", at_ms=1)], 0, M).is_whole


SHORT = Shortfall(12, 52)


@pytest.mark.parametrize("kind", ["t", "b", "a"])
def test_time_that_is_known_to_be_short_is_read_by_a_later_proven_reading_only(kind: Kind) -> None:
    hole = Hole(kind, 1, 0, M, since_ms=100, attempts=2, reason="short by 12 of 52: a crowd", short=SHORT)
    ledger = Ledger(0, M, M, holes=(hole,))
    (stretch,) = cover(ledger, [event(f"t1-0-{M}", at_ms=99)], 0, M).stretches
    assert (stretch.state, "short by 12 of 52" in stretch.reason) == ("hole", True)
    assert not cover(ledger, [event(f"b1-0-{M}", at_ms=101, is_proven=False)], 0, M).is_whole
    assert cover(ledger, [event(f"b1-0-{M}", at_ms=101)], 0, M).is_whole


def test_time_that_is_known_to_be_short_is_unread_while_it_is_read_again() -> None:
    ledger = Ledger(0, M, M, open=(OpenSlice("a", 1, 0, M, pass_name="again-1", short=SHORT),))
    (stretch,) = cover(ledger, [event(f"t1-0-{M}", at_ms=99)], 0, M).stretches
    assert (stretch.state, "short by 12 of 52" in stretch.reason) == ("open", True)


def test_a_hole_that_is_read_again_behind_the_watermark_is_open() -> None:
    ledger = Ledger(0, 2 * M, 2 * M, open=(OpenSlice("b", 1, 0, M),))
    assert states(cover(ledger, [], 0, 2 * M)) == [("open", 0, M), ("read", M, 2 * M)]


def test_after_a_rewind_older_reads_count_only_behind_it() -> None:
    ledger = steering.rewind(Ledger(0, 3 * M, 3 * M), M)
    readings = [event(f"t1-{at}-{at + M}") for at in (0, M, 2 * M)]
    assert states(cover(ledger, readings, 0, 3 * M)) == [("read", 0, M), ("ahead", M, 3 * M)]


SETTINGS = FetchSettings(slice_ms=1000, settle_ms=0, max_open=3, back_open=2, again_ms=(), retries=0)
GIVE_UP = Backoff(retries=0, growth="linear", base_ms=1, cap_ms=1, spread=0.0)
STEPS = st.sampled_from(["cut", "read", "read", "fail", "accept", "redrive", "backfill", "rewind"])


class World:
    """A ledger driven by its moves, and, as a naive model, the set of milliseconds that were read."""

    def __init__(self, start_ms: int) -> None:
        self.ledger = first_ledger(start_ms)
        self.now_ms = start_ms + 10_000
        self.events: list[SliceCompleted] = []
        self.read: set[int] = set()

    def step(self, what: str, chance: int) -> None:
        self.now_ms += 700
        match what:
            case "cut":
                self.ledger = cut(self.ledger, SETTINGS, self.now_ms)
            case "read" | "fail" if self.ledger.open:
                self._end(self.ledger.open[chance % len(self.ledger.open)], is_read=what == "read")
            case "accept" if self.ledger.holes:
                hole = self.ledger.holes[chance % len(self.ledger.holes)]
                self.ledger, _ = steering.accept_hole(self.ledger, hole.slice_id, "kim")
            case "redrive" if self.ledger.holes:
                hole = self.ledger.holes[chance % len(self.ledger.holes)]
                self.ledger, _ = steering.redrive_hole(self.ledger, hole.slice_id, self.now_ms)
            case "backfill":
                start_ms = chance % 12 * 500
                self.ledger = steering.add_backfill(self.ledger, f"b{self.now_ms}", start_ms, start_ms + 1500)
            case "rewind" if self.ledger.watermark_ms > 0:
                to_ms = chance % (self.ledger.watermark_ms // 100 + 1) * 100
                self.ledger = steering.rewind(self.ledger, to_ms)
                self.read = {at for at in self.read if at < to_ms}

    def _end(self, held: Slice, *, is_read: bool) -> None:
        self.ledger, taken = holding.take(self.ledger, held.slice_id, "n1", self.now_ms)
        if not isinstance(taken, holding.Taken):
            return
        if is_read:
            fence = taken.slice.fence
            self.events.append(event(held.slice_id, at_ms=self.now_ms, fence=fence))
            self.ledger, _ = holding.complete(self.ledger, held.slice_id, fence, self.now_ms)
            self.read |= set(range(held.start_ms, held.end_ms, 100))
        else:
            self.ledger, _ = holding.fail(
                self.ledger, held.slice_id, taken.slice.fence, "no", GIVE_UP, self.now_ms, chance=0.0
            )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(STEPS, st.integers(0, 10_000)), max_size=40))
def test_nothing_counts_as_read_that_was_not(steps: list[tuple[str, int]]) -> None:
    world = World(2000)
    for what, chance in steps:
        world.step(what, chance)
    found = cover(world.ledger, world.events, 0, 20_000)
    told = {at for each in found.stretches if each.state == "read" for at in range(each.start_ms, each.end_ms, 100)}
    edges = [each.start_ms for each in found.stretches] + [found.stretches[-1].end_ms]
    assert told <= world.read, states(found)
    assert edges[0] == 0
    assert edges[-1] == 20_000
    assert edges == sorted(set(edges))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["cut", "read", "fail", "accept", "redrive"]), st.integers(0, 99)), max_size=40)
)
def test_without_backfills_all_that_was_read_counts(steps: list[tuple[str, int]]) -> None:
    world = World(0)
    for what, chance in steps:
        world.step(what, chance)
    found = cover(world.ledger, world.events, 0, 20_000)
    assert found.length_ms("read") == 100 * len(world.read)


def test_window_that_a_backfill_stands_in_for_is_not_read_before_it_is() -> None:
    world = World(2000)
    for what in ("backfill", "rewind", "cut", "fail", "accept", "redrive"):
        world.step(what, 0)
    assert cover(world.ledger, world.events, 0, 1000).length_ms("read") == 0
