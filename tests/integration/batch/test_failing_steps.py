"""Steps that fail in the broker: what would go the same way each time is a failure, what passes goes round again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import anyio
import pytest

import penstock
from penstock.rows.sheets.limits import ReaderEnded
from streams.buckets.files import DamagedFile
from streams.clock import monotonic_s
from streams.errors import (
    Disconnected,
    NoStream,
    OutcomeUnknown,
    Refused,
    RevisionConflict,
    StoreFull,
    StreamError,
    TooLarge,
)
from streams.link.connection import Connection
from tests.support.batches import LONG_S, plant
from tests.support.moments import a_moment

ATTEMPTS = 2


class Log:
    """What befalls the task of one test, so many times, and how often it ran."""

    error: StreamError
    times = 0
    runs = 0


log = Log()


@penstock.batch("in-trouble", attempts=ATTEMPTS, retry_base_s=0.01)
class InTrouble:
    async def split(self, ctx: penstock.SplitContext) -> None:
        log.runs += 1
        if log.runs <= log.times:
            raise log.error
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        return None


@pytest.mark.parametrize(
    "error",
    [
        DamagedFile("file 'a': 1 bytes of 2 are there"),
        TooLarge("maximum payload exceeded", subject="items"),
        Refused("too many", subject="items", code=413),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_stays_as_it_is_fails_after_its_attempts_and_says_so(
    connection: Connection, error: StreamError
) -> None:
    log.error, log.times, log.runs = error, 1_000, 0
    async with plant(connection, ["in-trouble"]) as node:
        view = await node.run("in-trouble")
    assert (view.state, view.reason) == ("failed", f"splitting: {type(error).__name__}: {error}")
    assert log.runs == ATTEMPTS


@pytest.mark.parametrize(
    "error",
    [
        Disconnected("no connection"),
        OutcomeUnknown("no answer", subject="items"),
        RevisionConflict("wrong last sequence: 7", subject="items", err_code=10071),
        StoreFull("insufficient storage", subject="items", err_code=10047),
        NoStream("nobody answers", subject="items", code=503),
        Refused("JetStream system temporarily unavailable", subject="items", code=503, err_code=10008),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_passes_uses_up_no_attempt(
    connection: Connection, error: StreamError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.executor.executor.AGAIN_S", 0.01)
    log.error, log.times, log.runs = error, ATTEMPTS + 2, 0
    async with plant(connection, ["in-trouble"]) as node:
        view = await node.run("in-trouble")
    assert (view.state, view.counts.succeeded) == ("done", 1)
    assert log.runs == ATTEMPTS + 3


@penstock.batch("too-large-a-result", attempts=ATTEMPTS, retry_base_s=0.01)
class TooLargeAResult:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> str:
        log.runs += 1
        return "x" * 1_100_000


async def test_a_result_that_no_record_can_hold_fails_and_says_so(connection: Connection) -> None:
    log.runs = 0
    async with plant(connection, ["too-large-a-result"]) as node:
        view = await node.run("too-large-a-result")
    assert (view.state, view.reason[:20]) == ("failed", "reducing: TooLarge: ")
    assert log.runs == ATTEMPTS


class Tries:
    """When the step of one test ran, and whether its code asks for no other try."""

    at_s: ClassVar[list[float]] = []
    is_final = False


def fail() -> None:
    Tries.at_s.append(monotonic_s())
    if Tries.is_final:
        raise penstock.Reject("the sheet has no column `sku`")
    raise ValueError("no link to the shop")


WAIT_S = 1.5


@penstock.batch("fails-to-split", attempts=2, retry_base_s=WAIT_S, retry_cap_s=60)
class FailsToSplit:
    async def split(self, ctx: penstock.SplitContext) -> None:
        fail()

    async def map(self, item: int) -> None:
        return None


@penstock.batch("fails-to-reduce", attempts=2, retry_base_s=WAIT_S, retry_cap_s=60)
class FailsToReduce:
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        return None

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        fail()


STEPS = [("fails-to-split", "splitting"), ("fails-to-reduce", "reducing")]


@pytest.mark.parametrize(("task", "state"), STEPS)
async def test_a_step_that_failed_waits_before_its_next_try_and_says_so(
    connection: Connection, task: str, state: str
) -> None:
    Tries.at_s, Tries.is_final = [], False
    async with plant(connection, [task]) as node:
        view = await node.submit(task, [])
        with anyio.fail_after(LONG_S):
            while (why := await node.desk.why(view.instance_id)).code != "retry":
                await a_moment()
        assert why.until_ms
        assert why.reason.endswith(f"failed and waits for its next try: {state}: ValueError: no link to the shop")
        view = await node.until(view.instance_id, "failed")
    assert view.reason == f"{state}: ValueError: no link to the shop"
    first_s, second_s = Tries.at_s
    assert second_s - first_s >= WAIT_S * 0.9


@penstock.batch("fails-once-each", attempts=2, retry_base_s=0.01)
class FailsOnceEach:
    """Each of its steps and its item fails the first time."""

    failed: ClassVar[set[str]] = set()

    async def split(self, ctx: penstock.SplitContext) -> None:
        self._fail_once("split")
        await ctx.commit(1)

    async def map(self, item: int) -> None:
        self._fail_once("map")

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        self._fail_once("reduce")

    def _fail_once(self, what: str) -> None:
        if what not in self.failed:
            self.failed.add(what)
            raise OSError("busy")


async def test_what_failed_runs_again_at_its_time_and_not_at_the_next_look(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.batch.conductor.LOOK_MS", 600_000)
    FailsOnceEach.failed.clear()
    async with plant(connection, ["fails-once-each"]) as node:
        view = await node.run("fails-once-each")
    assert (view.state, view.counts.succeeded) == ("done", 1)
    assert FailsOnceEach.failed == {"split", "map", "reduce"}


@pytest.mark.parametrize(("task", "state"), STEPS)
async def test_a_step_that_rejects_its_batch_has_no_other_try(connection: Connection, task: str, state: str) -> None:
    Tries.at_s, Tries.is_final = [], True
    async with plant(connection, [task]) as node:
        view = await node.run(task)
    assert (view.state, view.reason) == ("failed", f"{state}: the sheet has no column `sku`")
    assert len(Tries.at_s) == 1


class Reads:
    """How often a split of the test below began, and what it then raises by itself."""

    count = 0
    error: Exception | None = None


@penstock.batch("reads-its-sheet", attempts=ATTEMPTS, retry_base_s=0.01)
class ReadsItsSheet:
    async def split(self, ctx: penstock.SplitContext) -> None:
        Reads.count += 1
        if Reads.error is not None:
            raise Reads.error
        async for rows in penstock.read_sheet(ctx.files, ctx.input["file"], encoding="shift-jis"):
            await ctx.commit(*(number for number, _ in rows))

    async def map(self, item: int) -> None:
        return None


async def _bytes(text: bytes) -> AsyncIterator[bytes]:
    yield text


async def test_a_bad_sheet_has_no_other_try_and_says_where_it_is_bad(connection: Connection) -> None:
    Reads.count, Reads.error = 0, None
    async with plant(connection, ["reads-its-sheet"]) as node:
        view = await node.submit("reads-its-sheet", upload=_bytes(b'a,b\n1,"2\n'), name="rows.csv")
        view = await node.until(view.instance_id, "failed")
    assert view.reason.startswith("splitting: line 2: ")
    assert Reads.count == 1


@penstock.batch("large-rows", attempts=ATTEMPTS, retry_base_s=0.01)
class LargeRows:
    async def map(self, row: dict[str, Any]) -> None:
        return None


async def test_a_row_that_is_too_large_is_named_and_has_no_other_try(connection: Connection) -> None:
    rows = b"".join(b'{"n":%d,"text":"%b"}\n' % (n, b"x" * (300_000 if n == 2 else 10)) for n in range(4))
    async with plant(connection, ["large-rows"]) as node:
        view = await node.submit("large-rows", upload=_bytes(rows), name="rows.jsonl")
        view = await node.until(view.instance_id, "failed")
        record = await node.record(view.instance_id)
    assert view.reason.startswith("splitting: row 3: 300021 bytes, at most 262144; put what is large into a file")
    assert record.step_fence == 1, "another try would read the same row"


async def test_a_sheet_whose_reader_was_killed_is_read_again(connection: Connection) -> None:
    Reads.count, Reads.error = 0, ReaderEnded("the file cannot be read: it was killed")
    async with plant(connection, ["reads-its-sheet"]) as node:
        view = await node.run("reads-its-sheet")
    assert view.reason == "splitting: ReaderEnded: the file cannot be read: it was killed"
    assert Reads.count == ATTEMPTS


async def test_an_upload_ends_when_the_store_gets_full_and_leaves_the_room_that_is_kept(connection: Connection) -> None:
    async def large() -> AsyncIterator[bytes]:
        yield b"a\n" * 1_000_000
        connection.store.full = "the disk of the server's store is full"
        yield b"1\n" * 1_000_000

    async with plant(connection, ["large-rows"]) as node:
        try:
            with pytest.raises(StoreFull):
                await node.submit("large-rows", upload=large(), name="rows.csv", id="huge")
        finally:
            connection.store.full = ""
        assert await node.engine.desk.new._files.ids_of("huge") == {}, "what came before takes no room"
