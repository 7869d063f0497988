"""Ledgers on a real server: contenders, broken and missing records, and a server that dies."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from actors.fetch import ledgers as ledgers_
from actors.fetch.ledgers import BrokenLedger, Contended, Ledgers, MissingLedger, read_ledger
from actors.fetch.rules.ledger import Ledger, first_ledger
from actors.fetch.sources import SourceKey
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.embedded.server import EmbeddedServer
from streams.errors import RevisionConflict, TooLarge
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from tests.support.buckets import add_bucket
from tests.support.moments import a_moment
from tests.support.server import connected

SHOP, OTHER = SourceKey("mall", "s1"), SourceKey("mall", "s2")


def raised(ledger: Ledger) -> tuple[Ledger, int]:
    """Raise the fence by one, and tell what it became."""
    return replace(ledger, fence=ledger.fence + 1), ledger.fence + 1


def kept(ledger: Ledger) -> tuple[Ledger, int]:
    return ledger, ledger.fence


class Holder:
    """One node's ledgers, and the bucket under them."""

    def __init__(self, ledgers: Ledgers, bucket: Bucket[bytes], runs: anyio.CancelScope) -> None:
        self.ledgers = ledgers
        self.bucket = bucket
        self.runs = runs

    async def when(self, source: SourceKey, holds: Callable[[Ledger | None], bool], within_s: float = 30) -> None:
        """Wait until `holds` is true of what is seen of a source."""
        changed = anyio.Event()
        remove = self.ledgers.on_change(lambda _source: changed.set())
        with anyio.fail_after(within_s):
            while not holds(self.ledgers.peek(source)):
                await changed.wait()
                changed = anyio.Event()
        remove()

    async def stored(self, source: SourceKey) -> Ledger:
        entry = await self.bucket.get(source.key)
        assert entry is not None
        return read_ledger(source, entry.value)


@asynccontextmanager
async def holder(connection: Connection, publisher: Publisher, *, is_watching: bool = True) -> AsyncIterator[Holder]:
    bucket = Bucket(connection, publisher, connection.namespace.bucket("LEDGERS"), bytes)
    async with anyio.create_task_group() as tasks:
        ledgers = Ledgers(bucket, tasks)
        if is_watching:
            await tasks.start(run, ledgers)
        async with ledgers.followed() if is_watching else nullcontext():
            yield Holder(ledgers, bucket, tasks.cancel_scope)
            tasks.cancel_scope.cancel()


async def run(ledgers: Ledgers, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await ledgers.run(task_status=task_status)


@asynccontextmanager
async def three_holders(connection: Connection, publisher: Publisher) -> AsyncIterator[list[Holder]]:
    """Three nodes' views of one bucket, with two sources in it."""
    await add_bucket(connection, "LEDGERS")
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(holder(connection, publisher)) for _ in range(3)]
        for source in (SHOP, OTHER):
            await found[0].ledgers.create(source, first_ledger(0))
        for one in found:
            await one.when(OTHER, bool)
        yield found


async def test_contenders_lose_no_move_and_each_gets_its_own_result(
    connection: Connection, publisher: Publisher
) -> None:
    async with three_holders(connection, publisher) as holders:
        results: list[int] = []

        async def contend(one: Holder, moves: int) -> None:
            for _ in range(moves):
                results.append(await one.ledgers.move(SHOP, raised, tries=100))

        async with anyio.create_task_group() as tasks:
            for one in holders:
                for _ in range(10):
                    tasks.start_soon(contend, one, 10)
        assert sorted(results) == list(range(1, 301))
        assert (await holders[0].stored(SHOP)).fence == 300
        for one in holders:
            await one.when(SHOP, lambda ledger: ledger is not None and ledger.fence == 300)


async def test_moves_that_wait_are_stored_by_few_writes(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        before = await holders[0].bucket.get(SHOP.key)
        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(holders[0].ledgers.move, SHOP, raised)
        after = await holders[0].bucket.get(SHOP.key)
        assert before is not None
        assert after is not None
        assert read_ledger(SHOP, after.value).fence == 500
        assert after.revision - before.revision <= 5


async def overtake(one: Holder, is_over: anyio.Event) -> None:
    """Write again and again from another side."""
    while not is_over.is_set():
        await one.ledgers.move(SHOP, raised, tries=1000)


async def test_who_loses_the_race_too_often_is_told_and_nobody_else(
    connection: Connection, publisher: Publisher
) -> None:
    async with three_holders(connection, publisher) as holders:
        mine, is_over = holders[0], anyio.Event()

        async def until_lost() -> None:
            while True:
                await mine.ledgers.move(SHOP, raised, tries=1)

        async with anyio.create_task_group() as tasks:
            for one in holders[1:]:
                tasks.start_soon(overtake, one, is_over)
            with anyio.fail_after(20), pytest.raises(Contended, match="lost the race 1 times"):
                await until_lost()
            is_over.set()
        assert await mine.ledgers.move(SHOP, raised) > 0


async def test_a_void_move_is_decided_on_what_is_stored(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        async with holder(connection, publisher, is_watching=False) as blind:
            assert await blind.ledgers.move(SHOP, kept) == 0
            await holders[0].ledgers.move(SHOP, raised)
            assert await blind.ledgers.move(SHOP, kept) == 1


async def test_a_move_that_raises_hurts_its_asker_alone(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:

        def refuse(_ledger: Ledger) -> tuple[Ledger, int]:
            raise ValueError("not possible")

        results: list[int] = []

        async def ask() -> None:
            results.append(await holders[0].ledgers.move(SHOP, raised))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with pytest.raises(ValueError, match="not possible"):
                await holders[0].ledgers.move(SHOP, refuse)
            tasks.start_soon(ask)
        assert results == [1, 2]


async def test_a_move_refused_on_an_old_view_is_decided_again_on_the_new_one(
    connection: Connection, publisher: Publisher
) -> None:
    async with three_holders(connection, publisher) as holders:

        def only_later(ledger: Ledger) -> tuple[Ledger, int]:
            if ledger.fence == 0:
                raise ValueError("too early")
            return raised(ledger)

        async with holder(connection, publisher, is_watching=False) as blind:
            await blind.ledgers.move(SHOP, kept)
            await holders[0].ledgers.move(SHOP, raised)
            assert await blind.ledgers.move(SHOP, only_later) == 2


async def test_an_asker_that_gives_up_leaves_no_mess(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        with anyio.move_on_after(0):
            await holders[0].ledgers.move(SHOP, raised)
        assert await holders[0].ledgers.move(SHOP, raised) in (1, 2)
        while holders[0].ledgers._changes:
            await anyio.lowlevel.checkpoint()


async def test_a_missing_ledger_is_never_made_anew(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        await holders[0].bucket.delete(SHOP.key)
        for one in holders:
            with pytest.raises(MissingLedger, match="penstock sources rewind mall/s1"):
                await one.ledgers.move(SHOP, raised)
            await one.when(SHOP, lambda ledger: ledger is None)
        assert await holders[0].bucket.get(SHOP.key) is None
        assert await holders[0].ledgers.move(OTHER, raised) == 1
        await holders[1].ledgers.create(SHOP, first_ledger(5))
        await holders[2].when(SHOP, lambda ledger: ledger is not None and ledger.start_ms == 5)
        assert await holders[2].ledgers.move(SHOP, raised) == 1


async def test_there_is_one_first_ledger(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        with pytest.raises(RevisionConflict):
            await holders[1].ledgers.create(SHOP, first_ledger(9))


@pytest.mark.parametrize(
    "garbage", [b"garbage", b'{"reason":"\xff"}', b'{"start_ms":0,"frontier_ms":1,"watermark_ms":2}']
)
async def test_a_broken_ledger_stops_its_source_alone_until_it_is_mended(
    connection: Connection, publisher: Publisher, garbage: bytes
) -> None:
    async with three_holders(connection, publisher) as holders:
        mine = holders[1]
        await holders[0].ledgers.move(SHOP, raised)
        whole = await holders[0].bucket.get(SHOP.key)
        assert whole is not None
        await mine.bucket.put(SHOP.key, garbage)
        for one in holders:
            with pytest.raises(BrokenLedger, match="mall/s1 cannot be read"):
                await one.ledgers.move(SHOP, raised)
            assert await one.ledgers.move(OTHER, raised) > 0
        await mine.bucket.put(SHOP.key, whole.value)
        for one in holders:
            assert await one.ledgers.move(SHOP, kept) == 1


async def test_a_write_that_is_refused_leaves_what_is_known(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:

        def huge(ledger: Ledger) -> tuple[Ledger, None]:
            return replace(ledger, reason="x" * 2_000_000), None

        with pytest.raises(TooLarge):
            await holders[0].ledgers.move(SHOP, huge)
        assert holders[0].ledgers.peek(SHOP) == first_ledger(0)
        assert await holders[0].ledgers.move(SHOP, raised) == 1


async def test_started_again_it_drops_what_vanished_meanwhile(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        async with holder(connection, publisher, is_watching=False) as late, AsyncExitStack() as stack:
            async with anyio.create_task_group() as tasks:
                await tasks.start(run, late.ledgers)
                await stack.enter_async_context(late.ledgers.followed())
                assert set(late.ledgers.known()) == {SHOP, OTHER}
                tasks.cancel_scope.cancel()
            await holders[0].bucket.delete(OTHER.key)
            await holders[0].ledgers.move(SHOP, raised)
            changed: list[SourceKey] = []
            late.ledgers.on_change(changed.append)
            async with anyio.create_task_group() as tasks:
                await tasks.start(run, late.ledgers)
                await late.when(OTHER, lambda ledger: ledger is None)
                assert late.ledgers.known() == [SHOP]
                tasks.cancel_scope.cancel()
            assert set(changed) == {SHOP, OTHER}


async def test_ledgers_are_followed_only_while_somebody_needs_it(connection: Connection, publisher: Publisher) -> None:
    async with three_holders(connection, publisher) as holders:
        async with holder(connection, publisher, is_watching=False) as plain, anyio.create_task_group() as tasks:
            await tasks.start(run, plain.ledgers)
            assert plain.ledgers.peek(SHOP) is None
            async with plain.ledgers.followed():
                assert set(plain.ledgers.known()) == {SHOP, OTHER}
                async with plain.ledgers.followed():
                    pass
                assert await holders[0].ledgers.move(SHOP, raised) == 1
                await plain.when(SHOP, lambda ledger: ledger is not None and ledger.fence == 1)
            with anyio.fail_after(10):
                while plain.ledgers.is_followed or plain.ledgers.known():
                    await a_moment()
            assert await holders[0].ledgers.move(SHOP, raised) == 2
            async with plain.ledgers.followed():
                seen = plain.ledgers.peek(SHOP)
                assert seen is not None
                assert seen.fence == 2
            tasks.cancel_scope.cancel()


async def test_what_is_not_followed_is_read_at_a_change_and_kept_for_a_moment(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers_, "MOST_IN_HAND", 1)
    async with (
        three_holders(connection, publisher) as holders,
        holder(connection, publisher, is_watching=False) as plain,
    ):
        assert await plain.ledgers.move(SHOP, raised) == 1
        assert plain.ledgers.known() == [SHOP]
        reads, get = list[str](), plain.bucket.get

        async def counted(key: str) -> Entry[bytes] | None:
            reads.append(key)
            return await get(key)

        monkeypatch.setattr(plain.bucket, "get", counted)
        assert await plain.ledgers.move(SHOP, raised) == 2
        assert reads == []  # it is likely as this node left it
        assert await holders[0].ledgers.move(SHOP, raised) == 3
        assert await plain.ledgers.move(SHOP, raised) == 4
        assert reads == [SHOP.key]  # the write met a conflict
        monkeypatch.setattr(ledgers_, "LIKELY_S", 0.0)
        assert await plain.ledgers.move(SHOP, raised) == 5
        assert reads == [SHOP.key] * 2  # it was read first
        assert await plain.ledgers.move(OTHER, raised) == 1
        assert plain.ledgers.known() == [OTHER]


async def test_a_ledger_that_another_node_tells_is_not_read_if_it_is_the_stored_one(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        three_holders(connection, publisher) as holders,
        holder(connection, publisher, is_watching=False) as plain,
    ):
        reads, get, other = list[str](), plain.bucket.get, holders[0].ledgers

        async def counted(key: str) -> Entry[bytes] | None:
            reads.append(key)
            return await get(key)

        async def raised_and_told() -> tuple[int, bytes]:
            await other.move(SHOP, raised)
            ledger = other.peek(SHOP)
            assert ledger is not None
            return other.to_tell(SHOP, ledger)

        monkeypatch.setattr(plain.bucket, "get", counted)
        first = await raised_and_told()
        plain.ledgers.told(SHOP, *first)
        assert await plain.ledgers.move(SHOP, raised) == 2
        assert reads == []
        plain.ledgers.told(SHOP, *first)  # late: what this node wrote is newer
        assert await plain.ledgers.move(SHOP, raised) == 3
        assert reads == []

        await holders[0].when(SHOP, lambda ledger: ledger is not None and ledger.fence == 3)
        plain.ledgers.told(SHOP, *(await raised_and_told()))
        await other.move(SHOP, raised)
        assert await plain.ledgers.move(SHOP, raised) == 6
        assert reads == [SHOP.key]  # the write met a conflict
        revision, _ = await raised_and_told()
        plain.ledgers.told(SHOP, revision, b"no ledger")
        assert await plain.ledgers.move(SHOP, raised) == 8
        assert reads == [SHOP.key] * 2
        assert other.to_tell(SHOP, first_ledger(1)) == (0, b"")


async def test_the_view_outlives_a_killed_server(own_server: EmbeddedServer, namespace: Namespace) -> None:
    async with connected(own_server, namespace) as connection, Publisher(connection) as publisher:
        await add_bucket(connection, "LEDGERS")
        async with holder(connection, publisher) as mine, holder(connection, publisher) as other:
            for source in (SHOP, OTHER):
                await mine.ledgers.create(source, first_ledger(0))
            await own_server.kill()
            results: list[int] = []

            async def move() -> None:
                results.append(await mine.ledgers.move(SHOP, raised))

            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(move)
                await own_server.restart()
            assert sorted(results) == list(range(1, 21))
            await other.when(SHOP, lambda ledger: ledger is not None and ledger.fence == 20)
            await mine.bucket.delete(OTHER.key)
            await other.when(OTHER, lambda ledger: ledger is None)


async def test_a_server_put_back_to_an_earlier_state_is_believed(connection: Connection, publisher: Publisher) -> None:
    """As after a power cut without a sync, or from a backup: the stream is younger than what the nodes remember."""
    async with three_holders(connection, publisher) as holders:
        mine = holders[0]
        for _ in range(5):
            await mine.ledgers.move(SHOP, raised)
        for one in holders:
            await one.when(SHOP, lambda ledger: ledger is not None and ledger.fence == 5)
        await connection.api(f"STREAM.DELETE.KV_{connection.namespace.bucket('LEDGERS')}")
        await add_bucket(connection, "LEDGERS")
        async with anyio.create_task_group() as tasks:
            fresh = Ledgers(mine.bucket, tasks)
            await fresh.create(SHOP, first_ledger(0))
        assert await mine.ledgers.move(SHOP, raised) == 1
        for one in holders[1:]:
            await one.when(SHOP, lambda ledger: ledger is not None and ledger.fence == 1)
            assert await one.ledgers.move(SHOP, kept) == 1
