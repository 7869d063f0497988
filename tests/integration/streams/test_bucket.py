"""Buckets on a real server: revisions, contenders, markers, lost answers, and values that other tools wrote."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import pytest
from anyio import Event, create_task_group, fail_after

from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.embedded.server import EmbeddedServer
from streams.errors import (
    Disconnected,
    MalformedMessage,
    MalformedSubject,
    NoStream,
    OutcomeUnknown,
    Refused,
    RevisionConflict,
    TooLarge,
)
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from tests.support.buckets import bucket_of
from tests.support.moments import a_moment
from tests.support.proxy import Proxy, proxy

ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])
"""For tests that wait for a server's clock or end: the loop makes no difference to them."""


class Count(msgspec.Struct, frozen=True):
    n: int
    by: str = ""


class Muted(NamedTuple):
    """A bucket over a link whose answers are lost, and what other links see of it."""

    bucket: Bucket[bytes]
    link: Proxy
    arrived: Event
    asked_back: Event


async def test_what_is_put_is_read_with_its_revision(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, Count)
    assert await bucket.get("a.b") is None
    revision = await bucket.put("a.b", Count(1))
    entry = await bucket.get("a.b")
    assert entry is not None
    assert (entry.key, entry.value, entry.revision, entry.raw) == ("a.b", Count(1), revision, b'{"n":1,"by":""}')


async def test_create_takes_only_what_does_not_exist(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    first = await bucket.create("a", b"1")
    with pytest.raises(RevisionConflict) as caught:
        await bucket.create("a", b"2")
    assert caught.value.actual == first
    entry = await bucket.get("a")
    assert entry is not None
    assert entry.value == b"1"


async def test_a_deleted_key_does_not_exist_and_can_be_created(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes, history=5)
    await bucket.create("a", b"1")
    await bucket.delete("a")
    assert await bucket.get("a") is None
    assert await bucket.entries() == []
    again = await bucket.create("a", b"2")
    assert [(entry.value, entry.revision) for entry in await bucket.entries()] == [(b"2", again)]
    await bucket.delete("a")
    assert await bucket.compare_and_set("a", b"3", 0) > again


async def test_delete_at_a_revision_spares_a_newer_value(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    old = await bucket.put("a", b"1")
    new = await bucket.put("a", b"2")
    with pytest.raises(RevisionConflict):
        await bucket.delete("a", revision=old)
    await bucket.delete("a", revision=new)
    assert await bucket.get("a") is None


@ONE_LOOP
async def test_a_marker_with_a_time_to_live_goes_away(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes, has_ttl=True)
    revision = await bucket.put("a", b"1")
    await bucket.delete("a", revision=revision, ttl_s=1)
    assert await bucket.create("a", b"2") > revision + 1
    await bucket.delete("a", ttl_s=1)
    stream = f"STREAM.INFO.KV_{bucket.name}"
    with fail_after(20):
        while (await connection.api(stream))["state"]["messages"]:
            await a_moment()
    assert await bucket.create("a", b"3")


async def test_two_contenders_count_every_step_once(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, Count)
    await bucket.create("n", Count(0))
    conflicts = 0

    async def contend(name: str, steps: int) -> None:
        nonlocal conflicts
        for _ in range(steps):
            while True:
                entry = await bucket.get("n")
                assert entry is not None
                try:
                    await bucket.compare_and_set("n", Count(entry.value.n + 1, name), entry.revision)
                    break
                except RevisionConflict:
                    conflicts += 1

    with fail_after(30):
        async with create_task_group() as tasks:
            tasks.start_soon(contend, "a", 100)
            tasks.start_soon(contend, "b", 100)
    entry = await bucket.get("n")
    assert entry is not None
    assert entry.value.n == 200
    assert conflicts > 0


async def test_each_of_many_updates_is_counted(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, Count)

    def one_more(entry: Entry[Count] | None) -> tuple[Count, int]:
        number = 1 if entry is None else entry.value.n + 1
        return Count(number), number

    results: list[tuple[int, int]] = []

    async def change(times: int) -> None:
        for _ in range(times):
            results.append(await bucket.update("n", one_more, tries=50))

    with fail_after(30):
        async with create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(change, 10)
    entry = await bucket.get("n")
    assert entry is not None
    assert sorted(number for number, _ in results) == [*range(1, 41)]
    assert (entry.value.n, entry.revision) == max(results)


async def test_an_update_that_leaves_a_key_alone_writes_nothing(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    assert await bucket.update("a", lambda entry: (None, entry)) == (None, 0)
    revision = await bucket.put("a", b"1")
    assert await bucket.update("a", lambda entry: (None, "kept")) == ("kept", revision)
    await bucket.delete("a")
    _, again = await bucket.update("a", lambda entry: (b"2" if entry is None else None, None))
    assert again > revision


async def test_an_update_that_loses_every_race_says_so(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    get, seen = bucket.get, list[bytes | None]()

    async def overtaken(key: str) -> Entry[bytes] | None:
        entry = await get(key)
        await bucket.put(key, b"%d" % len(seen))
        return entry

    def change(entry: Entry[bytes] | None) -> tuple[bytes, None]:
        seen.append(entry.raw if entry else None)
        return b"ours", None

    monkeypatch.setattr(bucket, "get", overtaken)
    with pytest.raises(RevisionConflict, match=rf"KV\.{bucket.name}\.a: .* first 3 times in a row; try again"):
        await bucket.update("a", change, tries=3)
    assert seen == [None, b"0", b"1"]


@asynccontextmanager
async def muted_bucket(server: EmbeddedServer, connection: Connection, name: str) -> AsyncIterator[Muted]:
    """Open the bucket over a link that loses every answer, until it is cut once what it sent has arrived."""
    arrived, asked_back = Event(), Event()
    await connection.subscribe(f"$KV.{name}.>", lambda message: arrived.set())
    await connection.subscribe("$JS.API.STREAM.MSG.GET.>", lambda message: asked_back.set())
    await connection.flush()
    async with proxy(server.port) as link, connect(link.url, name="muted", namespace=connection.namespace) as other:
        async with Publisher(other) as publisher:
            link.mute()
            yield Muted(Bucket(other, publisher, name, bytes), link, arrived, asked_back)


async def test_a_write_whose_answer_was_lost_is_known_as_ours(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    revision = await bucket.create("a", b"1")
    stored: list[int] = []
    async with muted_bucket(server, connection, bucket.name) as muted:

        async def write() -> None:
            stored.append(await muted.bucket.compare_and_set("a", b"2", revision))

        with fail_after(30):
            async with create_task_group() as tasks:
                tasks.start_soon(write)
                await muted.arrived.wait()
                muted.link.cut()
    entry = await bucket.get("a")
    assert entry is not None
    assert (entry.value, [entry.revision]) == (b"2", stored)
    assert stored == [revision + 1]


async def test_an_equal_value_of_another_writer_is_not_taken_for_ours(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    """Two nodes may well write the same bytes; only one of them has won."""
    bucket = await bucket_of(connection, publisher, bytes)
    revision = await bucket.create("a", b"1")
    theirs = await bucket.compare_and_set("a", b"2", revision)
    async with muted_bucket(server, connection, bucket.name) as muted:

        async def write() -> None:
            with pytest.raises(RevisionConflict) as caught:
                await muted.bucket.compare_and_set("a", b"2", revision)
            assert caught.value.actual == theirs

        with fail_after(30):
            async with create_task_group() as tasks:
                tasks.start_soon(write)
                await muted.arrived.wait()
                muted.link.cut()
    entry = await bucket.get("a")
    assert entry is not None
    assert entry.revision == theirs


async def test_an_unknown_outcome_is_resolved_by_reading_back(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    revision = await bucket.create("a", b"1")
    async with muted_bucket(server, connection, bucket.name) as muted:

        async def write() -> None:
            assert await muted.bucket.compare_and_set("a", b"2", revision, timeout_s=0.05) == revision + 1

        with fail_after(30):
            async with create_task_group() as tasks:
                tasks.start_soon(write)
                await muted.asked_back.wait()
                muted.link.cut()


@ONE_LOOP
async def test_a_dead_server_leaves_the_outcome_unknown(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection, deadline_s=0.5) as publisher:
        bucket = await bucket_of(connection, publisher, bytes)
        revision = await bucket.create("a", b"1")
        await own_server.kill()
        with fail_after(30):
            with pytest.raises((OutcomeUnknown, Disconnected)):
                await bucket.compare_and_set("a", b"2", revision)
            with pytest.raises(Disconnected):
                await bucket.get("a", timeout_s=0.5)
            with pytest.raises(Disconnected):
                await bucket.entries(timeout_s=0.5)
        await own_server.start()
        with fail_after(30):
            entry = await bucket.get("a")
        assert entry is not None
        assert entry.value in (b"1", b"2")  # unknown was said, and either is true


async def test_a_missing_bucket_is_told(connection: Connection, publisher: Publisher) -> None:
    bucket = Bucket(connection, publisher, connection.namespace.bucket("NONE"), bytes)
    with fail_after(20):
        with pytest.raises(NoStream):
            await bucket.get("a")
        with pytest.raises(NoStream):
            await bucket.entries()
        with pytest.raises((NoStream, OutcomeUnknown)):
            await bucket.put("a", b"1", timeout_s=0.3)
        with pytest.raises(NoStream):
            async with bucket.watch():
                pytest.fail("there is nothing to watch")


@pytest.mark.parametrize("amount", [0, 5, 1024, 1500])
async def test_all_entries_are_read_however_many(connection: Connection, publisher: Publisher, amount: int) -> None:
    """The server answers at most 1,024 keys at once; beyond, they are read by a watch."""
    bucket = await bucket_of(connection, publisher, bytes)
    subject = f"$KV.{bucket.name}"
    for number in range(amount):
        await connection.publish_core(f"{subject}.k.{number:04d}", b"%d" % number)
    await bucket.put("other", b"x")
    with fail_after(30):
        found = await bucket.entries("k.*")
    assert [(entry.key, entry.value) for entry in found] == [(f"k.{n:04d}", b"%d" % n) for n in range(amount)]


async def test_keys_and_entries_of_some_keys_are_read_alone(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    names = [f"k.{number:04d}" for number in range(1_300)]
    for name in names:
        await connection.publish_core(f"$KV.{bucket.name}.{name}", name.encode())
    last = await bucket.put("other", b"x")
    gone = await bucket.put("k.gone", b"y")
    await bucket.delete("k.gone")
    await bucket.put("other", b"z")
    with fail_after(30):
        assert await bucket.keys("k.*") == [*names, "k.gone"]  # its marker stays
        found = await bucket.entries_of([*names[:1_200], "k.gone", "k.never", "other"])
    assert {entry.key: entry.value for entry in found} == {n: n.encode() for n in names[:1_200]} | {"other": b"z"}
    assert await bucket.entries_of([]) == []
    assert last < gone < await bucket.last_revision("k.*") < await bucket.last_revision()
    assert await bucket.last_revision("nothing.*") == 0


@pytest.mark.three_servers
async def test_keys_of_which_none_is_there_are_told_so(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    await bucket.put("other", b"x")
    with fail_after(10):
        assert await bucket.entries_of(["k.never", "k.too"]) == []


async def test_entries_too_large_for_one_answer_are_read_one_by_one(
    connection: Connection, publisher: Publisher
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    large = {f"k{number}": bytes([number]) * 900_000 for number in range(76)}  # the server cuts at 64 MiB
    for key, value in large.items():
        await bucket.put(key, value)
    with fail_after(30):
        found = await bucket.entries_of(list(large))
    assert {entry.key: entry.value for entry in found} == large


async def test_patterns_choose_keys(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    for key in ("a", "a.b", "a.c", "a.b.c", "d.b"):
        await bucket.put(key, b"")
    found = {
        pattern: [entry.key for entry in await bucket.entries(pattern)]
        for pattern in (">", "a.>", "a.*", "*.b", "a", "x.*")
    }
    assert found == {
        ">": ["a", "a.b", "a.b.c", "a.c", "d.b"],
        "a.>": ["a.b", "a.b.c", "a.c"],
        "a.*": ["a.b", "a.c"],
        "*.b": ["a.b", "d.b"],
        "a": ["a"],
        "x.*": [],
    }


BAD_KEYS = [
    "a..b",
    ".a",
    "a.",
    "*",
    ">",
    "a.*",
    "k" * 4200,
    "ключ",
    "a\u202eb",
    "a\0b",
    "$KV.x",
    "../x",
    "a/b",
    "a%2eb",
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=ascii)
async def test_a_bad_key_is_refused_and_the_link_lives_on(
    connection: Connection, publisher: Publisher, key: str
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    for refused in (
        bucket.get(key),
        bucket.put(key, b""),
        bucket.create(key, b""),
        bucket.compare_and_set(key, b"", 1),
        bucket.delete(key),
    ):
        with pytest.raises(MalformedSubject, match="key"):
            await refused
    await bucket.put("fine", b"1")
    assert [entry.key for entry in await bucket.entries()] == ["fine"]


@pytest.mark.parametrize("pattern", ["", "a..b", ">.a", "a b", "k" * 4200])
async def test_a_bad_pattern_is_refused(connection: Connection, publisher: Publisher, pattern: str) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    with pytest.raises(MalformedSubject, match="key pattern"):
        await bucket.entries(pattern)
    with pytest.raises(MalformedSubject, match="key pattern"):
        bucket.watch(pattern)


@pytest.mark.parametrize(
    "raw",
    [b"", b'{"n": ', b'{"n": "1"}', b'{"n": NaN}', b'{"n": 1e400}', b"\xef\xbb\xbf{}", b"\xff", b"[" * 5000],
    ids=["empty", "truncated", "wrong-type", "nan", "out-of-range", "bom", "utf8", "deep"],
)
async def test_a_value_that_another_tool_broke_names_its_key(
    connection: Connection, publisher: Publisher, raw: bytes
) -> None:
    bucket = await bucket_of(connection, publisher, Count)
    await bucket.put("fine", Count(1))
    await publisher.publish(f"$KV.{bucket.name}.broken", raw, message_id="by-hand")
    entry = await bucket.get("broken")
    assert entry is not None
    with pytest.raises(MalformedMessage, match="key broken at revision 2"):
        _ = entry.value
    with pytest.raises(MalformedMessage, match="key broken"):
        await bucket.entries()
    as_bytes = Bucket(connection, publisher, bucket.name, bytes)
    assert [entry.key for entry in await as_bytes.entries()] == ["broken", "fine"]
    assert await bucket.compare_and_set("broken", Count(2), entry.revision) == 3


async def test_a_too_large_value_is_refused(connection: Connection, publisher: Publisher) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    with pytest.raises(TooLarge):
        await bucket.put("a", b"x" * (1024 * 1024 + 1))
    assert await bucket.put("a", b"1") == 1


async def test_a_time_to_live_below_a_second_or_in_a_bucket_without_is_refused(
    connection: Connection, publisher: Publisher
) -> None:
    bucket = await bucket_of(connection, publisher, bytes)
    with pytest.raises(Refused, match="TTL"):
        await bucket.put("a", b"1", ttl_s=5)
    assert await bucket.get("a") is None
