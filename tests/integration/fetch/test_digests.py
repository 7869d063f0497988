"""Digests on a real server: large ones, old ones, broken ones, and a bucket that takes nothing."""

import hashlib

from actors.fetch.digests import HOUR_MS, MOST_CONTENTS, MOST_ROWS, Content, Digest, Digests
from actors.fetch.rules.slices import Slice
from actors.fetch.sources import SourceKey
from platforms.bounds import Window
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.buckets import add_bucket

SHOP, OTHER = SourceKey("mall", "s1"), SourceKey("mall", "s2")
HOUR = 475_000 * HOUR_MS


def marks(count: int, word: str = "x") -> set[bytes]:
    return {hashlib.blake2b(f"{word}{at}".encode(), digest_size=8).digest() for at in range(count)}


def piece(start_ms: int, length_ms: int = 60_000) -> Slice:
    return Slice("t", 1, start_ms, start_ms + length_ms)


async def opened(connection: Connection, publisher: Publisher) -> tuple[Digests, Bucket[Digest]]:
    bucket = Bucket(connection, publisher, await add_bucket(connection, "DIGESTS", has_ttl=True), Digest)
    return Digests(bucket), bucket


async def test_what_touches_the_window_is_known_and_nothing_else(connection: Connection, publisher: Publisher) -> None:
    digests, _ = await opened(connection, publisher)
    before, inside, after = (piece(HOUR + at) for at in (-60_000, 0, 600_000))
    for number, one in enumerate((before, inside, after)):
        await digests.put(SHOP, one, marks(3, str(number)), keep_ms=1_000)
    await digests.put(OTHER, inside, marks(3, "other"), keep_ms=1_000)
    assert await digests.known(SHOP, Window(HOUR, HOUR + 600_000)) == marks(3, "1")
    assert await digests.known(SHOP, Window(HOUR - 1, HOUR + 600_001)) == marks(3, "0") | marks(3, "1") | marks(3, "2")
    assert await digests.known(SHOP, Window(HOUR + 10**9, HOUR + 10**9 + 1)) == set()


async def test_a_busy_slice_is_kept_in_parts(connection: Connection, publisher: Publisher) -> None:
    digests, bucket = await opened(connection, publisher)
    busy = marks(MOST_ROWS * 2 + 1)
    await digests.put(SHOP, piece(HOUR), busy, keep_ms=1_000)
    assert len(await bucket.entries()) == 3
    assert await digests.known(SHOP, Window(HOUR, HOUR + 1)) == busy


async def test_of_contents_those_that_were_read_last_are_known_whichever_reading_began_first(
    connection: Connection, publisher: Publisher
) -> None:
    digests, bucket = await opened(connection, publisher)
    keys = [mark[:8] for mark in sorted(marks(MOST_CONTENTS + 1))]
    first = dict.fromkeys(keys, Content(5, b"open    "))
    second = {keys[0]: Content(4, b"held    "), keys[1]: Content(9, b"held    ")}
    await digests.put_contents(SHOP, piece(HOUR), 2, second, keep_ms=0)
    await digests.put_contents(SHOP, piece(HOUR), 1, first, keep_ms=0)
    later = dict.fromkeys(keys, Content(10, b"open    "))
    await digests.put_contents(SHOP, piece(HOUR + HOUR_MS), 3, later, keep_ms=0)
    assert len(await bucket.entries()) == 5
    found = await digests.contents(SHOP, Window(HOUR, HOUR + 1))
    assert len(found) == len(keys)
    assert [found[key] for key in keys[:3]] == [Content(5, b"open    "), Content(9, b"held    "), first[keys[2]]]
    assert await digests.known(SHOP, Window(HOUR, HOUR + 1)) == set()


async def test_slices_of_days_are_found_from_their_middle(connection: Connection, publisher: Publisher) -> None:
    day = 24 * HOUR_MS
    digests, _ = await opened(connection, publisher)
    await digests.put(SHOP, piece(HOUR, 10 * day), marks(3), keep_ms=1_000)
    middle = Window(HOUR + 5 * day, HOUR + 5 * day + 600_000)
    assert await digests.known(SHOP, middle, longest_ms=10 * day) == marks(3)
    assert await digests.known(SHOP, middle) == set()  # nobody said that slices may be so long


async def test_a_digest_that_is_none_costs_a_repeat_and_no_more(connection: Connection, publisher: Publisher) -> None:
    digests, bucket = await opened(connection, publisher)
    await digests.put(SHOP, piece(HOUR), marks(3), keep_ms=1_000)
    raw = Bucket(connection, publisher, bucket.name, bytes)
    await raw.put(f"mall.s1.h{HOUR // HOUR_MS}.garbage", b"garbage")
    assert await digests.known(SHOP, Window(HOUR, HOUR + 1)) == set()
    await raw.delete(f"mall.s1.h{HOUR // HOUR_MS}.garbage")
    await raw.put(f"mall.s1.h{HOUR // HOUR_MS}.odd", b'{"rows":1,"hashes":"%%%"}')
    assert await digests.known(SHOP, Window(HOUR, HOUR + 1)) == marks(3)


async def test_a_bucket_that_takes_nothing_stops_nobody(connection: Connection, publisher: Publisher) -> None:
    digests, bucket = await opened(connection, publisher)
    stream = f"KV_{bucket.name}"
    config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
    await connection.api(f"STREAM.UPDATE.{stream}", {**config, "max_msg_size": 64})
    await digests.put(SHOP, piece(HOUR), marks(3), keep_ms=1_000)
    assert await digests.known(SHOP, Window(HOUR, HOUR + 1)) == set()
