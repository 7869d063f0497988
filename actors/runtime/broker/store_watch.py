"""Store watch: knows the state of the server's store, and reports it to the doors and to an administrator.

In: the time, and each reconnect. Out: the state by which doors refuse adds (streams/link/store_health.py), what is in
doubt after a power cut (streams/store_memory.py), and a notice when the store is full, has failed or went back in time,
and when that is over. store_notices.py decides which node sends the notice. State: memory only, but for the file of
what was last seen. When it cannot go on: it looks again soon, and what was known stays.
"""

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from anyio.abc import TaskStatus

from actors.runtime.actor import FATAL
from actors.runtime.logs import fields
from actors.runtime.rules.notices import Notice
from streams.clock import until_turn_s
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.link.store_health import RESTART, StoreHealth, StoreState, reserve_of, room_at
from streams.store_memory import StoreMemory, WentBack

log = logging.getLogger(__name__)

REMEMBER_S = 5.0
"""How old a lost acknowledgement may be: a server that does not sync, and that alone lost power, may have lost what it
acknowledged within this time."""
HEALTH_S = 1.0
"""How often the store is looked at."""
UNLIMITED_S = 5.0
"""How often, while no limit of the store is known."""
AGAIN_S = 0.5
MAKE_ROOM = (
    "make room: finish or delete jobs, `penstock dead drop`, or a larger disk or limit; finishing and deleting go on,"
    " and adds do by themselves"
)
WENT_BACK = "store_went_back"
"""The kind of a notice."""
MOST_NAMED = 5
Tell = Callable[[Notice], None]


def why_full(health: StoreHealth, free: int | None, kept: int, *, was_full: bool) -> str:
    """Return why nothing should be added. Empty if there is room. Some room is reserved for settling and deleting. Once
    full, a fifth more must come free, so that the state does not change with each job."""
    more = 6 if was_full else 5
    if health.limit and health.used > health.limit - reserve_of(health.limit) * more // 5:
        return f"the server's store is full: {health.used:,} of {health.limit:,} bytes are used"
    if free is not None and free < kept * more // 5:
        return f"the disk of the server's store is full: {free:,} bytes are free"
    return ""


def rest_s(health: StoreHealth, *, sees_disk: bool) -> float:
    """Return how soon to look again. Without any limit that is known, nothing can be learned but that there is one."""
    return HEALTH_S if health.limit or health.failed or sees_disk else UNLIMITED_S


def closed_streams(health: StoreHealth, *, is_clustered: bool) -> frozenset[str]:
    """Return the streams that take nothing: on a single server those that failed. In a cluster others have them too."""
    return frozenset() if is_clustered else health.failed_streams


def _log(notice: Notice) -> None:
    if notice.what_to_do:
        log.error("store.troubled", extra=fields(kind=notice.kind, text=notice.text, do=notice.what_to_do))
    else:
        log.info("store.well", extra=fields(text=notice.text))


class HealthWatch:
    """Knows whether the server's store is full, or has failed. `health` returns the state of the server. `folder`:
    where the server's store lies, if that is on this machine. `report` gets a notice of each change."""

    def __init__(
        self,
        connection: Connection,
        *,
        health: Callable[[], Awaitable[StoreHealth | None]],
        folder: Path | None = None,
        report: Tell = _log,
    ) -> None:
        self._connection = connection
        self._health = health
        self._folder = folder
        self._report = report

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look for ever. Raises FATAL errors."""
        task_status.started()
        while True:
            every_s = await self._look()
            await anyio.sleep(until_turn_s(every_s))

    async def _look(self) -> float:
        """Look, and return how soon to look again."""
        try:
            health = await self._health()
        except FATAL:
            raise
        except StreamError:
            return HEALTH_S
        if health is None:
            return HEALTH_S
        free, kept = room_at(self._folder) if self._folder else (None, 0)
        self._judge(health, why_full(health, free, kept, was_full=bool(self._connection.store.full)))
        return rest_s(health, sees_disk=self._folder is not None)

    def _judge(self, health: StoreHealth, full: str) -> None:
        state, before = self._connection.store, self._connection.store.kind
        state.failed, state.full = health.failed and f"the server's store has failed: {health.failed}", full
        state.failed_streams = closed_streams(health, is_clustered=self._connection.is_clustered)
        if state.kind != before:
            self._report(_store_notice(state))


class StoreWatch:
    """One node's watch. `health` returns the state of its server. `folder`: where the server's store lies, if that is
    on this machine. `tell` may be set later."""

    def __init__(
        self,
        connection: Connection,
        memory: StoreMemory,
        *,
        health: Callable[[], Awaitable[StoreHealth | None]],
        folder: Path | None = None,
    ) -> None:
        self.tell: Tell = lambda notice: None
        self._connection = connection
        self._memory = memory
        self._health = HealthWatch(connection, health=health, folder=folder, report=self._report)
        self._soon = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Look for ever, and once before it has started. Raises FATAL errors."""
        remove = self._connection.on_reconnect(self._reconnected)
        try:
            is_seen = await self._remember()
            async with anyio.create_task_group() as tasks:
                await tasks.start(self._health.run)
                task_status.started()
                while True:
                    with anyio.move_on_after(until_turn_s(REMEMBER_S if is_seen else AGAIN_S)):
                        await self._soon.wait()
                    self._soon = anyio.Event()
                    is_seen = await self._remember()
        finally:
            remove()

    def _reconnected(self) -> None:
        self._memory.reconnected()
        self._soon.set()

    async def _remember(self) -> bool:
        try:
            behind = await self._memory.look()
        except FATAL:
            raise
        except StreamError as error:
            log.info("store.not_seen", extra=fields(error=str(error)))
            return False
        if behind:
            self._report(_went_back(behind))
        return True

    def _report(self, notice: Notice) -> None:
        _log(notice)
        self.tell(notice)


def _store_notice(state: StoreState) -> Notice:
    if state.failed:
        return Notice(kind="store_failed", source="store", text=state.failed, what_to_do=RESTART)
    if state.full:
        return Notice(kind="store_full", source="store", text=state.full, what_to_do=MAKE_ROOM)
    return Notice(kind="store_well", source="store", text="the server's store takes everything again", what_to_do="")


def _went_back(behind: list[WentBack]) -> Notice:
    named = [f"{one.stream} from {one.had} to {one.has}" for one in behind if one.had][:MOST_NAMED]
    others = f"{len(behind) - len(named)} more streams" if len(named) < len(behind) else ""
    changes = ", ".join((*named, others)).removesuffix(", ")
    return Notice(
        kind=WENT_BACK,
        source="store",
        text=f"the server's store went back in time: {changes}",
        what_to_do="a restored copy, or a power cut: see 'An older copy was restored' in docs/operations.md",
        facts={one.stream: one.has for one in behind},
    )
