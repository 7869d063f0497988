"""The catalogue's bad code of a task, rows 86 to 95, each by its number. After each the node lives, and another
instance runs to its end."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import penstock
from actors.batch.views import View
from streams.link.connection import Connection
from streams.messages.batch import Counts
from tests.support.batches import LONG_S, Plant, plant_in_its_own_task

QUICK: dict[str, Any] = {"attempts": 2, "retry_base_s": 0.01, "retry_cap_s": 0.02, "chunk_items": 3}
SECRET = "canary-2718"


class Log:
    """What the tasks of one test did."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.keys: list[str] = []
        self.seen: list[Any] = []
        self.reduces = 0
        self.gate = anyio.Event()
        self.began = anyio.Event()
        self.thread_gate = threading.Event()
        self.strays: list[asyncio.Task[None]] = []


log = Log()


@pytest.fixture(autouse=True)
def fresh_log() -> None:
    log.__init__()  # type: ignore[misc] # the tasks hold the object


class Mute(Exception):
    def __str__(self) -> str:
        raise OSError("no words")


ENDS: dict[str, BaseException] = {
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "closed": GeneratorExit("mine"),
    "cancelled": asyncio.CancelledError("mine"),
    "group": BaseExceptionGroup("two", [SystemExit(1), ValueError("x")]),
    "base": BaseException("odd"),
    "half": ValueError("half an emoji: \ud83d"),
    "mute": Mute(),
}
TOLD = {
    "exit": "SystemExit: 3",
    "interrupt": "KeyboardInterrupt",
    "closed": "GeneratorExit: mine",
    "cancelled": "CancelledError: mine",
    "group": "BaseExceptionGroup: two (2 sub-exceptions)",
    "base": "BaseException: odd",
    "half": "ValueError: half an emoji: ?",
    "mute": "Mute: it cannot be told",
}


class Base:
    """Commits what it was given, and counts how it ended."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)

    async def reduce(self, ctx: penstock.ReduceContext) -> Any:
        log.reduces += 1
        return {"ok": ctx.counts.succeeded}


@penstock.batch("odd-map", item_timeout_s=0.2, **QUICK)
class OddMap(Base):
    async def map(self, item: Any, ctx: penstock.ItemContext) -> Any:
        log.ran[ctx.index] += 1
        log.keys.append(ctx.key)
        match item:
            case "never":
                await anyio.sleep_forever()
            case "object":
                return object()
            case "nan":
                return float("nan")
            case "large":
                return "x" * 100_000
            case "deep":
                deep: list[Any] = []
                for _ in range(5_000):
                    deep = [deep]
                return deep
            case "stray":
                log.strays.append(asyncio.create_task(self.stray()))
            case {"n": _}:
                log.seen.append(dict(item))
                item["n"] = "changed"
                raise OSError("busy")
            case str() if item in ENDS:
                raise ENDS[item]
        return None

    async def stray(self) -> None:
        await log.gate.wait()
        raise ValueError("nobody waits for me")


@penstock.batch("odd-plain", item_timeout_s=1, **QUICK)
class OddPlain(Base):
    """Its code runs in threads."""

    def map(self, item: Any, ctx: penstock.ItemContext) -> None:
        log.ran[ctx.index] += 1
        if item == "never":
            log.thread_gate.wait()
        if item in ENDS:
            raise ENDS[item]


@penstock.batch("odd-list", item_timeout_s=1, **QUICK)
class OddList(Base):
    def map_many(self, items: list[Any], contexts: list[penstock.ItemContext]) -> list[Any]:
        log.ran.update(context.index for context in contexts)
        if "never" in items:
            log.thread_gate.wait()
        if "exit" in items:
            raise SystemExit(3)
        return [None] * (1 if "short" in items else len(items))


@penstock.batch("odd-steps", **QUICK)
class OddSteps(Base):
    async def split(self, ctx: penstock.SplitContext) -> None:
        match ctx.input:
            case {"split": "object"}:
                await ctx.commit(object())
            case {"split": "large"}:
                await ctx.commit("x" * 2_000_000)
            case {"split": end}:
                raise ENDS[end]
            case {"waits": n}:
                await ctx.commit(*range(n))
                log.began.set()
                await log.gate.wait()
            case _:
                await ctx.commit(*range(5))

    async def map_many(self, items: list[int]) -> None:
        log.ran.update(items)

    async def reduce(self, ctx: penstock.ReduceContext) -> Any:
        log.reduces += 1
        log.seen += [result.index async for page in ctx.read(2) for result in page]
        match ctx.input:
            case {"reduce": "object"}:
                return {"a": object()}
            case {"reduce": end}:
                raise ENDS[end]
        return None


TASKS = ("odd-map", "odd-plain", "odd-list", "odd-steps")


@pytest.fixture
async def node(connection: Connection) -> AsyncIterator[Plant]:
    async with plant_in_its_own_task(connection, TASKS) as running:
        yield running
        for task in TASKS[:3]:
            assert (await running.run(task, ["fine"])).counts == Counts(succeeded=1), task
        log.thread_gate.set()


async def told(node: Plant, view: View) -> list[Any]:
    return [item.info for item in (await node.desk.items.page(view.instance_id)).items]


# ---- 86: what it returns


async def test_86_what_an_item_returns_and_nobody_can_write_costs_what_it_told_alone(node: Plant) -> None:
    view = await node.run("odd-map", ["none", "object", "large", "deep", "nan"])
    assert view.counts == Counts(succeeded=5)
    nothing, odd, large, deep, nan = await told(node, view)
    assert (nothing, large, nan) == (None, None, None)  # what is beyond 2 KiB is left out
    assert "cannot be written as JSON" in odd["not_told"]
    assert "nested more deeply than 128 levels" in deep["not_told"]


async def test_86_too_few_answers_fail_all_of_the_list(node: Plant) -> None:
    view = await node.run("odd-list", ["short", "a", "b"])
    assert view.counts == Counts(failed=3)
    assert set(await told(node, view)) == {"map_many returned 1 answers for 3 items; return one for each, or nothing"}


async def test_86_a_result_that_cannot_be_written_is_done_and_says_so(node: Plant) -> None:
    view = await node.run("odd-steps", {"reduce": "object"})
    assert (view.state, view.counts) == ("done", Counts(succeeded=5))
    assert "cannot be written as JSON" in view.result["not_told"]


@pytest.mark.parametrize(("item", "said"), [("object", "cannot be written as JSON"), ("large", "put it into a file")])
async def test_86_an_item_that_cannot_be_written_fails_the_split(node: Plant, item: str, said: str) -> None:
    view = await node.run("odd-steps", {"split": item})
    assert (view.state, view.items) == ("failed", None)
    assert "item 0" in view.reason
    assert said in view.reason


# ---- 87: what would end a program


@pytest.mark.parametrize("task", ["odd-map", "odd-plain"])
async def test_87_what_would_end_the_program_is_the_items_failure(node: Plant, task: str) -> None:
    view = await node.run(task, [*ENDS, "fine"])
    assert view.counts == Counts(succeeded=1, failed=len(ENDS))
    assert await told(node, view) == [*TOLD.values(), None]
    assert log.ran == Counter({**dict.fromkeys(range(len(ENDS)), 2), len(ENDS): 1})


async def test_87_what_would_end_the_program_fails_the_whole_list(node: Plant) -> None:
    view = await node.run("odd-list", ["exit", "a"])
    assert view.counts == Counts(failed=2)
    assert await told(node, view) == ["SystemExit: 3"] * 2


@pytest.mark.parametrize("step", ["split", "reduce"])
@pytest.mark.parametrize("end", list(ENDS))
async def test_87_what_would_end_the_program_fails_the_step(node: Plant, step: str, end: str) -> None:
    view = await node.run("odd-steps", {step: end})
    assert view.state == "failed"
    assert TOLD[end] in view.reason


# ---- 88 and 89: what blocks, and what never comes back


async def test_88_code_that_blocks_its_thread_holds_nobody_else_up(node: Plant) -> None:
    blocked = await node.submit("odd-list", ["never"])
    assert (await node.run("odd-map", ["fine"] * 10)).counts == Counts(succeeded=10)
    assert (await node.until(blocked.instance_id, "done")).counts == Counts(failed=1)


@pytest.mark.parametrize("task", ["odd-map", "odd-plain"])
async def test_89_what_never_comes_back_fails_its_item_alone(node: Plant, task: str) -> None:
    view = await node.run(task, ["never", "fine", "fine", "fine"])
    assert view.counts == Counts(succeeded=3, failed=1)
    assert await told(node, view) == ["took longer than allowed", None, None, None]
    assert log.ran == Counter({0: 2, 1: 1, 2: 1, 3: 1})


# ---- 90 to 94


async def test_90_a_million_items_in_one_commit_are_stored_some_at_a_time(node: Plant) -> None:
    view = await node.run("odd-steps")
    record = await node.record(view.instance_id)
    waits: list[int] = []

    class Staging:
        async def stage(self, *place: Any, **_named: int) -> list[bytes]:
            chunks = place[-1]
            waits.append(len(chunks))
            return []

    context = penstock.SplitContext(record, None, lambda: None, Staging(), chunk_items=1_000)  # type: ignore[arg-type]
    await context.commit(*range(1_000_000))
    assert (await context.seal()).items == 1_000_000
    assert max(waits) <= 8
    assert 1_000 <= sum(waits) < 1_100  # the first ones are small


async def test_91_the_same_item_twice_is_two_items_each_with_its_key(node: Plant) -> None:
    view = await node.run("odd-map", ["same", "same"])
    assert (view.items, view.counts) == (2, Counts(succeeded=2))
    assert log.keys == [f"{view.instance_id}.0", f"{view.instance_id}.1"]


async def test_92_what_changes_its_item_changes_it_for_itself_alone(node: Plant) -> None:
    view = await node.run("odd-map", [{"n": 1}])
    assert log.seen == [{"n": 1}, {"n": 1}]
    page = await node.desk.items.page(view.instance_id)
    assert [(item.item, item.info) for item in page.items] == [({"n": 1}, "OSError: busy")]


async def test_93_a_task_that_outlives_its_item_changes_nothing(node: Plant) -> None:
    view = await node.run("odd-map", ["stray", "fine"])
    assert view.counts == Counts(succeeded=2)
    log.gate.set()
    [stray] = log.strays
    with anyio.fail_after(LONG_S), pytest.raises(ValueError, match="nobody waits"):
        await stray
    assert (await node.desk.show(view.instance_id)).counts == Counts(succeeded=2)


async def test_94_nothing_is_run_and_nothing_summed_up_before_the_split_has_ended(node: Plant) -> None:
    view = await node.submit("odd-steps", {"waits": 40})
    with anyio.fail_after(LONG_S):
        await log.began.wait()
    assert (await node.run("odd-map", ["fine"])).state == "done"
    assert (log.ran[0], log.ran[1], (await node.desk.show(view.instance_id)).state) == (1, 0, "splitting")
    assert not hasattr(penstock.SplitContext, "read")
    log.gate.set()
    await node.until(view.instance_id, "done")
    assert log.seen == list(range(40))


# ---- 95: what it logs


async def test_95_a_credential_that_the_code_tells_is_hidden_in_the_log(
    node: Plant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from actors.runtime.secrets import resolve_reference
    from penstock.node.logs import json_line

    monkeypatch.setenv("SHOP_KEY", SECRET)
    monkeypatch.setitem(ENDS, "leak", ValueError(f"GET /?key={resolve_reference('env:SHOP_KEY').reveal()}"))
    view = await node.run("odd-steps", {"split": "leak"})
    assert view.state == "failed"
    lines = [json_line(record) for record in caplog.records]
    assert any("step.failed" in line for line in lines)
    assert not any(SECRET in line for line in lines)
