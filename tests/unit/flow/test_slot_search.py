"""No message that is lost or late, no death and no change of governor gives a key more slots than its limit."""

import pytest
from msgspec.structs import replace

from actors.flow.rules.slots import Slotting
from actors.runtime.rules.slots_held import HeldSlots, SlotCall, SlotLimit
from streams.messages.slots import AskSlots, SlotAsk, SlotDealt, SlotsDealt
from tests.unit.flow.slot_search import SlotRules, search_slots, walk_slots

FATES: tuple[tuple[bool, int | None], ...] = ((False, 0), (False, 0), (False, None), (True, 0), (False, 1), (False, 4))
WORST = SlotRules(fates=FATES, replies=(0, 0, 1, None), has_successor=True)


def test_whatever_happens_in_a_second_no_more_calls_have_a_slot_than_the_limit() -> None:
    """All 4,764 worlds. Three steps are 36,344."""
    found = search_slots(SlotRules(steps=2))
    assert found.violation == []
    assert found.states > 4_000


@pytest.mark.parametrize(
    "limit",
    [SlotLimit(1), SlotLimit(2), SlotLimit(1, "drop_newest"), SlotLimit(1, "cancel_running")],
    ids=["one", "two", "drop", "cancel"],
)
def test_no_way_through_half_a_minute_goes_above_the_limit(limit: SlotLimit) -> None:
    for seed in range(10):
        assert walk_slots(WORST._replace(limit=limit), seed, moves=150) == []


class UsedAfterItsEnd(HeldSlots):
    """Goes on with a slot that was not renewed."""

    def end_slots(self, now_s: float) -> list[SlotCall]:
        return []


class BegunAfterItsEnd(HeldSlots):
    """Begins a call in a slot that was not renewed."""

    def begin(self, key, limit, now_s, on_cut):  # type: ignore[no-untyped-def] # as it is
        return super().begin(key, limit, now_s - 60, on_cut)


class SlotsWithoutFence(HeldSlots):
    """Takes the reply to any request."""

    def hear(self, reply: SlotsDealt, sent_s: float, now_s: float):  # type: ignore[no-untyped-def] # as it is
        self._number, number = reply.number, self._number
        heard = super().hear(reply, now_s, now_s)
        self._number = number
        return heard


class GivesUpTooEarly(HeldSlots):
    """Reports the slots that it keeps, and not those whose calls still run."""

    def _ask(self, key: str, now_s: float, is_last: bool) -> SlotAsk:
        asked = super()._ask(key, now_s, is_last)
        held = min(asked.held, self._keys[key].keep)
        return replace(asked, held=held, running=held)


class HastySuccessor(Slotting):
    """Deals at once after its election."""

    def __init__(self, token: int, since_s: float) -> None:
        super().__init__(token, since_s - 60)


class ForgetsTheSilent(Slotting):
    """Takes a node that is silent for dead before its slots have ended."""

    def answer(self, ask: AskSlots, now_s: float) -> SlotsDealt | None:
        for book in self._books.values():
            for run, one in book.items():
                book[run] = one._replace(until_s=one.waits_until_s)
        return super().answer(ask, now_s)


class TrustsItsSlots(Slotting):
    """Takes slots for given up once it has said so."""

    def _deal(self, ask: AskSlots, key: SlotAsk, now_s: float) -> tuple[SlotDealt, float]:
        dealt, again_s = super()._deal(ask, key, now_s)
        book = self._books.get(key.key, {})
        if ask.run in book:
            book[ask.run] = book[ask.run]._replace(bound=dealt.keep)
        return dealt, again_s


class GivesBackTheLost(Slotting):
    """When it is new, it lets nodes keep the slots of calls that are lost."""

    def _deal(self, ask: AskSlots, key: SlotAsk, now_s: float) -> tuple[SlotDealt, float]:
        return super()._deal(ask, replace(key, held=max(key.held, key.running)), now_s)


@pytest.mark.parametrize(
    ("rules", "first"),
    [
        (WORST._replace(held=UsedAfterItsEnd), 23),
        (WORST._replace(held=BegunAfterItsEnd), 72),
        (WORST._replace(held=SlotsWithoutFence), 72),
        (WORST._replace(held=GivesUpTooEarly), 54),
        (WORST._replace(slotting=HastySuccessor), 28),
        (WORST._replace(slotting=ForgetsTheSilent), 6),
        (WORST._replace(slotting=TrustsItsSlots), 8),
        (WORST._replace(slotting=GivesBackTheLost), 72),
    ],
    ids=["used", "begun", "no fence", "given up", "hasty", "silent", "not confirmed", "lost"],
)
def test_each_known_mistake_about_slots_is_found(rules: SlotRules, first: int) -> None:
    """`first`: the seed that finds it at present. When the code changes, another one does."""
    assert any(walk_slots(rules, seed % 100, moves=200) for seed in range(first, first + 100))
