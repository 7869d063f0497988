"""A stream read as a log, on a real server."""

from typing import Any

import pytest

from streams.embedded.server import EmbeddedServer
from streams.errors import NO_LEADER, NoStream, OutcomeUnknown, Refused
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher
from streams.reads import leader_get
from streams.reads.log import (
    LogEntry,
    delete_entries,
    delete_entry,
    entry_at,
    extent_of,
    last_entries,
    purge_subject,
    read_log,
)
from tests.support.proxy import proxy
from tests.support.server import add_stream


async def _fill(connection: Connection, publisher: Publisher, count: int) -> str:
    stream = await add_stream(connection, "EVENTS", allow_direct=True)
    subject = connection.namespace.subject
    await publisher.publish_many(
        [Outgoing(subject("events", "ab"[at % 2], "x"), str(at).encode(), f"m{at}") for at in range(count)]
    )
    return stream


async def _read(connection: Connection, stream: str, *tokens: str, **options: int) -> list[LogEntry]:
    pattern = connection.namespace.pattern(*tokens)
    return [entry async for entry in read_log(connection, stream, pattern, **options)]


async def test_all_that_matches_is_read_in_order_over_many_pages(connection: Connection, publisher: Publisher) -> None:
    stream = await _fill(connection, publisher, 25)
    entries = await _read(connection, stream, "events", "a", ">", page=4)
    assert [entry.payload for entry in entries] == [str(at).encode() for at in range(0, 25, 2)]
    assert [entry.seq for entry in entries] == list(range(1, 26, 2))


async def test_a_reading_can_begin_at_a_sequence_or_at_a_time(connection: Connection, publisher: Publisher) -> None:
    stream = await _fill(connection, publisher, 10)
    everything = await _read(connection, stream, "events", ">")
    assert await _read(connection, stream, "events", ">", start_seq=8) == everything[7:]
    assert await _read(connection, stream, "events", ">", start_ms=everything[0].stored_ms) == everything
    assert await _read(connection, stream, "events", ">", start_ms=everything[-1].stored_ms + 60_000) == []


async def test_an_empty_stream_is_an_empty_log_and_none_is_told(connection: Connection) -> None:
    stream = await add_stream(connection, "EVENTS", allow_direct=True)
    assert await _read(connection, stream, "events", ">") == []
    assert (await extent_of(connection, stream)).messages == 0
    with pytest.raises(NoStream):
        await _read(connection, "NOT_THERE", "events", ">", timeout_s=1)


async def test_single_messages_are_read_and_removed_once(connection: Connection, publisher: Publisher) -> None:
    stream = await _fill(connection, publisher, 4)
    entry = await entry_at(connection, stream, 2)
    assert entry is not None
    assert entry.payload == b"1"
    assert await delete_entry(connection, stream, 2)
    assert not await delete_entry(connection, stream, 2)
    assert await entry_at(connection, stream, 2) is None
    assert [each.seq for each in await _read(connection, stream, "events", ">")] == [1, 3, 4]
    assert await purge_subject(connection, stream, connection.namespace.subject("events", "a", "x")) == 2
    assert (await extent_of(connection, stream))[:3] == (1, 4, 4)
    await purge_subject(connection, stream, connection.namespace.pattern("events", ">"))
    assert not await delete_entry(connection, stream, 4)


@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
async def test_a_removal_waits_while_a_leader_is_elected(connection: Connection, publisher: Publisher) -> None:
    stream = await _fill(connection, publisher, 4)
    for seq in (1, 2):
        await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}")
        assert await delete_entry(connection, stream, seq)
        await connection.api(f"STREAM.LEADER.STEPDOWN.{stream}")
        assert await purge_subject(connection, stream, connection.namespace.subject("events", "ab"[seq - 1], "x")) == 1


async def test_a_removal_that_a_busy_server_answers_late_is_known(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await _fill(connection, publisher, 2)
    monkeypatch.setattr(leader_get, "TRY_S", 0.05)
    async with proxy(server.port) as slow, connect(slow.url, name="test") as late:
        slow.delay(0.2)
        assert await delete_entry(late, stream, 1)


async def test_a_removal_that_a_server_without_leader_refused_may_have_been_done(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server hears a request. One that has just woken refuses it, and the leader carries it out."""
    stream, api, asked = await _fill(connection, publisher, 2), connection.api, 0

    async def refuse_first(subject: str, *args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        answer = await api(subject, *args, **options)
        if asked == 1:
            raise Refused("temporarily unavailable", subject=subject, code=503, err_code=NO_LEADER)
        return answer

    monkeypatch.setattr(connection, "api", refuse_first)
    with pytest.raises(OutcomeUnknown, match="may have removed"):
        await delete_entry(connection, stream, 1)
    assert await entry_at(connection, stream, 1) is None


async def test_many_messages_are_removed_and_those_that_were_there_are_counted(
    connection: Connection, publisher: Publisher
) -> None:
    stream = await _fill(connection, publisher, 200)
    assert sum(await delete_entries(connection, stream, [*range(1, 191), 999])) == 190
    assert await delete_entries(connection, stream, [195, 5, 999, 196]) == [True, False, False, True]
    assert [each.seq for each in await _read(connection, stream, "events", ">")] == [
        191,
        192,
        193,
        194,
        *range(197, 201),
    ]
    assert await delete_entries(connection, stream, []) == []
    with pytest.raises(NoStream):
        await delete_entries(connection, "nothing", range(100))


async def test_last_messages_of_many_subjects_come_by_subject(connection: Connection, publisher: Publisher) -> None:
    stream = await _fill(connection, publisher, 7)
    one, other, none = (connection.namespace.subject("events", name, "x") for name in "abc")
    found = await last_entries(connection, stream, [one, other, none])
    assert {subject: entry.payload for subject, entry in found.items()} == {one: b"6", other: b"5"}
    assert await last_entries(connection, stream, [connection.namespace.pattern("events", ">")]) == found
    assert await last_entries(connection, stream, []) == {}


async def _fill_by_subject(connection: Connection, publisher: Publisher, count: int, payload: bytes = b"") -> str:
    stream = await add_stream(connection, "EVENTS", allow_direct=True)
    subject = connection.namespace.subject
    await publisher.publish_many(
        [Outgoing(subject("events", "ab"[at % 2], str(at)), payload, f"m{at}") for at in range(count)]
    )
    return stream


async def test_more_subjects_than_one_answer_may_tell_come_in_several(
    connection: Connection, publisher: Publisher
) -> None:
    stream = await _fill_by_subject(connection, publisher, 2_500)
    pattern = connection.namespace.pattern
    for subjects in ([pattern("events", "a", "*"), pattern("events", "b", "*")], [pattern("events", ">")]):
        assert len(await last_entries(connection, stream, subjects)) == 2_500


async def test_more_bytes_than_one_answer_may_have_come_in_several(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.reads.log.PAGE_BYTES", 10_000)
    stream = await _fill_by_subject(connection, publisher, 40, b"x" * 1_000)
    entries = await _read(connection, stream, "events", ">")
    assert [entry.seq for entry in entries] == list(range(1, 41))
    found = await last_entries(connection, stream, [connection.namespace.pattern("events", ">")])
    assert sorted(found.values()) == entries


async def test_over_a_slow_link_an_answer_that_goes_on_is_awaited(
    connection: Connection, publisher: Publisher, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.reads.direct_get.TRY_S", 0.3)
    stream = await _fill_by_subject(connection, publisher, 30, b"x" * 100_000)
    pattern = connection.namespace.pattern("events", ">")
    async with proxy(server.port) as middle:
        async with connect(middle.url, name="slow", namespace=connection.namespace) as slow:
            middle.delay(0.03)  # for 64 KiB: an answer takes a second
            assert len([entry async for entry in read_log(slow, stream, pattern)]) == 30
            assert len(await last_entries(slow, stream, [pattern])) == 30


@pytest.mark.three_servers
@pytest.mark.parametrize("late_s", [0.0, 60.0])
async def test_an_answer_that_comes_late_is_not_taken(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Of three servers it may come from a leader that stood still and was followed by another. The message is stored
    after the first answer."""
    monkeypatch.setattr(leader_get, "LATE_S", late_s)
    stream, api = await add_stream(connection, "EVENTS"), connection.api
    asked = 0

    async def answer_then_store(subject: str, *args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        try:
            return await api(subject, *args, **options)
        finally:
            if asked == 1:
                await publisher.publish(connection.namespace.subject("events", "a"), b"1", message_id="one")

    monkeypatch.setattr(connection, "api", answer_then_store)
    is_taken = not connection.is_clustered or late_s > 0
    assert (await entry_at(connection, stream, 1) is None) == is_taken
    assert asked == (1 if is_taken else 2)
