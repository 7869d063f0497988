"""What is due first comes first, and nobody is looked at twice at once."""

import asyncio

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.runtime.tending import SPARE, Agenda

KEYS = st.sampled_from("abcde")


class HandClock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms


class AgendaMachine(RuleBasedStateMachine):
    """The agenda beside a plain table of what is due when."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        self.agenda: Agenda[str] = Agenda(self.clock)
        self.due: dict[str, int] = {}
        self.busy: dict[str, int | None] = {}

    @rule(key=KEYS, due_ms=st.integers(0, 50))
    def put(self, key: str, due_ms: int) -> None:
        self.agenda.put(key, due_ms)
        if key in self.busy:
            before = self.busy[key]
            self.busy[key] = due_ms if before is None else min(before, due_ms)
        else:
            self.due[key] = min(due_ms, self.due.get(key, due_ms))

    @precondition(lambda self: any(due <= self.clock.at_ms for due in self.due.values()))
    @rule()
    def take(self) -> None:
        key = asyncio.run(self.agenda.next())
        assert self.due.pop(key) <= min([*self.due.values(), self.clock.at_ms])
        self.busy[key] = None

    @rule()
    def take_due(self) -> None:
        taken = self.agenda.take_due()
        assert taken == sorted(taken, key=lambda key: self.due[key])
        due = {key for key, due_ms in self.due.items() if due_ms <= self.clock.at_ms}
        assert set(taken) == due
        assert len(taken) == len(due)
        for key in taken:
            del self.due[key]

    @precondition(lambda self: self.busy)
    @rule(due_ms=st.none() | st.integers(0, 50), data=st.data())
    def finish(self, due_ms: int | None, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.busy)))
        self.agenda.done(key, due_ms)
        moments = [moment for moment in (due_ms, self.busy.pop(key)) if moment is not None]
        if moments:
            self.due[key] = min(moments)

    @rule(ms=st.integers(1, 20))
    def wait(self, ms: int) -> None:
        self.clock.at_ms += ms

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.agenda) == len(self.due)


TestAgenda = AgendaMachine.TestCase


async def test_a_wait_ends_when_something_earlier_is_put() -> None:
    agenda: Agenda[str] = Agenda(HandClock())
    agenda.put("later", 60_000)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(agenda.next())
        tasks.create_task(asyncio.to_thread(lambda: None)).add_done_callback(lambda _: agenda.put("now", 0))
    assert first.result() == "now"


async def test_one_under_way_holds_up_no_other() -> None:
    agenda: Agenda[str] = Agenda(HandClock())
    agenda.put("hangs", 0)
    assert await agenda.next() == "hangs"
    agenda.put("hangs", 0)
    agenda.put("other", 0)
    assert await agenda.next() == "other"
    agenda.done("hangs")
    assert await agenda.next() == "hangs"


def test_entries_that_were_replaced_do_not_pile_up() -> None:
    agenda: Agenda[int] = Agenda(HandClock())
    for due_ms in range(100_000, 0, -1):
        agenda.put(1, due_ms)
        agenda._drop_void()
    assert len(agenda._heap) <= SPARE + 3


async def test_a_fresh_start_forgets_what_was_under_way() -> None:
    agenda: Agenda[str] = Agenda(HandClock())
    agenda.put("a", 0)
    assert await agenda.next() == "a"
    agenda.clear()
    agenda.put("a", 0)
    assert await agenda.next() == "a"
    assert len(agenda) == 0
