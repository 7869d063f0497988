"""Pulling on request: what is there at once, what comes later as soon as it comes, and nothing left behind."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import anyio
import pytest
from anyio import create_task_group, fail_after

from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, NoStream, OutcomeUnknown, Refused
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher
from streams.pull.delivery import Delivery
from streams.pull.once import PullOnce
from tests.support.moments import a_moment
from tests.support.server import add_consumer, add_stream, freeze, thaw

pytestmark = pytest.mark.three_servers

CONSUMER = "c"
_S = 10**9
MOST_BYTES = 1 << 20


@pytest.fixture(autouse=True)
def _waits_for_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the messages of one answer may come a moment apart."""
    monkeypatch.setattr("streams.pull.once.LINGER_S", 2.0)


@pytest.fixture
async def stream(connection: Connection) -> str:
    name = await add_stream(connection, "WORK", retention="workqueue")
    await add_consumer(connection, name, CONSUMER, ack_wait=30 * _S)
    return name


@pytest.fixture
async def pulls(connection: Connection) -> AsyncIterator[PullOnce]:
    async with PullOnce(connection) as opened:
        yield opened


async def store(publisher: Publisher, count: int, start: int = 0) -> None:
    space = publisher._connection.namespace
    await publisher.publish_many(
        [Outgoing(space.subject("work", str(n)), b"%d" % n, f"m{n}") for n in range(start, start + count)]
    )


async def until(condition: Callable[[], bool]) -> None:
    with fail_after(20):
        while not condition():
            await a_moment()


async def ask_pending(connection: Connection, stream: str) -> tuple[int, int, int]:
    """Return what the consumer has in hand, has still to deliver, and the requests that wait there."""
    told = await connection.api(f"CONSUMER.INFO.{stream}.{CONSUMER}")
    return told["num_ack_pending"], told["num_pending"], told.get("num_waiting", 0)


def numbers(deliveries: list[Delivery]) -> list[int]:
    return [int(delivery.payload) for delivery in deliveries]


async def test_what_is_there_comes_at_once_and_no_more_than_asked(
    stream: str, pulls: PullOnce, publisher: Publisher
) -> None:
    with fail_after(20):
        assert await pulls.pull(stream, CONSUMER, most=10) == []
        await store(publisher, 5)
        first = await pulls.pull(stream, CONSUMER, most=3, wait_s=10)
        rest = [*await pulls.pull(stream, CONSUMER, most=10 - len(first), wait_s=10)]
        while len(first) + len(rest) < 5:  # on three servers it may come a moment later
            rest += await pulls.pull(stream, CONSUMER, most=10, wait_s=10)
        assert len(first) <= 3
        assert numbers([*first, *rest]) == [0, 1, 2, 3, 4]
        for delivery in first + rest:
            await delivery.ack_sync()
        assert await pulls.pull(stream, CONSUMER, most=10) == []
        assert pulls.waiting == 0


@pytest.mark.parametrize("wait_s", [0.0, 10.0])
async def test_what_is_asked_for_with_a_bound_of_bytes_comes_whole(
    stream: str, pulls: PullOnce, publisher: Publisher, connection: Connection, wait_s: float
) -> None:
    """Three servers say that such a request is completed before they hand out its messages."""
    await store(publisher, 330)
    with fail_after(60):
        while (await ask_pending(connection, stream))[1] < 330:  # its servers are a moment behind
            await a_moment()
        for count in (100, 100, 100, 30):
            got = await pulls.pull(stream, CONSUMER, most=100, most_bytes=MOST_BYTES, wait_s=wait_s)
            assert len(got) == count
            for delivery in got:
                await delivery.ack_sync()
        assert await pulls.pull(stream, CONSUMER, most=100, most_bytes=MOST_BYTES) == []
        assert await ask_pending(connection, stream) == (0, 0, 0)  # each was delivered once


async def test_a_waiting_caller_gets_what_comes(
    stream: str, pulls: PullOnce, publisher: Publisher, connection: Connection
) -> None:
    got: list[Delivery] = []

    async def wait() -> None:
        got.extend(await pulls.pull(stream, CONSUMER, most=10, wait_s=20))

    with fail_after(30):
        async with create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: pulls.waiting == 1)
            await store(publisher, 1)
        assert numbers(got) == [0]
        assert await ask_pending(connection, stream) == (1, 0, 0)  # nothing stays asked for


async def test_a_wait_outlasts_the_pieces_it_is_made_of(
    stream: str, pulls: PullOnce, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.pull.once.PIECE_S", 0.1)
    got: list[Delivery] = []

    async def wait() -> None:
        got.extend(await pulls.pull(stream, CONSUMER, most=1, wait_s=20))

    with fail_after(30):
        assert await pulls.pull(stream, CONSUMER, most=1, wait_s=0.35) == []
        asked = pulls.asked
        async with create_task_group() as tasks:
            tasks.start_soon(wait)
            await until(lambda: pulls.asked >= asked + 4)
            await store(publisher, 1)
        assert numbers(got) == [0]


async def test_callers_share_what_comes_and_none_gets_it_twice(
    stream: str, pulls: PullOnce, publisher: Publisher
) -> None:
    got: list[int] = []

    async def wait() -> None:
        while len(got) < 200:
            for delivery in await pulls.pull(stream, CONSUMER, most=7, wait_s=0.2):
                got.append(int(delivery.payload))
                await delivery.ack()

    with fail_after(30):
        async with create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(wait)
            await until(lambda: pulls.waiting == 20)
            await store(publisher, 200)
    assert sorted(got) == list(range(200))


async def test_who_goes_away_leaves_no_request_and_takes_no_message(
    stream: str, pulls: PullOnce, publisher: Publisher, connection: Connection
) -> None:
    with fail_after(20):
        async with create_task_group() as tasks:
            for _ in range(30):
                tasks.start_soon(lambda: pulls.pull(stream, CONSUMER, most=5, wait_s=30))
            await until(lambda: pulls.waiting == 30)
            await connection.flush()
            tasks.cancel_scope.cancel()
        assert pulls.waiting == 0
        await store(publisher, 3)
        got: list[Delivery] = []
        while len(got) < 3:  # an answer is what is there by then
            got += await pulls.pull(stream, CONSUMER, most=10, wait_s=10)
        assert numbers(got) == [0, 1, 2]
        assert [delivery.delivered for delivery in got] == [1, 1, 1]


async def test_what_arrives_after_its_caller_has_gone_is_given_back(
    own_server: EmbeddedServer, pulls_of: Callable[[Connection], PullOnce]
) -> None:
    """The server stands still while the caller goes away, so that it hands out the message before it hears of it."""
    with fail_after(30):
        async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
            stream = await add_stream(connection, "WORK", retention="workqueue")
            await add_consumer(connection, stream, CONSUMER, ack_wait=600 * _S)
            async with pulls_of(connection) as pulls:
                await store(publisher, 1)
                await freeze(own_server)
                with anyio.move_on_after(0.2) as gave_up:
                    await pulls.pull(stream, CONSUMER, most=1, wait_s=30)
                assert gave_up.cancelled_caught
                thaw(own_server)
                got = await pulls.pull(stream, CONSUMER, most=1, wait_s=20)
                assert numbers(got) == [0]


@pytest.fixture
def pulls_of() -> Callable[[Connection], PullOnce]:
    return PullOnce


async def test_a_wait_survives_the_server_being_killed(own_server: EmbeddedServer) -> None:
    got: list[Delivery] = []
    with fail_after(40):
        async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
            stream = await add_stream(connection, "WORK", retention="workqueue")
            await add_consumer(connection, stream, CONSUMER, ack_wait=30 * _S)
            async with PullOnce(connection) as pulls, create_task_group() as tasks:

                async def wait() -> None:
                    got.extend(await pulls.pull(stream, CONSUMER, most=5, wait_s=30))

                tasks.start_soon(wait)
                await until(lambda: pulls.waiting == 1)
                await connection.flush()
                await own_server.kill()
                await own_server.start()
                await store(publisher, 2)
            assert set(numbers(got)) <= {0, 1}
            assert got


async def test_no_such_consumer_is_told(stream: str, pulls: PullOnce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.pull.once.NOBODY_S", 0.3)
    with fail_after(30):
        with pytest.raises(NoStream):
            await pulls.pull(stream, "nobody", most=1)
        with pytest.raises(NoStream):
            await pulls.pull(stream, "nobody", most=1, wait_s=30)
        assert pulls.waiting == 0


async def test_a_server_that_says_nothing_is_told_apart_from_one_that_has_nothing(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.pull.once.LINK_S", 0.3)
    with fail_after(30):
        async with connect(own_server.url, name="test") as connection:
            stream = await add_stream(connection, "WORK", retention="workqueue")
            await add_consumer(connection, stream, CONSUMER)
            async with PullOnce(connection) as pulls:
                await freeze(own_server)
                with pytest.raises(Disconnected):
                    await pulls.pull(stream, CONSUMER, most=1)
                thaw(own_server)
                monkeypatch.setattr("streams.pull.once.LINK_S", 10.0)
                assert await pulls.pull(stream, CONSUMER, most=1) == []


async def test_closing_ends_those_who_wait(stream: str, connection: Connection) -> None:
    ended: list[BaseException] = []

    async def wait(pulls: PullOnce) -> None:
        try:
            await pulls.pull(stream, CONSUMER, most=1, wait_s=30)
        except Disconnected as error:
            ended.append(error)

    with fail_after(20):
        async with create_task_group() as tasks:
            async with PullOnce(connection) as pulls:
                tasks.start_soon(wait, pulls)
                await until(lambda: pulls.waiting == 1)
    assert len(ended) == 1


async def test_a_consumer_that_may_hand_out_no_more_keeps_them_waiting(
    stream: str, pulls: PullOnce, publisher: Publisher, connection: Connection
) -> None:
    await add_consumer(connection, stream, CONSUMER, ack_wait=30 * _S, max_ack_pending=2)
    await store(publisher, 3)
    with fail_after(60):
        first: list[Delivery] = []
        while len(first) < 2:  # the second one may come a moment later
            first += await pulls.pull(stream, CONSUMER, most=3 - len(first), wait_s=5)
        assert numbers(first) == [0, 1]
        assert await pulls.pull(stream, CONSUMER, most=1, wait_s=0.3) == []
        await first[0].ack()
        assert numbers(await pulls.pull(stream, CONSUMER, most=1, wait_s=10)) == [2]


async def test_the_first_of_many_that_wait_for_one_gets_it_with_a_bound_of_bytes(
    stream: str, pulls: PullOnce, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for one message is completed by its first: nothing has come before its last status."""
    monkeypatch.setattr("streams.pull.once.PIECE_S", 30.0)  # no request ends by its time
    got: list[Delivery] = []

    async def wait() -> None:
        got.extend(await pulls.pull(stream, CONSUMER, most=1, most_bytes=MOST_BYTES, wait_s=20))

    with fail_after(40):
        async with create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(wait)
            await until(lambda: pulls.waiting == 20)
            asked = pulls.asked
            await store(publisher, 20)
        assert sorted(numbers(got)) == list(range(20))
        assert pulls.asked == asked


async def test_a_wait_outlasts_a_new_leader_of_its_consumer(
    stream: str, pulls: PullOnce, publisher: Publisher, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.pull.once.NOBODY_S", 30.0)
    got: list[Delivery] = []

    async def wait() -> None:
        while len(set(numbers(got))) < 60:  # a new leader may hand out some again
            got.extend(await pulls.pull(stream, CONSUMER, most=10, most_bytes=MOST_BYTES, wait_s=30))

    with fail_after(60):
        async with create_task_group() as tasks:
            tasks.start_soon(wait)
            for start in range(0, 60, 20):
                await until(lambda: pulls.waiting == 1)
                with suppress(Refused, OutcomeUnknown):  # one server has no other to lead, or nobody leads just now
                    await connection.api(f"CONSUMER.LEADER.STEPDOWN.{stream}.{CONSUMER}", timeout_s=1.0)
                await store(publisher, 20, start)
        assert sorted(set(numbers(got))) == list(range(60))


async def test_an_answer_is_bounded_in_bytes_too(stream: str, pulls: PullOnce, publisher: Publisher) -> None:
    space = publisher._connection.namespace
    await publisher.publish_many([Outgoing(space.subject("work", str(n)), b"x" * 40_000, f"m{n}") for n in range(5)])
    with fail_after(20):
        first: list[Delivery] = []
        while not first:
            first = await pulls.pull(stream, CONSUMER, most=5, most_bytes=100_000, wait_s=5)
        assert len(first) <= 2, "three are more than it may be"
        rest: list[Delivery] = []
        while len(first) + len(rest) < 5:  # a server may be a moment behind
            rest += await pulls.pull(stream, CONSUMER, most=5, wait_s=5)
    assert [delivery.subject[-1] for delivery in [*first, *rest]] == list("01234")
