"""Pages of a crowded pattern, on a real server."""

import random

import pytest

from streams.link.connection import Connection
from streams.publish.publisher import Outgoing, Publisher
from streams.reads import crowds
from streams.reads.crowds import Crowds
from streams.reads.log import LogEntry, delete_entry, purge_subject, read_log
from tests.support.server import add_stream

S = 10.0


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "CROWDED", 20)


async def _filled(connection: Connection, publisher: Publisher, is_ours: list[bool], size: int = 1) -> tuple[str, str]:
    """Return the stream, and the pattern of those messages that are ours."""
    stream = await add_stream(connection, "EVENTS", allow_direct=True, allow_rollup_hdrs=False)
    subject = connection.namespace.subject
    await publisher.publish_many(
        [
            Outgoing(subject("events", "ours" if ours else "theirs", str(at)), b"x" * size, f"m{at}")
            for at, ours in enumerate(is_ours)
        ]
    )
    return stream, connection.namespace.pattern("events", "ours", "*")


async def _all_pages(pages: Crowds, pattern: str, most: int, most_bytes: int = 1_000_000) -> list[LogEntry]:
    found: list[LogEntry] = []
    seq, is_end = 1, False
    while not is_end:
        entries, seq, is_end = await pages.page(pattern, seq, most, most_bytes, timeout_s=S)
        assert len(entries) <= most
        assert sum(len(entry.payload) for entry in entries[:-1]) < most_bytes
        assert entries or is_end
        found += entries
    return found


@pytest.mark.asyncio(loop_factories=["asyncio"])  # the others of this file read pages on both loops
@pytest.mark.parametrize(("share", "seed"), [(1.0, 1), (0.5, 2), (0.1, 3), (0.02, 4)])
@pytest.mark.parametrize("most", [2, 7, 60])
async def test_pages_have_each_message_once_and_in_order(
    connection: Connection, publisher: Publisher, share: float, seed: int, most: int
) -> None:
    dice = random.Random(seed)
    stream, pattern = await _filled(connection, publisher, [dice.random() < share for _ in range(3_000)])
    for seq in dice.sample(range(1, 3_000), 300):
        await delete_entry(connection, stream, seq)
    everything = [entry async for entry in read_log(connection, stream, pattern)]
    pages = Crowds(connection, stream)
    for _ in range(2):  # the second time it is known to be crowded from the first page on
        assert await _all_pages(pages, pattern, most) == everything


async def test_messages_in_heaps_far_apart_are_read_too(connection: Connection, publisher: Publisher) -> None:
    heap, far = [True] * 40, [False] * 700
    stream, pattern = await _filled(connection, publisher, [*heap, *far, *heap, *far, *heap, *far])
    pages = Crowds(connection, stream)
    for most in (10, 25, 100):
        assert len(await _all_pages(pages, pattern, most)) == 120


async def test_a_crowded_page_is_bounded_in_bytes(connection: Connection, publisher: Publisher) -> None:
    stream, pattern = await _filled(connection, publisher, [True] * 200, size=1_000)
    pages = Crowds(connection, stream)
    assert len(await _all_pages(pages, pattern, 50, 10_000)) == 200
    assert len((await pages.page(pattern, 1, 50, 10, timeout_s=S)).entries) == 1


async def test_what_goes_at_the_head_and_comes_at_the_end_is_seen(connection: Connection, publisher: Publisher) -> None:
    stream, pattern = await _filled(connection, publisher, [True] * 300)
    pages = Crowds(connection, stream)
    assert [entry.seq for entry in (await pages.page(pattern, 1, 5, 1_000, timeout_s=S)).entries] == [1, 2, 3, 4, 5]
    await purge_subject(connection, stream, pattern, before_seq=101)
    subject = connection.namespace.subject("events", "ours", "late")
    await publisher.publish_many([Outgoing(subject, b"", "late")])
    assert next(entry.seq for entry in (await pages.page(pattern, 1, 5, 1_000, timeout_s=S)).entries) == 101
    assert [entry.seq for entry in await _all_pages(pages, pattern, 40)] == list(range(101, 302))
    await purge_subject(connection, stream, pattern)
    assert await _all_pages(pages, pattern, 40) == []


async def test_a_crowded_page_does_not_count_what_is_left(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count is what costs the whole pattern."""
    stream, pattern = await _filled(connection, publisher, [True, False] * 300)
    pages = Crowds(connection, stream)
    _, seq, _ = await pages.page(pattern, 1, 50, 100_000, timeout_s=S)

    async def refuse(*_args: object, **_more: object) -> None:
        raise AssertionError("a batch")

    monkeypatch.setattr(crowds, "get_batch", refuse)
    for at in (1, seq, 201):
        entries, _, is_end = await pages.page(pattern, at, 50, 100_000, timeout_s=S)
        assert (len(entries), is_end) == (50, False)
        assert entries[0].seq in (at, at + 1)
