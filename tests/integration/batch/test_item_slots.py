"""At most n items at once under a key, over the nodes of a real server, whatever runs them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import anyio
import pytest

import penstock
from actors.batch.rules.refusals import BatchRefused
from actors.batch.views import ItemShown
from streams.link.connection import Connection
from streams.messages.batch import Counts
from tests.support.batches import LONG_S, Plant, plant
from tests.support.slots import make_slots_last

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])

BY_M = penstock.Slots(1, key="m")


class Seen:
    """What runs under each key, from any thread. `most`: how many calls of a key ran at once. `ran`: by item."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.ran: Counter[int] = Counter()
        self.release = anyio.Event()
        self.released = threading.Event()
        self._lock = threading.Lock()

    def begin(self, *items: dict[str, object]) -> None:
        with self._lock:
            for key in {str(item["m"]) for item in items}:
                self.running[key] += 1
                self.most[key] = max(self.most[key], self.running[key])
            self.ran.update(int(str(item["n"])) for item in items)

    def end(self, *items: dict[str, object]) -> None:
        with self._lock:
            self.running.subtract({str(item["m"]) for item in items})

    async def until(self, *items: int) -> None:
        await self._until(lambda: all(self.ran[item] for item in items))

    async def until_one(self) -> None:
        """Wait until any item runs."""
        await self._until(lambda: bool(self.ran))

    async def _until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(LONG_S):
            while not is_so():  # noqa: ASYNC110 # a thread tells nobody
                await anyio.sleep(0.01)


seen = Seen()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    seen.__init__()  # type: ignore[misc] # the tasks hold the object
    make_slots_last(monkeypatch)


class _Keyed:
    """Items {"m": key, "n": number}, as the input says."""

    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)

    async def reduce(self, ctx: penstock.ReduceContext) -> None:
        return None


@penstock.batch("keyed", concurrency=16, chunk_items=20, slots=BY_M)
class Keyed(_Keyed):
    async def map(self, item: dict[str, object]) -> None:
        seen.begin(item)
        await anyio.sleep(0.005)
        seen.end(item)


@penstock.batch("keyed-lists", chunk_items=20, slots=BY_M)
class KeyedLists(_Keyed):
    async def map_many(self, items: list[dict[str, object]]) -> None:
        seen.begin(*items)
        await anyio.sleep(0.005)
        seen.end(*items)


@penstock.batch("keyed-threads", chunk_items=20, slots=BY_M)
class KeyedThreads(_Keyed):
    def map(self, item: dict[str, object]) -> None:
        seen.begin(item)
        seen.released.wait(0.005)
        seen.end(item)


@penstock.batch("keyed-once", concurrency=16, chunk_items=20, is_idempotent=False, slots=BY_M)
class KeyedOnce(Keyed):
    """Each item once."""


def items_of(*keys: str) -> list[dict[str, object]]:
    return [{"m": key, "n": number} for number, key in enumerate(keys)]


async def shown(node: Plant, instance_id: str) -> list[ItemShown]:
    return (await node.desk.items.page(instance_id)).items


@pytest.mark.parametrize("task", ["keyed", "keyed-lists", "keyed-threads", "keyed-once"])
async def test_no_more_items_of_a_key_run_at_once_over_two_nodes_and_each_runs_once(
    connection: Connection, task: str
) -> None:
    async with plant(connection, [task], name="n1") as node, plant(connection, [task], name="n2"):
        view = await node.run(task, items_of(*"abababaacc" * 12))
    assert view.counts == Counts(succeeded=120)
    assert seen.most == {"a": 1, "b": 1, "c": 1}
    assert seen.ran == Counter(range(120))


class _Held(_Keyed):
    """Items of the key `slow` run until they are released."""

    async def map(self, item: dict[str, object]) -> None:
        seen.begin(item)
        try:
            if item["m"] == "slow":
                await seen.release.wait()
        finally:
            seen.end(item)


@penstock.batch("keyed-held", concurrency=4, chunk_items=5, slots=BY_M)
class Held(_Held):
    pass


@pytest.mark.parametrize("most_stuck", [16, 1], ids=["they wait here", "they are left to later rounds"])
async def test_items_of_a_full_key_do_not_stand_in_the_way_of_other_chunks(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, most_stuck: int
) -> None:
    """One process works on two chunks at a time. Here eight chunks of a full key come first."""
    monkeypatch.setattr("actors.batch.executor.task_gate.MOST_STUCK", most_stuck)
    async with plant(connection, ["keyed-held"]) as node:
        slow = await node.submit("keyed-held", items_of(*["slow"] * 40))
        await seen.until_one()  # of whichever chunk came first
        quick = await node.run("keyed-held", [{"m": "quick", "n": 100 + n} for n in range(20)])
        assert quick.counts == Counts(succeeded=20)
        assert sum(seen.ran[n] for n in range(40)) == 1
        seen.release.set()
        done = await node.until(slow.instance_id, "done")
    assert done.counts == Counts(succeeded=40)
    assert seen.most["slow"] == 1
    assert seen.ran == Counter(range(40)) + Counter(range(100, 120))


async def test_slots_are_changed_live(connection: Connection) -> None:
    async with plant(connection, ["keyed-held"]) as node:
        slow = await node.submit("keyed-held", items_of(*["slow"] * 4))
        await seen.until(0)
        await node.desk.limit("keyed-held", {"slots": 2})
        await seen.until(0, 1)
        await node.desk.limit("keyed-held", {"slots": 0})
        await seen.until(0, 1, 2, 3)
        seen.release.set()
        await node.until(slow.instance_id, "done")
        with pytest.raises(Exception, match="slot_key"):
            await node.desk.limit("keyed-held", {"slot_key": "a..b"})
    assert seen.most["slow"] == 4


@penstock.batch("dropped", concurrency=4, slots=penstock.Slots(1, key="m", when_full="drop_newest"))
class Dropped(_Held):
    pass


async def test_what_finds_a_full_key_is_skipped_and_the_reason_says_so(connection: Connection) -> None:
    async with plant(connection, ["dropped"]) as node:
        first = await node.submit("dropped", items_of("slow"))
        await seen.until(0)
        second = await node.submit("dropped", [{"m": key, "n": n} for n, key in enumerate(["slow", "b", "slow"], 1)])
        done = await node.until(second.instance_id, "done")
        ends = await shown(node, second.instance_id)
        seen.release.set()
        await node.until(first.instance_id, "done")
    skipped = ("skipped", "dropped: no slot of key 'slow' was free")
    assert done.counts == Counts(succeeded=1, skipped=2)
    assert [(end.status, end.info) for end in ends] == [skipped, ("ok", None), skipped]
    assert seen.ran == Counter([0, 2])


@penstock.batch("replaced", concurrency=4, slots=penstock.Slots(1, key="m", when_full="cancel_running"))
class Replaced(_Held):
    pass


@penstock.batch(
    "replaced-once", concurrency=1, is_idempotent=False, slots=penstock.Slots(1, key="m", when_full="cancel_running")
)
class ReplacedOnce(_Held):
    pass


@pytest.mark.parametrize(
    ("task", "counts", "end"),
    [
        ("replaced", Counts(cancelled=1), ("cancelled", "a newer item took its slot of key 'slow'")),
        (
            "replaced-once",
            Counts(unknown=1),
            (
                "unknown",
                "it was cancelled: its slot of key 'slow' was gone; it was begun, and nobody knows how it ended",
            ),
        ),
    ],
    ids=["idempotent", "once only"],
)
async def test_a_newer_item_takes_the_slot_of_the_one_that_runs(
    connection: Connection, task: str, counts: Counts, end: tuple[str, str]
) -> None:
    async with plant(connection, [task]) as node:
        first = await node.submit(task, items_of("slow"))
        await seen.until(0)
        second = await node.submit(task, [{"m": "slow", "n": 1}])
        await seen.until(1)
        view = await node.until(first.instance_id, "done")
        [ended] = await shown(node, first.instance_id)
        seen.release.set()
        last = await node.until(second.instance_id, "done")
    assert view.counts == counts
    assert (ended.status, ended.info) == end
    assert last.counts == Counts(succeeded=1)
    assert seen.most["slow"] == 1


@penstock.batch("overrun", item_timeout_s=2, attempts=1, slots=BY_M)
class Overrun(_Keyed):
    def map(self, item: dict[str, object]) -> None:
        seen.begin(item)
        if item["n"] == 0:
            seen.released.wait(30)
        seen.end(item)


async def test_a_thread_that_overran_its_time_keeps_its_slot_until_it_ends(connection: Connection) -> None:
    async with plant(connection, ["overrun"]) as node:
        first = await node.submit("overrun", items_of("slow"))
        view = await node.until(first.instance_id, "done")
        assert view.counts == Counts(failed=1)
        second = await node.submit("overrun", [{"m": "slow", "n": 1}, {"m": "b", "n": 2}])
        await seen.until(2)
        assert seen.ran[1] == 0
        seen.released.set()
        last = await node.until(second.instance_id, "done")
    assert last.counts == Counts(succeeded=2)
    assert seen.most["slow"] == 1


@penstock.batch("by-cell", slots=penstock.Slots(1, key="shop"))
class ByCell:
    async def map_many(self, rows: list[dict[str, object]]) -> None:
        for row in rows:
            seen.begin({"m": row["shop"], "n": row["n"]})
        await anyio.sleep(0.01)
        for row in rows:
            seen.end({"m": row["shop"], "n": row["n"]})


async def sheet(text: str):  # type: ignore[no-untyped-def] # an upload
    yield text.encode()


async def test_the_key_of_a_row_of_a_sheet_is_a_column(connection: Connection) -> None:
    async with plant(connection, ["by-cell"]) as node:
        given = "shop,n\n" + "".join(f"s{n % 3},{n}\n" for n in range(30))
        view = await node.submit("by-cell", upload=sheet(given), name="rows.csv")
        done = await node.until(view.instance_id, "done")
    assert done.counts == Counts(succeeded=30)
    assert set(seen.most) == {"s0", "s1", "s2"}


@penstock.batch("keyed-asked", concurrency=4, attempts=2, retry_base_s=30.0, slots=BY_M)
class Asked(_Held):
    async def map(self, item: dict[str, object]) -> None:
        if item["m"] == "fails":
            raise ValueError("no such merchant")
        await super().map(item)


@penstock.batch("asked-split", slots=BY_M)
class AskedSplit(_Held):
    async def split(self, ctx: penstock.SplitContext) -> None:
        await ctx.commit(*ctx.input)
        seen.begin({"m": "split", "n": 0})
        await seen.release.wait()


async def why(node: Plant, instance_id: str, item: int, code: str, text: str = "") -> str:
    """Wait until this is in the way of an item, with this in its reason, and return the reason."""
    with anyio.fail_after(LONG_S):
        while (told := await node.desk.why(instance_id, item)).code != code or text not in told.reason:  # noqa: ASYNC110 # as it stands
            await anyio.sleep(0.02)
    return told.reason


async def test_a_person_learns_what_an_item_waits_for(connection: Connection) -> None:
    async with plant(connection, ["keyed-asked", "asked-split"]) as node:
        view = await node.submit("keyed-asked", items_of("slow", "slow"))
        await seen.until(0)
        taken = "the one slot of its key 'slow' is taken: n1 has 1"
        assert await why(node, view.instance_id, 1, "slot", taken) == taken
        failing = await node.submit("keyed-asked", items_of("fails"))
        assert "no such merchant" in await why(node, failing.instance_id, 0, "retry")
        assert (await node.desk.why(failing.instance_id, 0)).until_ms > 0
        await node.desk.limit("keyed-asked", {"slots": 0, "item_rate": 0.01})
        paced = await node.submit("keyed-asked", items_of("a", "b", "c"))
        assert "0.01 a second" in await why(node, paced.instance_id, 2, "rate")
        await node.desk.pause(paced.instance_id)
        assert "penstock batch resume" in await why(node, paced.instance_id, 2, "paused")
        await node.desk.cancel(paced.instance_id)
        await node.desk.limit("keyed-asked", {"item_rate": 0})
        seen.release.set()
        await node.until(view.instance_id, "done")
        assert await why(node, view.instance_id, 1, "over") == "it has ended: ok"
        with pytest.raises(BatchRefused, match="has items 0 to 1"):
            await node.desk.why(view.instance_id, 2)
        await node.desk.cancel(failing.instance_id)


async def test_an_item_whose_batch_is_still_split_waits_for_the_end_of_that(connection: Connection) -> None:
    async with plant(connection, ["asked-split"]) as node:
        view = await node.submit("asked-split", items_of("a"))
        await seen.until(0)
        assert "split" in await why(node, view.instance_id, 0, "seal")
        seen.release.set()
        await node.until(view.instance_id, "done")
