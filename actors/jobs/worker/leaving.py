"""The jobs that leave a topic without a run. Those above its limit are given back, those without a slot are
put off or dropped, and those that must not run are ended. That may take long, so it is a task of its own."""

from collections.abc import Iterable, Iterator, Sequence

import anyio

from actors.jobs.worker.ends import Ends
from actors.jobs.worker.settling import Unfit
from actors.jobs.worker.shared import Shared
from streams.clock import monotonic_s
from streams.errors import MalformedMessage
from streams.messages.jobs import JobRecord, decode_job
from streams.pull.delivery import Delivery


class Leaving:
    """What leaves one topic. `run` sees it off."""

    def __init__(self, ends: Ends, shared: Shared) -> None:
        self._ends = ends
        self._shared = shared
        self._changed = anyio.Event()
        self._under_way: list[Delivery] = []
        self.forget()

    def forget(self) -> None:
        """All that was to leave may be somebody else's."""
        self._excess: list[Delivery] = []
        self._unfit: list[Unfit] = []
        self._put_offs: list[tuple[Delivery, float]] = []
        self._dropped: list[Delivery] = []

    def __iter__(self) -> Iterator[Delivery]:
        """Return those that have not left yet."""
        yield from self._excess
        yield from self._under_way
        yield from self._dropped
        yield from (one.delivery for one in self._unfit)
        yield from (delivery for delivery, _ in self._put_offs)

    def excess(self, deliveries: Iterable[Delivery]) -> None:
        """Give these back: they are more than the node may hold."""
        self._excess += deliveries
        self._changed.set()

    def put_off(self, delivery: Delivery, delay_s: float) -> None:
        """Have this one come again later."""
        self._put_offs.append((delivery, delay_s))
        self._changed.set()

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """End these without a run: newer ones of their key took their slots."""
        self._dropped += deliveries
        self._changed.set()

    def set_aside(self, one: Unfit) -> None:
        """End this one: it must not run."""
        self._unfit.append(one)
        self._changed.set()

    async def run(self) -> None:
        """See off what leaves, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            excess, unfit, put_offs, dropped = self._excess, self._unfit, self._put_offs, self._dropped
            self.forget()
            self._under_way = [*excess, *dropped, *(one.delivery for one in unfit), *(one for one, _ in put_offs)]
            if unfit:
                self._ends.count("set_aside", len(unfit))
                await self._shared.settling.set_aside(unfit)
            await self.give_back(excess)
            await self._ends.put_off(put_offs)
            await self._ends.drop(dropped)
            self._under_way = []

    async def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Let other nodes have the jobs that did not begin, or did not end before the node had to stop. No attempt is
        counted. A job that another node may hold by now is left alone: a move of ours would take it from that node."""
        unstarted: list[tuple[Delivery, JobRecord]] = []
        is_ours = self._shared.hold.is_sure(monotonic_s())
        for delivery in deliveries:
            if not is_ours:
                delivery.forget()
                continue
            try:
                unstarted.append((delivery, decode_job(delivery.payload)))
            except MalformedMessage:
                delivery.forget()  # whoever gets it next buries it
        if unstarted:
            await self._shared.settling.give_back(unstarted)
