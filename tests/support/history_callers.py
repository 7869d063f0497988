"""The callers of a history check: they add, take, settle, delete and look, on few ids, and write down all of it."""

import json
import random
import secrets
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import IO, Any

import anyio
import msgspec

from streams.clock import now_ms
from tests.support.history_doors import TTR_MS, ClientDoor, Door, Held, RestDoor, Wish
from tests.support.job_history import Op, Told, What

HANDLED, HELD, CROWD = "handled", "held", "crowd"
IDS = [f"k{number}" for number in range(6)]
"""Few, so that callers meet. Each topic has its own, for `/queue` finishes by the id alone."""
PAUSE_S, REFUSED_S = 0.03, 0.3
"""Between calls; longer where nobody is there to be asked."""
CROWD_SIZE, BEFORE_MS, PUT_BACK_MS = 200, 150, 800
"""So many at once, settled so long before their TTR's end; and when after it the server wants to put them back."""
REPEATS = 3
"""How often an add of unknown outcome is repeated."""


class History:
    """What was done, in memory and in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ops: list[Op] = []
        self._file: IO[bytes] = path.open("wb")

    def take(self, op: Op) -> None:
        self.ops.append(op)
        self._file.write(msgspec.json.encode(op) + b"\n")

    def write(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def runs_of(notes: Path) -> Iterator[Op]:
    """Yield what the handlers wrote down."""
    for line in notes.read_bytes().splitlines() if notes.exists() else []:
        what, job_id, token, attempt, at_ms, pid = json.loads(line)
        yield Op(
            what=what,
            topic=HANDLED,
            id=job_id,
            began_ms=at_ms,
            ended_ms=at_ms,
            token=token,
            attempt=attempt,
            receipt=f"{pid}",
            caller=f"process {pid}",
        )


class Caller:
    """One caller at one door."""

    def __init__(self, door: Door, history: History, chance: random.Random) -> None:
        self._door = door
        self._history = history
        self._chance = chance
        self._was_refused = False

    async def run(self, until: anyio.Event) -> None:
        while not until.is_set():
            self._was_refused = False
            await self._step()
            await anyio.sleep(self._chance.uniform(0, 2 * (REFUSED_S if self._was_refused else PAUSE_S)))

    async def _step(self) -> None:
        topic = self._chance.choice((HELD, HELD, HANDLED))
        job_id = f"{topic}-{self._chance.choice(IDS)}"
        dice = self._chance.random()
        if dice < 0.4:
            await self._add(topic, job_id)
        elif dice < 0.8:
            await self._take()
        elif dice < 0.9:
            await self._call("delete", topic, job_id)
        else:
            await self._call("peek", topic, job_id)

    # ---- what is called, and written down

    async def _add(self, topic: str, job_id: str) -> None:
        chance, token = self._chance, secrets.token_hex(8)
        if self._door.name == "publish" and chance.random() < 0.5:
            job_id = token
        delay_ms = chance.choice((0, 0, chance.randint(300, 2_000)))
        on_same = chance.choice(("keep", "keep", "keep", "replace", "error")) if self._door.name != "queue" else "keep"
        wish = Wish(topic, job_id, token, delay_ms, on_same)
        began_ms, times = now_ms(), 1
        told = await self._door.add(wish)
        while told == "unknown" and self._door.name in ("rest", "queue", "service") and times <= REPEATS:
            await anyio.sleep(chance.uniform(0, 0.5))
            times += 1
            again = await self._door.add(wish)
            told = again if again != "not done" else "unknown"  # of this try alone
        self._take_down(
            "add", topic, job_id, began_ms, told, token=token, delay_ms=delay_ms, on_same=on_same, note=f"{times} tries"
        )

    async def _take(self) -> None:
        chance, began_ms = self._chance, now_ms()
        for held in await self._door.take(HELD, chance.randint(1, 3), chance.choice((0, 0, 500))):
            self._history.take(run_of(HELD, held, began_ms, self._door.name))
            await self._end(held)

    async def _end(self, held: Held) -> None:
        chance, hows = self._chance, self._door.hows
        if not hows:
            if chance.random() < 0.8:
                began_ms = now_ms()
                told, _ = await self._door.settle("finish", held)
                self._take_down("finish by id", HELD, held.id, began_ms, told)
            return
        dice = chance.random()
        if dice < 0.15:  # let it lapse, and settle it when it is not ours any more, and has just not been put back
            await anyio.sleep(max(0, held.until_ms + chance.randint(360, 460) - now_ms()) / 1000)
            await self._settle("finish", held)
            return
        if dice < 0.25 and "release" in hows:  # at the same time: only one of them may hold
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._settle, "release", held)
                tasks.start_soon(self._settle, "finish", held)
            return
        if dice < 0.35:
            await self._call("delete", HELD, held.id)
        elif dice < 0.6:
            how: Any = chance.choice(hows)
            if how == "bury" and held.id != held.token:  # the id of a buried job stays taken for an hour
                how = "finish"
            await self._settle(how, held)
            if how != "touch" and chance.random() < 0.8:
                return
        await anyio.sleep(chance.choice((0, 0, chance.uniform(0, 0.3))))
        for _ in range(chance.choice((1, 1, 1, 2))):
            await self._settle("finish", held)

    async def _settle(self, how: What, held: Held, topic: str = HELD) -> None:
        delay_ms = self._chance.choice((0, 800)) if how == "release" else 0
        began_ms = now_ms()
        asked = {"delay_ms": delay_ms} if how == "release" else {}
        told, until_ms = await self._door.settle(how, held, **asked)
        self._take_down(
            how,
            topic,
            held.id,
            began_ms,
            told,
            token=held.token,
            attempt=held.attempt,
            receipt=held.receipt,
            delay_ms=delay_ms,
            until_ms=until_ms,
        )

    async def _call(self, what: What, topic: str, job_id: str) -> None:
        began_ms, token = now_ms(), ""
        told: Told
        if what == "delete":
            told = await self._door.delete(topic, job_id)
        else:
            told, token = await self._door.peek(topic, job_id)
        self._take_down(what, topic, job_id, began_ms, told, token=token)

    def _take_down(self, what: What, topic: str, job_id: str, began_ms: int, told: Told, **facts: object) -> None:
        op = Op(
            what=what,
            topic=topic,
            id=job_id,
            began_ms=began_ms,
            ended_ms=now_ms(),
            told=told,
            caller=self._door.name,
            **facts,  # type: ignore[arg-type]
        )
        self._history.take(op)
        self._was_refused = self._was_refused or told == "not done"

    # ---- the end

    async def take_all(self) -> None:
        """Take what is there, and finish it."""
        for topic in (HELD, CROWD):
            began_ms = now_ms()
            async with anyio.create_task_group() as tasks:
                for held in await self._door.take(topic, 50, 500):
                    self._history.take(run_of(topic, held, began_ms, self._door.name))
                    tasks.start_soon(self._settle, "finish", held, topic)


def run_of(topic: str, held: Held, began_ms: int, caller: str) -> Op:
    """Return what is written down of a job that was handed out."""
    return Op(
        what="run",
        topic=topic,
        id=held.id,
        began_ms=began_ms,
        ended_ms=now_ms(),
        token=held.token,
        attempt=held.attempt,
        until_ms=held.until_ms,
        receipt=held.receipt,
        caller=caller,
    )


class Crowd:
    """Many jobs that are held at the same time, and finished at the end of their TTR, while the server stands still."""

    def __init__(self, door: ClientDoor, http: RestDoor, history: History) -> None:
        self._door = door
        self._http = http  # not over the server that stands still
        self._history = history

    async def meet(self, stop: Callable[[float], Coroutine[Any, Any, None]]) -> None:
        """Add, hold and finish them; `stop` makes the server stand still for so many seconds."""
        tokens = [secrets.token_hex(8) for _ in range(CROWD_SIZE)]
        began_ms = now_ms()
        for token, told in zip(tokens, await self._door.add_all(CROWD, tokens), strict=True):
            self._take("add", token, began_ms, told, token=token)
        held: list[Held] = []
        until_ms = now_ms() + TTR_MS // 2
        while len(held) < CROWD_SIZE and now_ms() < until_ms:
            began_ms = now_ms()
            some = await self._door.take(CROWD, CROWD_SIZE, 100)
            held += some
            for each in some:
                self._history.take(run_of(CROWD, each, began_ms, self._door.name))
        if not held:
            return
        await anyio.sleep(max(0, held[0].until_ms - BEFORE_MS - now_ms()) / 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop, (BEFORE_MS + PUT_BACK_MS) / 1000)
            await anyio.sleep(0.02)
            began_ms = now_ms()
            for each, told in zip(held, await self._http.finish_all(held), strict=True):
                self._take(
                    "finish", each.id, began_ms, told, token=each.token, attempt=each.attempt, receipt=each.receipt
                )

    def _take(self, what: What, job_id: str, began_ms: int, told: Told, **facts: Any) -> None:
        op = Op(what=what, topic=CROWD, id=job_id, began_ms=began_ms, ended_ms=now_ms(), told=told, **facts)
        self._history.take(op)
