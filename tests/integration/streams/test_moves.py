"""Moves of one-message things: one winner, what is left behind goes, and each outcome is told by itself."""

from collections.abc import Iterable

import pytest
from anyio import create_task_group, fail_after
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from streams.clock import now_ms
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, OutcomeUnknown, Refused, RevisionConflict, StreamError, TooLarge
from streams.jobs.moves import Move, Mover
from streams.link.connection import Connection, connect
from streams.publish.outcomes import Outgoing, Receipt
from streams.publish.publisher import Publisher
from streams.reads.log import delete_entry, last_entry
from tests.support.moments import a_moment
from tests.support.server import add_stream, freeze, stream_state, thaw

SETTINGS = {
    "retention": "workqueue",
    "max_msgs_per_subject": 1,
    "allow_direct": True,
    "allow_msg_ttl": True,
    "allow_msg_schedules": True,
    "allow_rollup_hdrs": True,
}
HOUR = 3_600_000


class Things:
    """Things with the states a, b and c."""

    def __init__(self, connection: Connection, publisher: Publisher, stream: str) -> None:
        self.connection = connection
        self.stream = stream
        self.publisher = publisher
        self.mover = Mover(connection, publisher, lambda _subject: stream)
        self.space = connection.namespace

    def subject(self, state: str, name: str = "x") -> str:
        return self.space.pattern("things", state, name)

    def move(self, to: str, expected: int, payload: bytes = b"1", name: str = "x", **more: object) -> Move:
        return Move(self.subject(to, name), payload, self.subject("*", name), expected, **more)  # type: ignore[arg-type]

    async def subjects(self) -> set[str]:
        told = await self.connection.api(f"STREAM.INFO.{self.stream}", {"subjects_filter": ">"})
        return {subject.split(".")[2] for subject in told["state"].get("subjects") or {}}


async def things_on(connection: Connection, publisher: Publisher) -> Things:
    return Things(connection, publisher, await add_stream(connection, "THINGS", **SETTINGS))


@pytest.fixture
async def things(connection: Connection, publisher: Publisher) -> Things:
    return await things_on(connection, publisher)


async def test_a_thing_is_made_once_and_moved_by_who_saw_it_last(things: Things) -> None:
    with fail_after(30):
        made = await things.mover.move(things.move("a", 0))
        for to in ("a", "b"):
            with pytest.raises(RevisionConflict):
                await things.mover.move(things.move(to, 0))
        moved = await things.mover.move(things.move("b", made))
        first, second = await things.mover.move_many([things.move("c", made), things.move("c", moved, b"2")])
        assert isinstance(first, RevisionConflict)
        assert first.actual == moved
        assert isinstance(second, int)
        last = await last_entry(things.connection, things.stream, things.subject("*"))
        assert last is not None
        assert (last.seq, last.subject, last.payload) == (second, things.subject("c"), b"2")


async def test_the_schedule_that_it_was_goes_in_the_same_step(things: Things) -> None:
    with fail_after(30):
        waits = things.move("a", 0, due_ms=now_ms() + HOUR, target=things.subject("b"))
        made = await things.mover.move(waits)
        assert await things.subjects() == {"a"}
        again = await things.mover.move(replace(waits, expected=made, payload=b"2"))
        await things.mover.move(things.move("c", again, leaves=things.subject("a"), ttl_s=60))
        assert await things.subjects() == {"c"}


async def test_a_schedule_is_sent_on_by_the_server_when_it_is_due(things: Things) -> None:
    with fail_after(30):
        await things.mover.move(things.move("a", 0, due_ms=now_ms() + 300, target=things.subject("b")))
        while await things.subjects() != {"b"}:
            await a_moment()


async def test_each_outcome_is_its_own(things: Things) -> None:
    with fail_after(30):
        huge = b"x" * (things.connection.max_payload + 1)
        outcomes = await things.mover.move_many(
            [
                things.move("a", 0),
                things.move("a", 0, huge, "huge"),
                things.move("b", 77, name="other"),
                things.move("a", 0, name="last"),
            ]
        )
        assert [type(outcome) for outcome in outcomes] == [int, TooLarge, RevisionConflict, int]


async def test_a_move_whose_answer_was_lost_is_told_as_made_and_a_lost_race_as_lost(own_server: EmbeddedServer) -> None:
    """The server takes the first tries while nobody hears of it; of two who want one thing, one has made his move."""
    outcomes: dict[int, list[int | StreamError]] = {}
    with fail_after(40):
        async with connect(own_server.url, name="test") as connection:
            async with Publisher(connection, attempt_timeout_s=0.3) as publisher:
                things = await things_on(connection, publisher)

                async def move(number: int) -> None:
                    moves = [things.move("a", 0, b"%d" % number, f"t{n}") for n in range(20)]
                    outcomes[number] = await things.mover.move_many(moves)

                await freeze(own_server)
                async with create_task_group() as tasks:
                    for number in range(2):
                        tasks.start_soon(move, number)
                    while (
                        not all(flight.is_unknown for flight in publisher._flights.values()) or not publisher.in_flight
                    ):
                        await checkpoint()
                    thaw(own_server)
                for pair in zip(*outcomes.values(), strict=True):
                    assert sorted(isinstance(outcome, int) for outcome in pair) == [False, True]
                    assert any(isinstance(outcome, RevisionConflict) for outcome in pair)
                assert (await stream_state(connection, things.stream))["messages"] == 20


async def test_without_a_server_it_is_told_what_was_sent_and_what_was_not(own_server: EmbeddedServer) -> None:
    with fail_after(40):
        async with connect(own_server.url, name="test") as connection:
            async with Publisher(connection, window=3, attempt_timeout_s=0.2, deadline_s=1.0) as publisher:
                things = await things_on(connection, publisher)
                await freeze(own_server)
                outcomes = await publisher.try_many(
                    [Outgoing(things.subject("a", str(n)), b"1", f"m{n}") for n in range(6)]
                )
                thaw(own_server)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 3 + [Disconnected] * 3


@pytest.mark.three_servers
async def test_a_leader_that_is_behind_refuses_nothing_for_good(
    things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three servers another one delivers what the leader has not stored yet. Then its refusal is no answer."""
    looks, tell = 0, things.mover._stored_seqs

    async def stored_meanwhile(streams: Iterable[str]) -> dict[str, int]:
        nonlocal looks
        looks += 1
        if looks == 3:
            await things.publisher.publish(things.subject("b"), b"1")
        return await tell(streams)

    monkeypatch.setattr(things.mover, "_stored_seqs", stored_meanwhile)
    first = await things.mover.move(things.move("a", 0))
    with fail_after(30):
        outcome = await things.mover.move_many([things.move("c", first + 1)])
    assert outcome == [first + 2] if things.connection.is_clustered else isinstance(outcome[0], RevisionConflict)


@pytest.mark.three_servers
async def test_a_move_that_was_refused_and_stored_counts(things: Things, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that another one has followed refuses what that one stores."""
    first = await things.mover.move(things.move("a", 0))
    move = things.move("c", first + 1)
    tell = things.mover._stored_seqs

    async def stored_by_another(streams: Iterable[str]) -> dict[str, int]:
        for subject, payload in ((things.subject("b"), b"1"), (move.subject, move.payload)):
            await things.publisher.publish(subject, payload)
        return await tell(streams)

    monkeypatch.setattr(things.mover, "_stored_seqs", stored_by_another)
    with fail_after(30):
        (outcome,) = await things.mover.move_many([move])
    assert outcome == first + 2 if things.connection.is_clustered else isinstance(outcome, RevisionConflict)


@pytest.mark.three_servers
async def test_what_is_gone_is_told_as_gone_and_what_never_came_as_not_made(things: Things) -> None:
    first = await things.mover.move(things.move("a", 0))
    assert await delete_entry(things.connection, things.stream, first)
    with fail_after(30):
        gone, never = await things.mover.move_many([things.move("b", first), things.move("b", first + 9, name="y")])
    assert isinstance(gone, RevisionConflict)
    assert isinstance(never, Refused)
    assert isinstance(never, RevisionConflict) != things.connection.is_clustered


async def test_headers_that_were_built_before_go_as_they_are(things: Things) -> None:
    with fail_after(30):
        block = b"NATS/1.0\r\nNats-Msg-Id: same\r\nOwn: 1\r\n\r\n"
        first, second = await things.publisher.try_many(
            [Outgoing(things.subject("a", name), b"1", block=block) for name in ("x", "y")]
        )
        assert isinstance(first, Receipt)
        assert isinstance(second, Receipt)
        assert (second.seq, second.is_duplicate) == (first.seq, True)
