"""A live view of a bucket on a real server: what is there, what changed, what vanished while nobody followed."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import anyio
import pytest

from actors.runtime.live import AT_ONCE, Live
from streams.buckets.bucket import Bucket
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from tests.support.buckets import bucket_of
from tests.support.proxy import proxy

LONG_S = 30.0


class Heard:
    """A view of whole numbers in a bucket, and the keys that its listener was called with."""

    def __init__(self, bucket: Bucket[bytes], *, pattern: str = ">", keeps_last: bool = False) -> None:
        self.live = Live(
            bucket, lambda entry: int(entry.raw), unreadable="number.bad", pattern=pattern, keeps_last=keeps_last
        )
        self.keys: list[str] = []
        self._news = anyio.Event()
        self.live.on_change(self._hear)

    def _hear(self, key: str) -> None:
        self.keys.append(key)
        self._news.set()
        self._news = anyio.Event()

    def taken(self) -> list[str]:
        """Return what was heard since the last call."""
        keys, self.keys = self.keys, []
        return sorted(keys)

    def numbers(self) -> dict[str, int]:
        return dict(self.live.items())

    async def until(self, **numbers: int) -> None:
        with anyio.fail_after(LONG_S):
            while self.numbers() != numbers:
                await self._news.wait()


@asynccontextmanager
async def running(view: Heard) -> AsyncIterator[None]:
    """Run the view; a run that does not say that it has started fails the test."""
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(LONG_S):
            await tasks.start(view.live.run)
        yield
        tasks.cancel_scope.cancel()


@pytest.fixture
async def bucket(connection: Connection, publisher: Publisher) -> Bucket[bytes]:
    return await bucket_of(connection, publisher, bytes)


async def test_a_thousand_records_leave_others_their_turn(bucket: Bucket[bytes]) -> None:
    """A timer on the same loop must not wait for all of them."""
    async with anyio.create_task_group() as tasks:
        for number in range(1_000):
            tasks.start_soon(bucket.put, f"k{number}", b"1")
    view, turns = Heard(bucket), [0]

    async def take_turns() -> None:
        while True:
            turns.append(len(view.keys))
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        async with running(view):
            tasks.cancel_scope.cancel()
    assert len(view.keys) == 1_000
    assert max(after - before for before, after in pairwise(turns)) <= 2 * AT_ONCE


async def test_it_knows_what_is_there_and_hears_each_change_once(bucket: Bucket[bytes]) -> None:
    await bucket.put("a", b"1")
    view = Heard(bucket)
    async with running(view):
        assert view.taken() == ["a"]
        assert view.numbers() == {"a": 1}
        await bucket.put("b", b"2")
        await view.until(a=1, b=2)
        await bucket.delete("a")
        await view.until(b=2)
    assert view.taken() == ["a", "b"]


async def test_a_pattern_leaves_out_the_rest_of_the_bucket(bucket: Bucket[bytes]) -> None:
    await bucket.put("x.1", b"1")
    await bucket.put("y.1", b"2")
    view = Heard(bucket, pattern="y.*")
    async with running(view):
        assert view.numbers() == {"y.1": 2}


async def test_what_vanished_between_two_runs_is_dropped_and_heard(bucket: Bucket[bytes]) -> None:
    for key in ("kept", "changed", "vanished"):
        await bucket.put(key, b"1")
    view = Heard(bucket)
    async with running(view):
        assert view.taken() == ["changed", "kept", "vanished"]
    await bucket.delete("vanished")
    await bucket.put("changed", b"2")
    async with running(view):
        assert view.numbers() == {"kept": 1, "changed": 2}
        assert view.taken() == ["changed", "vanished"], "each change once, and nothing of what stayed the same"
    async with running(view):
        assert view.taken() == []


async def test_what_vanished_while_the_link_was_down_is_dropped_and_heard(
    server: EmbeddedServer, bucket: Bucket[bytes]
) -> None:
    """Also what the watch never reported: a record that we wrote, and that was deleted before the link was back."""
    for key in ("kept", "vanished"):
        await bucket.put(key, b"1")
    async with proxy(server.port) as link, connect(link.url, name="watcher") as other, Publisher(other) as unused:
        view = Heard(Bucket(other, unused, bucket.name, bytes))
        async with running(view):
            view.taken()
            link.mute()
            await bucket.delete("vanished")
            view.live.learn("ours", 3, await bucket.put("ours", b"3"))
            await view.until(kept=1, vanished=1, ours=3)
            await bucket.delete("ours", ttl_s=None)
            await bucket.put("new", b"4")
            link.cut()
            await view.until(kept=1, new=4)
            assert view.taken() == ["new", "ours", "ours", "vanished"]


async def test_a_change_of_settings_is_logged_once_with_what_was_before(
    bucket: Bucket[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    view = Heard(bucket)
    view.live = Live(
        bucket, lambda entry: int(entry.raw), changed="number.changed", settings=lambda n: {"tens": n // 10, "same": 1}
    )
    view.live.on_change(view._hear)
    await bucket.put("a", b"10")
    async with running(view):
        await bucket.put("a", b"19")
        view.live.learn("a", 20, await bucket.put("a", b"20"))
        await bucket.put("b", b"1")
        await view.until(a=20, b=1)
    told = [record.__dict__["fields"] for record in caplog.records if record.message == "number.changed"]
    assert told == [{"key": "a", "before": {"tens": 1}, "after": {"tens": 2}}]


async def test_an_own_write_is_known_at_once_and_heard_once(bucket: Bucket[bytes]) -> None:
    view = Heard(bucket)
    async with running(view):
        revision = await bucket.put("a", b"1")
        view.live.learn("a", 1, revision)
        assert view.numbers() == {"a": 1}
        view.live.learn("a", 0, revision - 1)  # what is older says nothing
        await bucket.put("b", b"2")
        await view.until(a=1, b=2)
        view.live.drop("b")
        view.live.drop("b")
    assert view.taken() == ["a", "b", "b"]


async def test_a_listener_that_was_removed_hears_nothing(bucket: Bucket[bytes]) -> None:
    view, keys = Heard(bucket), list[str]()
    remove = view.live.on_change(keys.append)
    async with running(view):
        await bucket.put("a", b"1")
        await view.until(a=1)
        remove()
        await bucket.put("b", b"2")
        await view.until(a=1, b=2)
    assert keys == ["a"]


@pytest.mark.parametrize(("keeps_last", "left"), [(False, {"good": 1}), (True, {"good": 1, "spoiled": 1})])
async def test_a_record_that_cannot_be_read_costs_itself_alone(
    bucket: Bucket[bytes], caplog: pytest.LogCaptureFixture, keeps_last: bool, left: dict[str, int]
) -> None:
    await bucket.put("bad", b"x")
    await bucket.put("spoiled", b"1")
    view = Heard(bucket, keeps_last=keeps_last)
    with caplog.at_level(logging.WARNING):
        async with running(view):
            await bucket.put("spoiled", b"y")
            await bucket.put("good", b"1")
            await view.until(**left)
            assert ("bad" in view.live, "none" in view.live) == (True, False)
            assert "invalid literal" in view.live.fault("bad")
            assert view.live.fault("good") == view.live.fault("none") == ""
        async with running(view):  # what was logged is not logged again
            assert view.numbers() == left
            await bucket.put("bad", b"7")
            await view.until(**left, bad=7)
            assert view.live.fault("bad") == ""
    assert caplog.messages.count("number.bad") == 2
    assert len(view.live) == 3
