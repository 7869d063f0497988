"""Calls of one turn travel together: each has its own answer or error, whoever leaves, and whatever the others do."""

import asyncio
from collections.abc import Hashable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.runtime.turns import Carriers, Deferred, Turns
from penstock.errors import NotAccepted, Timeout, Unavailable


class Service:
    """Answers `a<n>` to call n, at once or when it is let go. It fails for what holds a bad call. `lost`: answers whose
    callers had left."""

    def __init__(self, *, most_size: int = 1_000, most: int = 100) -> None:
        self.carriers = Carriers(Unavailable, Timeout)
        self.requests: list[tuple[Hashable, list[int]]] = []
        self.lost: list[str] = []
        self.bad: set[int] = set()
        self.ended: list[str] = []
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.turns: Turns[Hashable, int, str] = Turns(
            self.carriers, self._send, most_size=lambda: most_size, most=most, lost=self.lost.append
        )

    async def _send(self, kind: Hashable, calls: Sequence[int]) -> Sequence[str]:
        self.requests.append((kind, list(calls)))
        self.asked.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        if self.bad & set(calls):
            raise NotAccepted("no", code="bad", field="body")
        return [f"a{call}" for call in calls]

    async def call(self, number: int, size: int = 1, kind: Hashable = None) -> str:
        return await self.turns.call(number, size=size, kind=kind)

    def begin(self, *numbers: int) -> list["asyncio.Task[str]"]:
        return [asyncio.create_task(self.call(number)) for number in numbers]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from("xyz")), min_size=1, max_size=30),
    st.integers(1, 20),
    st.integers(1, 6),
    st.sets(st.integers(0, 29), max_size=6),
    st.sets(st.integers(0, 29), max_size=3),
)
def test_each_call_has_its_own_answer(
    calls: list[tuple[int, str]], most_size: int, most: int, leaving: set[int], bad: set[int]
) -> None:
    """In whatever requests the calls are cut, whoever leaves before the turn is over, and whichever requests fail."""

    async def run() -> None:
        service = Service(most_size=most_size, most=most)
        service.bad = bad
        tasks = [asyncio.create_task(service.call(at, *call)) for at, call in enumerate(calls)]
        asyncio.get_running_loop().call_soon(lambda: [tasks[at].cancel() for at in leaving if at < len(tasks)])
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        sent = {at: request for _, request in service.requests for at in request}
        assert sum(len(request) for _, request in service.requests) == len(sent), "none is sent twice"
        for kind, request in service.requests:
            assert request == sorted(request), "in the order of the calls"
            assert {calls[at][1] for at in request} == {kind}
            assert len(request) == 1 or sum(calls[at][0] for at in request) <= most_size
            assert len(request) <= most
        for at, answer in enumerate(answers):
            if at in leaving:
                assert isinstance(answer, asyncio.CancelledError)
            elif bad & set(sent[at]):
                assert isinstance(answer, NotAccepted)
                assert (answer.code, answer.field, str(answer)) == ("bad", "body", "no")
            else:
                assert answer == f"a{at}"
        errors = [answer for answer in answers if isinstance(answer, NotAccepted)]
        assert len({id(error) for error in errors}) == len(errors), "each raises its own"
        await service.carriers.close()

    asyncio.run(run())


async def test_a_call_alone_is_carried_by_its_caller() -> None:
    service = Service()
    service.go.clear()
    [task] = service.begin(1)
    await service.asked.wait()
    assert not service.carriers._tasks
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert service.ended == ["cancelled"]


async def test_who_leaves_takes_nobody_along_and_the_last_one_ends_the_request() -> None:
    service = Service()
    service.go.clear()
    one, two, three = service.begin(1, 2, 3)
    await service.asked.wait()
    one.cancel()
    await asyncio.wait({one})
    assert service.ended == []
    service.go.set()
    assert [await two, await three] == ["a2", "a3"]
    assert service.lost == ["a1"]
    service.go.clear()
    tasks = service.begin(4, 5)
    service.asked.clear()
    await service.asked.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)
    assert service.ended == ["cancelled"]


async def test_an_answer_that_meets_its_caller_leaving_is_lost_not_forgotten() -> None:
    service = Service()
    tasks: list[asyncio.Task[str]] = []

    async def send(_kind: Hashable, calls: Sequence[int]) -> Sequence[str]:
        asyncio.get_running_loop().call_soon(tasks[0].cancel)  # between the answer and the caller's next step
        return [f"a{call}" for call in calls]

    service.turns._send = send
    tasks += service.begin(1, 2)
    await asyncio.wait(tasks)
    assert (tasks[0].cancelled(), tasks[1].result()) == (True, "a2")
    assert service.lost == ["a1"]


async def test_a_close_ends_what_is_under_way_as_unknown_and_what_comes_later_as_not_done() -> None:
    service = Service()
    service.go.clear()
    tasks = service.begin(1, 2)
    await service.asked.wait()
    await service.carriers.close()
    for task in tasks:
        with pytest.raises(Timeout):
            await task
    for task in service.begin(3, 4):
        with pytest.raises(Unavailable):
            await task
    assert service.requests == [(None, [1, 2])]


async def test_answers_that_do_not_fit_the_calls_are_nobodys() -> None:
    service = Service()

    async def too_few(_kind: Hashable, _calls: Sequence[int]) -> Sequence[str]:
        return ["a1"]

    service.turns._send = too_few
    for task in service.begin(1, 2):
        with pytest.raises(ValueError, match="2 calls have 1 answers"):
            await task


async def test_what_fills_a_request_is_sent_while_the_turn_goes_on() -> None:
    """Of calls that one turn makes, those that follow find it under way. The rest leaves when the turn is over."""
    sent: list[list[int]] = []
    seen: list[int] = []

    def send(_kind: None, calls: Sequence[int]) -> Deferred[Sequence[str]]:
        sent.append(list(calls))
        return Deferred(lambda: answered(calls))

    async def answered(calls: Sequence[int]) -> Sequence[str]:
        return [f"a{call}" for call in calls]

    turns = Turns(Carriers(Unavailable, Timeout), send, most_size=lambda: 1_000, most=4, sends_now=True)

    async def call(number: int) -> str:
        seen.append(len(sent))
        return await turns.call(number, size=1, kind=None)

    assert await asyncio.gather(*map(call, range(10))) == [f"a{number}" for number in range(10)]
    assert sent == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
