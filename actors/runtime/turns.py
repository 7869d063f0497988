"""Calls that are made in the same turn of the event loop travel together.

Nothing is delayed for it: the calls leave when the turn is over, cut into requests by their bytes and their number. As
many as fill a request leave at once, so that the receiver works on them while the turn goes on.
Each call has its own answer, or its own error. In a request the calls stand in the order in which they were made.

A call that was alone in its turn is carried by its own caller, who may be cancelled over it. Calls that travel together
are carried by a task of their own, since each of their callers may leave while others wait. Its outcome goes to the
callers, so nobody else has to see it fail. When all of them have left, it is cancelled. A close cancels what is left.
There is no task group, since programs open and close clients in different tasks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from actors.runtime.rules.parts import parts_of

_C = TypeVar("_C")
_A = TypeVar("_A")
_K = TypeVar("_K", bound=Hashable)
CLOSED = "closed meanwhile"


class Deferred(Generic[_A]):
    """An awaitable that begins `begin` when it is awaited. If it never is, it leaves nothing behind."""

    def __init__(self, begin: Callable[[], Awaitable[_A]]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, None, _A]:
        return self._begin().__await__()


class Carriers:
    """The tasks that carry calls. What a close meets ends with the errors `not_done` and `unknown`."""

    def __init__(self, not_done: Callable[[str], Exception], unknown: Callable[[str], Exception]) -> None:
        self.not_done, self.unknown = not_done, unknown
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_closed = False

    def start(self, carry: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        """Start a task. Raises `not_done` after the close."""
        try:
            self.check_open()
        except Exception:
            carry.close()
            raise
        task = asyncio.get_running_loop().create_task(carry)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def check_open(self) -> None:
        """Raise `not_done` after the close."""
        if self.is_closed:
            raise self.not_done(f"{CLOSED}; nothing was done")

    async def close(self, wait_s: float = 0.0) -> None:
        """Let them end by themselves for `wait_s`. Then cancel all, and wait until they have ended."""
        self.is_closed = True
        if self._tasks and wait_s:
            await asyncio.wait(tuple(self._tasks), timeout=wait_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))


class _Ride(Generic[_K, _C, _A]):
    """One call on its way. Its future ends with the answer, or with None: the call is alone, and its caller carries
    it. `sent`: it is sent already. `carrier`: the task that carries it together with others."""

    __slots__ = ("call", "carrier", "ended", "kind", "sent", "size")

    def __init__(self, call: _C, size: int, kind: _K) -> None:
        self.call = call
        self.size = size
        self.kind = kind
        self.ended: asyncio.Future[_A | None] = asyncio.get_running_loop().create_future()
        self.sent: Awaitable[Sequence[_A]] | None = None
        self.carrier: _Carrier[_K, _C, _A] | None = None


class _Carrier(Generic[_K, _C, _A]):
    """A task, and what it carries."""

    def __init__(self, rides: Sequence[_Ride[_K, _C, _A]]) -> None:
        self.rides = rides
        self.task: asyncio.Task[None] | None = None

    def leave_if_empty(self) -> None:
        if self.task is not None and all(ride.ended.done() for ride in self.rides):
            self.task.cancel()


class Turns(Generic[_K, _C, _A]):
    """The calls of one operation. `send(kind, calls)` sends calls of one kind, and returns their answers in the same
    order. `most_size` and `most`: limits of one request. `lost` gets the answer to a call whose caller has left.
    `sends_now`: `send` sends before it is awaited, and it does no harm if it never is."""

    def __init__(
        self,
        carriers: Carriers,
        send: Callable[[_K, Sequence[_C]], Awaitable[Sequence[_A]]],
        *,
        most_size: Callable[[], int],
        most: int,
        lost: Callable[[_A], None] = lambda _answer: None,
        sends_now: bool = False,
    ) -> None:
        self._carriers = carriers
        self._send = send
        self._sends_now = sends_now
        self._most_size = most_size
        self._most = most
        self._lost = lost
        self._boarding: list[_Ride[_K, _C, _A]] = []

    async def call(self, call: _C, *, size: int, kind: _K) -> _A:
        """Return the answer to one call. Calls of the same `kind` may travel together. Raises what `send` raises."""
        if not self._boarding:
            asyncio.get_running_loop().call_soon(self._depart)
        ride: _Ride[_K, _C, _A] = _Ride(call, size, kind)
        self._boarding.append(ride)
        if len(self._boarding) >= self._most:
            self._depart()
        try:
            answer = await ride.ended
        except asyncio.CancelledError:
            self._left(ride)
            raise
        if answer is not None:
            return answer
        [answer] = await self._one_each(ride.sent or self._send(kind, [call]), 1)
        return answer

    def _depart(self) -> None:
        """The turn is over, or a request is full."""
        boarding, self._boarding = self._boarding, []
        kinds: dict[_K, list[_Ride[_K, _C, _A]]] = {}
        for ride in boarding:
            if not ride.ended.done():  # else its caller has left, and nothing was sent
                kinds.setdefault(ride.kind, []).append(ride)
        for kind, rides in kinds.items():
            sizes = [ride.size for ride in rides]
            for part in parts_of(sizes, self._most_size(), self._most):
                self._take(kind, rides[part])

    def _take(self, kind: _K, rides: Sequence[_Ride[_K, _C, _A]]) -> None:
        calls = [ride.call for ride in rides]
        if len(rides) == 1:
            rides[0].sent = self._send(kind, calls) if self._sends_now else None
            rides[0].ended.set_result(None)
            return
        carrier = _Carrier(rides)
        for ride in rides:
            ride.carrier = carrier
        try:
            self._carriers.check_open()
            answers = self._send(kind, calls) if self._sends_now else Deferred(partial(self._send, kind, calls))
            carrier.task = self._carriers.start(self._carry(answers, rides))
        except Exception as error:
            _fail(rides, error)

    async def _carry(self, sent: Awaitable[Sequence[_A]], rides: Sequence[_Ride[_K, _C, _A]]) -> None:
        try:
            answers = await self._one_each(sent, len(rides))
        except asyncio.CancelledError:
            _fail(rides, self._carriers.unknown(f"{CLOSED}; it may have been done"))
            raise
        except Exception as error:  # it is the callers' who wait
            _fail(rides, error)
            return
        for ride, answer in zip(rides, answers, strict=True):
            if ride.ended.done():
                self._lost(answer)
            else:
                ride.ended.set_result(answer)

    async def _one_each(self, sent: Awaitable[Sequence[_A]], calls: int) -> Sequence[_A]:
        answers = await sent
        if len(answers) != calls:
            raise ValueError(f"{calls} calls have {len(answers)} answers")
        return answers

    def _left(self, ride: _Ride[_K, _C, _A]) -> None:
        """Forget a caller that was cancelled, perhaps with its answer on the way."""
        if not ride.ended.cancelled() and ride.ended.done() and ride.ended.exception() is None:
            answer = ride.ended.result()
            if answer is not None:
                self._lost(answer)
        elif ride.carrier is not None:
            ride.carrier.leave_if_empty()


def _fail(rides: Sequence[_Ride[_K, _C, _A]], error: Exception) -> None:
    for ride in rides:
        if not ride.ended.done():
            ride.ended.set_exception(_own(error))


def _own(error: Exception) -> Exception:
    """Return an error for one of several callers: each raises it, and so writes into it."""
    own = type(error).__new__(type(error))
    own.args = error.args
    own.__dict__.update(error.__dict__)
    own.__cause__ = error
    return own
