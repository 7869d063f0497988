"""A ledger and a naive model side by side, through every move in any order.

The model knows nothing of lists and cursors: it is the set of milliseconds that the watermark may pass, and who holds
which slice under which fence.
"""

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from actors.fetch.rules.cutting import OfferKey, cut, next_due_ms, offer_key, offers_due
from actors.fetch.rules.holding import (
    Completed,
    GaveUp,
    Halved,
    Released,
    Retried,
    StaleFence,
    Taken,
    Wait,
    complete,
    expire,
    fail,
    give_up,
    miss,
    park,
    release,
    split,
    take,
)
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, faults, first_ledger
from actors.fetch.rules.outages import earliest_ms, is_down
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.rules.steering import (
    accept_hole,
    add_backfill,
    forget_hole,
    mark_reported,
    pause,
    redrive_hole,
    remove_backfill,
    resume,
    rewind,
)
from streams.backoff import Backoff

BASE = FetchSettings(slice_ms=10, settle_ms=3, max_open=4, back_open=2, again_ms=(15, 40), again_slice_ms=12)
BASE = replace(BASE, retries=1, retry_base_ms=4, retry_cap_ms=20, stale_after_ms=25, reoffer_ms=7, max_holes=6)
POLICY = Backoff(retries=1, base_ms=4, cap_ms=20)
CHANCE = st.floats(0, 1, exclude_max=True)
START_MS = 100


class LedgerMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now_ms = START_MS + 45
        self.settings = BASE
        self.ledger = first_ledger(START_MS)
        self.offered: dict[OfferKey, int] = {}
        self.passable: set[int] = set()  # milliseconds of the tail that are complete or accepted
        self.lowest_ms = START_MS  # where the watermark of this epoch stood last
        self.fences: dict[str, int] = {}  # who holds what, by the latest take
        self.given: list[tuple[str, int]] = []  # every fence that was ever given
        self.steps = 0  # rare things happen at some steps only, so that most of a run is work
        self.cut()

    # --- the world goes on

    @rule(by_ms=st.integers(0, 30))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @precondition(lambda self: self.steps % 5 == 1)
    @rule(slice_ms=st.sampled_from([7, 10, 20]), again=st.sampled_from([(15, 40), (15,), (), (9, 15)]))
    def settings_change(self, slice_ms: int, again: tuple[int, ...]) -> None:
        self.settings = replace(self.settings, slice_ms=slice_ms, again_ms=again)

    @rule()
    def cut(self) -> None:
        before = self.ledger
        self.ledger = cut(before, self.settings, self.now_ms)
        fresh = [held for held in self.ledger.open if held not in before.open]
        assert bool(fresh) == (self.ledger is not before)
        assert set(before.open) <= set(self.ledger.open), "a cut never touches what is open"
        for held in fresh:
            assert held.end_ms <= self.now_ms
            if held.kind == "t":
                assert held.end_ms + self.settings.settle_ms <= self.now_ms
            if held.kind == "a":
                assert held.end_ms <= before.watermark_ms
        for kind, limit in (
            ("t", self.settings.max_open),
            ("b", self.settings.back_open),
            ("a", self.settings.back_open),
        ):
            if any(held.kind == kind for held in fresh):
                assert sum(held.kind == kind for held in self.ledger.open) <= limit

    @precondition(lambda self: self.steps % 3 == 0)
    @rule(count=st.integers(1, 3))
    def offer(self, count: int) -> None:
        for held in offers_due(self.ledger, self.now_ms, self.offered, self.settings.reoffer_ms)[:count]:
            assert held.fence == 0
            assert isinstance(take(self.ledger, held.slice_id, "n", self.now_ms)[1], Taken)
            assert held.not_before_ms <= self.now_ms
            self.offered[offer_key(self.ledger, held)] = self.now_ms

    # --- holders

    @precondition(lambda self: self.ledger.open)
    @rule(
        data=st.data(), chance=CHANCE, end=st.sampled_from(["complete", "complete", "fail", "miss", "give up", "split"])
    )
    def work(self, data: st.DataObject, chance: float, end: str) -> None:
        """Wait for a slice's time, take it, and end the attempt: most of what ever happens."""
        held = data.draw(st.sampled_from(self.ledger.open))
        self.now_ms = max(self.now_ms, earliest_ms(self.ledger, held))
        self.take_one(held)
        if held.slice_id in self.fences:
            self.end(held.slice_id, self.fences[held.slice_id], chance, end)
        self.cut()

    @precondition(lambda self: self.ledger.open)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.take_one(data.draw(st.sampled_from(self.ledger.open)))

    def take_one(self, held: OpenSlice) -> None:
        before = self.ledger
        self.ledger, result = take(before, held.slice_id, "n", self.now_ms, most_losses=2)
        match result:
            case Taken(mine):
                assert mine.fence > before.fence, "a fence is never given twice"
                self.fences[mine.slice_id] = mine.fence
                self.given.append((mine.slice_id, mine.fence))
            case Wait(until_ms):
                assert until_ms > self.now_ms
                assert self.ledger is before
            case GaveUp():
                assert held.losses == 2
                self.fences.pop(held.slice_id)
            case StaleFence():
                assert before.state != "running" or is_down(before)

    @precondition(lambda self: self.given)
    @rule(
        data=st.data(),
        chance=CHANCE,
        end=st.sampled_from(["complete", "fail", "miss", "give up", "release", "split", "park"]),
    )
    def end_any(self, data: st.DataObject, chance: float, end: str) -> None:
        """By anyone who was ever given a fence: only the latest one may have an effect."""
        slice_id, fence = data.draw(st.sampled_from(self.given))
        self.end(slice_id, fence, chance, end)
        if end == "park":
            self.ledger = resume(self.ledger, self.now_ms)

    def end(self, slice_id: str, fence: int, chance: float, end: str) -> None:
        before = self.ledger
        is_valid = self.fences.get(slice_id) == fence
        self.ledger, result = self.ended(end, slice_id, fence, chance)
        assert isinstance(result, StaleFence) != is_valid
        if not is_valid:
            assert self.ledger is before, "a void fence changes nothing"
            return
        if isinstance(result, Completed) and result.slice.kind == "t":
            self.passable.update(range(result.slice.start_ms, result.slice.end_ms))
        if self.ledger is not before:
            del self.fences[slice_id]

    def ended(
        self, end: str, slice_id: str, fence: int, chance: float
    ) -> tuple[Ledger, Completed | Retried | GaveUp | Released | Halved | StaleFence | object]:
        now_ms = self.now_ms
        match end:
            case "complete":
                return complete(self.ledger, slice_id, fence, now_ms)
            case "fail":
                return fail(self.ledger, slice_id, fence, "failed", POLICY, now_ms, chance=chance)
            case "miss":
                return miss(self.ledger, slice_id, fence, "HTTP 503", POLICY, now_ms, chance=chance)
            case "give up":
                return give_up(self.ledger, slice_id, fence, "no way", now_ms)
            case "release":
                return release(self.ledger, slice_id, fence, now_ms, hold_until_ms=now_ms + int(chance * 20))
            case "split":
                return split(self.ledger, slice_id, fence, now_ms, step_ms=3)
            case _:
                return park(self.ledger, slice_id, fence, "refused", now_ms)

    @precondition(lambda self: self.fences)
    @rule(chance=CHANCE)
    def expire(self, chance: float) -> None:
        stale = [held for held in self.ledger.open if held.is_taken and held.taken_ms + 25 <= self.now_ms]
        before = self.ledger
        self.ledger, results = expire(before, self.settings, self.now_ms, chance=chance)
        assert len(results) == len(stale)
        assert results or self.ledger is before
        for held in stale:
            del self.fences[held.slice_id]

    # --- people

    @precondition(lambda self: self.ledger.holes)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        hole = data.draw(st.sampled_from(self.ledger.holes))
        self.ledger, is_known = accept_hole(self.ledger, hole.slice_id, "ann")
        assert is_known
        if self.is_of_the_tail(hole):
            self.passable.update(range(hole.start_ms, hole.end_ms))

    def is_of_the_tail(self, hole: Hole) -> bool:
        return hole.kind == "t" and hole.epoch == self.ledger.epoch

    @precondition(lambda self: self.ledger.holes)
    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        hole = data.draw(st.sampled_from(self.ledger.holes))
        self.ledger, again = redrive_hole(self.ledger, hole.slice_id, self.now_ms)
        assert again is not None
        assert (again.start_ms, again.end_ms) == (hole.start_ms, hole.end_ms)
        assert any(held.slice_id == again.slice_id for held in self.ledger.open)
        if again.kind == "t":
            self.passable.difference_update(range(hole.start_ms, hole.end_ms))

    @precondition(lambda self: self.ledger.holes)
    @rule(data=st.data(), does_forget=st.booleans())
    def tell_or_forget(self, data: st.DataObject, does_forget: bool) -> None:
        hole = data.draw(st.sampled_from(self.ledger.holes))
        self.ledger, is_done = (forget_hole if does_forget else mark_reported)(self.ledger, hole.slice_id)
        assert is_done == (not does_forget or bool(hole.accepted_by) or hole.kind != "t")

    @precondition(lambda self: self.steps % 4 == 1)
    @rule(name=st.sampled_from(["x", "y"]), start_ms=st.integers(0, 150), length_ms=st.integers(1, 60))
    def backfill(self, name: str, start_ms: int, length_ms: int) -> None:
        if all(each.name != name for each in self.ledger.passes):
            self.ledger = add_backfill(self.ledger, name, start_ms, start_ms + length_ms)

    @precondition(lambda self: self.ledger.passes and self.steps % 6 == 2)
    @rule(name=st.sampled_from(["x", "y"]))
    def drop_backfill(self, name: str) -> None:
        self.ledger = remove_backfill(self.ledger, name)
        self.forget_the_gone()

    @precondition(lambda self: self.steps % 7 == 3)
    @rule(goes_on=st.sampled_from([True, True, True, False]))
    def pause(self, goes_on: bool) -> None:
        self.ledger = pause(self.ledger, "stocktaking")
        if goes_on:
            self.ledger = resume(self.ledger, self.now_ms)

    @precondition(lambda self: self.ledger.state != "running")
    @rule()
    def resume(self) -> None:
        self.ledger = resume(self.ledger, self.now_ms)

    @precondition(lambda self: self.steps % 9 == 4)
    @rule(by_ms=st.integers(0, 60))
    def rewind(self, by_ms: int) -> None:
        to_ms = max(0, self.ledger.watermark_ms - by_ms)
        before = self.ledger
        self.ledger = rewind(before, to_ms)
        assert all(hole.start_ms < to_ms for hole in self.ledger.holes)
        assert {hole for hole in before.holes if hole.start_ms < to_ms} <= set(self.ledger.holes)
        self.nothing_behind_is_lost(before, to_ms)
        self.passable = set(range(to_ms))
        self.lowest_ms = to_ms
        self.forget_the_gone()

    def nothing_behind_is_lost(self, before: Ledger, to_ms: int) -> None:
        """What was open and begins before the new start is read again by its pass, or listed as a hole."""
        cursors = {each.name: each.cursor_ms for each in self.ledger.passes}
        listed = {hole.slice_id for hole in self.ledger.holes}
        for held in before.open:
            if held.start_ms < to_ms:
                assert cursors.get(held.pass_name, held.end_ms) <= held.start_ms or held.slice_id in listed

    def forget_the_gone(self) -> None:
        listed = {held.slice_id for held in self.ledger.open}
        self.fences = {slice_id: fence for slice_id, fence in self.fences.items() if slice_id in listed}

    # --- what always holds

    @invariant()
    def ledger_is_sound(self) -> None:
        assert faults(self.ledger) == []
        fences = {held.slice_id: held.fence for held in self.ledger.open if held.is_taken}
        assert fences == self.fences

    @invariant()
    def every_millisecond_of_the_tail_is_complete_open_or_a_hole(self) -> None:
        listed: set[int] = set()
        for piece in (*self.ledger.open, *self.ledger.holes):
            if piece.kind == "t" and piece.epoch == self.ledger.epoch:
                listed.update(range(piece.start_ms, piece.end_ms))
        assert listed | self.passable >= set(range(self.ledger.start_ms, self.ledger.frontier_ms))
        self.steps += 1

    @invariant()
    def watermark_is_the_first_millisecond_that_may_not_be_passed(self) -> None:
        expected = self.lowest_ms
        while expected < self.ledger.frontier_ms and expected in self.passable:
            expected += 1
        assert self.ledger.watermark_ms == expected
        self.lowest_ms = expected

    @invariant()
    def it_reads_back_as_it_was_stored(self) -> None:
        assert msgspec.json.decode(msgspec.json.encode(self.ledger), type=Ledger) == self.ledger

    @invariant()
    def the_allocator_sleeps_exactly(self) -> None:
        due_ms = next_due_ms(self.ledger, self.settings, self.now_ms, self.offered)
        horizon_ms = self.now_ms + 60
        first = next((at for at in range(self.now_ms, horizon_ms) if self.brings_something(at)), None)
        assert first == (due_ms if due_ms is not None and due_ms < horizon_ms else None)

    def brings_something(self, at_ms: int) -> bool:
        if cut(self.ledger, self.settings, at_ms) is not self.ledger:
            return True
        return bool(offers_due(self.ledger, at_ms, self.offered, self.settings.reoffer_ms))


LedgerMachine.TestCase.settings = hypothesis_settings(max_examples=300, stateful_step_count=50, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
