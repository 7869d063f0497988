"""Store notices: reports the state of the server's store, and of the stores of sinks, to an administrator, once for all
nodes that detect it.

In: notices of this node's store watch and sinks. Out: the same notices to the webhook and by mail, unless another node
has sent them. State: a mark of the last notice stays in the bucket of leases for a minute. No node leads here, because
each node sees its own server, disk and sinks only. So all nodes that detect a change wait for their turn, in the order
of the live nodes, and the first one sends the notice.
If the store does not take the mark, each node sends the notice. If the webhook does not take the first node's notice,
the next node sends it too. When it cannot go on: `Alerts` tries the webhook again and again.
"""

from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL, ticks
from actors.runtime.broker.store_watch import WENT_BACK
from actors.runtime.membership import Members
from actors.runtime.notices.alerts import Alerts
from actors.runtime.rules.notices import Notice
from actors.runtime.rules.placement import ranking
from streams.buckets.bucket import Bucket
from streams.errors import StreamError
from streams.subjects import token_of

ROLE = "monitor"
TURN_S = 5.0
MOST_TURNS = 8
MARK_S = 60
"""Longer than the last node waits for its turn."""
LOOK_S = 0.5
ASK_S = 3.0


def turn_of(members: Members) -> int:
    """Return how many live monitors report before this node."""
    monitors = [name for name, each in members.live().items() if each.has_role(ROLE)]
    return ranking("store", [*monitors, members.name]).index(members.name)


class StoreNotices:
    """One node's store notices. `turn()`: how many other nodes come before it. `webhook()`: where notices go."""

    def __init__(
        self, alerts: Alerts, marks: Bucket[bytes], *, turn: Callable[[], int], webhook: Callable[[], str]
    ) -> None:
        self._alerts = alerts
        self._marks = marks
        self._turn = turn
        self._webhook = webhook
        self._new: dict[str, Notice] = {}
        self._news = anyio.Event()
        self._latest: dict[str, Notice] = {}

    @property
    def is_idle(self) -> bool:
        """Return whether this node or another has sent all notices."""
        return not self._latest

    def tell(self, notice: Notice) -> None:
        """Queue a notice. The current state of the store replaces the state before."""
        place = _place(notice)
        self._latest[place] = notice
        self._alerts.keep_only(self._latest.keys() - {place})
        self._new[place] = notice
        self._news.set()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Send for ever, also the notices queued before."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._alerts.run)
            task_status.started()
            while True:
                new, self._new = self._new, {}
                for notice in new.values():
                    tasks.start_soon(self._send, notice)
                await self._news.wait()
                self._news = anyio.Event()

    async def _send(self, notice: Notice) -> None:
        await anyio.sleep(TURN_S * min(self._turn(), MOST_TURNS))
        if self._is_new(notice) and not await self._is_sent(notice):
            self._alerts.submit(_place(notice), notice, self._webhook)
            async for _ in ticks(lambda: LOOK_S, anyio.Event()):
                if not self._is_new(notice):
                    return
                if self._alerts.is_sent(_place(notice)):
                    await self._mark(notice)
                    break
        if self._is_new(notice):
            del self._latest[_place(notice)]

    def _is_new(self, notice: Notice) -> bool:
        return self._latest.get(_place(notice)) is notice

    async def _is_sent(self, notice: Notice) -> bool:
        try:
            mark = await self._marks.get(_place(notice), timeout_s=ASK_S)
        except FATAL:
            raise
        except StreamError:
            return False
        return mark is not None and mark.value == notice.kind.encode()

    async def _mark(self, notice: Notice) -> None:
        try:
            await self._marks.put(_place(notice), notice.kind.encode(), ttl_s=MARK_S, timeout_s=ASK_S)
        except FATAL:
            raise
        except StreamError:
            return  # the other nodes send it too


def _place(notice: Notice) -> str:
    """Return the key of the mark. A store that went back in time has a mark beside the one of the store's state."""
    return f"told.{notice.kind if notice.kind == WENT_BACK else token_of(notice.source)}"
