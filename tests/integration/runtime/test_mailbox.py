"""The loop on a real consumer: store, publish, settle, and what happens when one of them goes wrong."""

import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, assert_never

import anyio
import anyio.lowlevel
import pytest

from actors.runtime import actor as loop
from actors.runtime.actor import Ack, Actor, BuryMessage, Decision, Forget, GiveBack, Mailbox, Settle, Work
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.embedded.server import EmbeddedServer
from streams.errors import ConnectionLost, MalformedMessage, RevisionConflict
from streams.link.connection import Connection, connect
from streams.messages.fetch import DeadLetter, dead_payload, decode_dead_letter
from streams.publish.publisher import Outgoing, Publisher
from streams.pull.puller import Delivery, Puller
from streams.subjects import Namespace
from tests.support.moments import a_moment
from tests.support.server import add_consumer, add_stream, full, stream_state

R = TypeVar("R")
SECOND = 1_000_000_000


class Add(NamedTuple):
    """Add a number to an account's sum."""

    account: str
    number: int
    word: str


class Doubled(NamedTuple):
    """What became of doubling it in the world."""

    account: str
    number: int


class Double(NamedTuple):
    """Work in the world."""

    account: str
    number: int


Message = Add | Doubled
Sums = dict[str, int]


class Home:
    """One record an account in a bucket, by compare-and-set, without any folding."""

    def __init__(self, bucket: Bucket[Sums]) -> None:
        self.bucket = bucket

    async def move(self, key: str, move: Callable[[Sums], tuple[Sums, R]], *, tries: int) -> R:
        for _ in range(tries):
            entry = await self.bucket.get(key)
            before = entry.value if entry else {}
            after, result = move(before)
            try:
                if after is not before:
                    await self.bucket.compare_and_set(key, after, entry.revision if entry else 0)
            except RevisionConflict:
                continue
            return result
        raise TimeoutError("lost every race")

    async def sum(self, key: str) -> int:
        entry = await self.bucket.get(key)
        return entry.value["sum"] if entry else 0


@dataclass
class Desk:
    """An actor with everything around it, and what it did."""

    connection: Connection
    publisher: Publisher
    home: Home
    puller: Puller
    stream: str
    stop: anyio.Event = field(default_factory=anyio.Event)
    working: list[int] = field(default_factory=list)
    may_finish: anyio.Event = field(default_factory=anyio.Event)
    news: anyio.Event = field(default_factory=anyio.Event)

    def decide(self, sums: Sums, message: Message, _now_ms: int) -> tuple[Sums, Decision[Double]]:
        match message:
            case Add(word="crash"):
                raise LookupError("decide crashed")
            case Add(word="bury"):
                return sums, Decision(BuryMessage("asked for"))
            case Add(word="forget"):
                return sums, Decision(Forget())
            case Add(word="later"):
                return sums, Decision(GiveBack(0.05) if not sums else Ack())
            case Add(word="double"):
                return sums, Decision(Work(Double(message.account, message.number)))
            case Add() | Doubled():
                told = self.connection.namespace.subject("told", message.account, str(message.number))
                publish = (Outgoing(told, b"{}", f"{message.account}-{message.number}"),)
                seen = {**sums, "sum": sums.get("sum", 0) + message.number, f"n{message.number}": 1}
                return (sums if f"n{message.number}" in sums else seen), Decision(Ack(is_sure=True), publish)
            case _:
                assert_never(message)

    async def work(self, request: Double) -> Message:
        self.working.append(request.number)
        self.wake()
        await self.may_finish.wait()
        return Doubled(request.account, request.number * 2)

    def wake(self) -> None:
        self.news.set()
        self.news = anyio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(20):
            while not is_so():
                await self.news.wait()

    def mailbox(self) -> Mailbox[str, Sums, Message, Double]:
        actor = Actor[str, Sums, Message, Double](
            engine="test",
            name="adder",
            decode=decode,
            home=lambda message: message.account,
            decide=self.decide,
            work=self.work,
            verdict=verdict,
            tries=1_000,  # forty write one record at once, and this home does not fold
        )
        return Mailbox(
            actor,
            self.puller,
            records=self.home,
            publisher=self.publisher,
            namespace=self.connection.namespace,
            clock=SYSTEM,
        )

    async def post(self, number: int, word: str = "", account: str = "a") -> None:
        body = json.dumps({"account": account, "number": number, "word": word}).encode()
        await self.publisher.publish(self.connection.namespace.subject("adds", account), body, message_id=None)

    async def left(self) -> int:
        return (await stream_state(self.connection, self.stream))["messages"]

    async def until_left(self, count: int) -> None:
        with anyio.fail_after(20):
            while await self.left() != count:
                await a_moment()


def decode(delivery: Delivery) -> Message:
    try:
        return Add(**json.loads(delivery.payload))
    except (ValueError, TypeError) as error:
        raise MalformedMessage(str(error)) from error


def verdict(error: Exception) -> Settle | None:
    return Ack() if isinstance(error, TimeoutError) else None


@pytest.fixture
async def desk(connection: Connection) -> AsyncIterator[Desk]:
    async with open_desk(connection) as made:
        yield made


@asynccontextmanager
async def open_desk(connection: Connection, capacity: int = 4) -> AsyncIterator[Desk]:
    stream = await add_stream(connection, "ADDS", "adds", ">", retention="workqueue")
    await add_stream(connection, "TOLD", "told", ">")
    await add_stream(connection, "DEAD", "dead", ">")
    await add_consumer(connection, stream, "adder", ack_wait=60 * SECOND)
    bucket = connection.namespace.bucket("SUMS")
    await connection.api(
        f"STREAM.CREATE.KV_{bucket}",
        {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "allow_direct": True, "max_msgs_per_subject": 1},
    )
    async with Publisher(connection) as publisher:
        home = Home(Bucket(connection, publisher, bucket, Sums))
        async with Puller(connection, stream, "adder", capacity=capacity) as puller:
            yield Desk(connection, publisher, home, puller, stream)


@asynccontextmanager
async def serving(desk: Desk) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(desk.mailbox().serve, desk.stop)
        yield
        desk.stop.set()


async def test_a_message_is_stored_told_and_settled(desk: Desk) -> None:
    await desk.post(3)
    await desk.post(4)
    async with serving(desk):
        await desk.until_left(0)
    assert await desk.home.sum("a") == 7
    assert (await stream_state(desk.connection, desk.connection.namespace.stream("TOLD")))["messages"] == 2


async def test_what_became_of_work_is_decided_like_a_message(desk: Desk) -> None:
    desk.may_finish.set()
    await desk.post(5, "double")
    async with serving(desk):
        await desk.until_left(0)
    assert await desk.home.sum("a") == 10


async def test_many_at_once_on_one_record_add_up(desk: Desk) -> None:
    for number in range(40):
        await desk.post(number)
    async with serving(desk):
        await desk.until_left(0)
    assert await desk.home.sum("a") == sum(range(40))


async def test_a_message_that_is_given_back_comes_again(desk: Desk) -> None:
    await desk.post(1, "later")
    async with serving(desk):
        await desk.post(2)
        await desk.until_left(0)
    assert await desk.home.sum("a") == 2


async def test_what_does_not_decode_is_buried_with_its_body_and_blocks_nobody(desk: Desk) -> None:
    await desk.publisher.publish(desk.connection.namespace.subject("adds", "a"), b"\xff{")
    await desk.post(3)
    async with serving(desk):
        await desk.until_left(0)
    assert await desk.home.sum("a") == 3
    letter = await read_dead(desk.connection)
    assert (letter.engine, letter.name, letter.attempts) == ("test", "adder", 1)
    assert letter.reason.startswith("malformed: ")
    assert dead_payload(letter) == b"\xff{"


async def test_a_decision_may_bury(desk: Desk) -> None:
    await desk.post(3, "bury")
    async with serving(desk):
        await desk.until_left(0)
    assert (await read_dead(desk.connection)).reason == "asked for"


async def test_a_message_that_crashes_its_handling_is_buried_in_the_end(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "AGAIN_S", 0.01)
    await desk.post(1, "crash")
    await desk.post(2)
    async with serving(desk):
        await desk.until_left(0)
    letter = await read_dead(desk.connection)
    assert letter.attempts == loop.MOST_CRASHES
    assert letter.reason == f"crashed {loop.MOST_CRASHES} times: LookupError: decide crashed"
    assert await desk.home.sum("a") == 2


async def test_full_dead_letters_leave_the_message_where_it_is(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loop, "AGAIN_S", 0.01)
    async with open_desk(connection) as desk:
        async with serving(desk):
            async with full(connection, connection.namespace.stream("DEAD")):
                await desk.post(1, "bury")
                await desk.post(2)
                await until_logged(caplog, "actor.not_buried", 2)  # it comes again
                await desk.until_left(1)
            await desk.until_left(0)
    assert (await read_dead(connection)).reason == "asked for"


async def test_what_cannot_be_told_is_not_settled(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The decision is stored by then: what comes again tells the same, and counts once."""
    monkeypatch.setattr(loop, "AGAIN_S", 0.01)
    async with open_desk(connection) as desk:
        told = connection.namespace.stream("TOLD")
        async with serving(desk):
            async with full(connection, told):
                await desk.post(3)
                await until_logged(caplog, "actor.broker_trouble", 2)
                assert await desk.left() == 1
            await desk.until_left(0)
        assert (await stream_state(connection, told))["messages"] == 1
        assert await desk.home.sum("a") == 3


async def until_logged(caplog: pytest.LogCaptureFixture, line: str, count: int) -> None:
    with anyio.fail_after(20):
        while caplog.messages.count(line) < count:
            await a_moment()


async def test_an_actors_own_verdict_goes_before_ours(desk: Desk) -> None:
    class Contended(Home):
        async def move(self, key: str, move: Callable[[Sums], tuple[Sums, R]], *, tries: int) -> R:
            raise TimeoutError("lost every race")

    desk.home = Contended(desk.home.bucket)
    await desk.post(1)
    async with serving(desk):
        await desk.until_left(0)
    assert await desk.home.sum("a") == 0


async def test_what_is_forgotten_is_neither_done_nor_given_back(connection: Connection) -> None:
    async with open_desk(connection, capacity=1) as desk:
        await desk.post(1, "forget")
        await desk.post(2)
        async with serving(desk):
            await desk.until_left(1)
        told = await connection.api(f"CONSUMER.INFO.{desk.stream}.adder")
        assert (told["num_ack_pending"], told["num_redelivered"]) == (1, 0)


async def test_stop_finishes_what_is_in_hand_and_gives_back_the_rest_at_once(
    connection: Connection, server: EmbeddedServer, namespace: Namespace
) -> None:
    async with open_desk(connection, capacity=2) as desk:
        for number in range(1, 5):
            await desk.post(number, "double")
        async with anyio.create_task_group() as tasks:
            await tasks.start(desk.mailbox().serve, desk.stop)
            await desk.until(lambda: sorted(desk.working) == [1, 2])  # each reads the record first, in any order
            desk.stop.set()
            async with connect(server.url, name="other", namespace=namespace) as second:
                async with Puller(second, desk.stream, "adder", capacity=10) as other:
                    with anyio.fail_after(20):
                        got = [json.loads((await other.receive()).payload)["number"] for _ in range(2)]
            assert got == [3, 4]
            desk.may_finish.set()
        assert await desk.home.sum("a") == 6
        assert sorted(desk.working) == [1, 2]


async def test_what_arrives_after_the_stop_is_given_back_and_not_begun(desk: Desk) -> None:
    for number in range(4):
        await desk.post(number)
    with anyio.fail_after(20):
        while desk.puller.held < 4:
            await a_moment()
        desk.stop.set()
        await desk.mailbox().serve(desk.stop)
    assert desk.puller.held == 0
    assert await desk.left() == 4
    assert await desk.home.sum("a") == 0


async def test_cut_short_it_gives_back_what_is_in_hand(
    connection: Connection, server: EmbeddedServer, namespace: Namespace
) -> None:
    async with open_desk(connection, capacity=2) as desk:
        await desk.post(1, "double")
        async with anyio.create_task_group() as tasks:
            await tasks.start(desk.mailbox().serve, desk.stop)
            await desk.until(lambda: desk.working == [1])
            desk.stop.set()
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        async with connect(server.url, name="other", namespace=namespace) as second:
            async with Puller(second, desk.stream, "adder", capacity=10) as other:
                with anyio.fail_after(20):
                    again = await other.receive()
        assert again.delivered == 2


async def test_a_connection_that_is_lost_for_good_is_raised(desk: Desk) -> None:
    with anyio.fail_after(20), pytest.RaisesGroup(ConnectionLost, flatten_subgroups=True):
        async with anyio.create_task_group() as tasks:
            await tasks.start(desk.mailbox().serve, desk.stop)
            desk.connection.fail(ConnectionLost("closed for good"))
            await anyio.sleep_forever()


async def read_dead(connection: Connection) -> DeadLetter:
    name = connection.namespace.stream("DEAD")
    told = await connection.api(f"STREAM.MSG.GET.{name}", {"seq": 1, "next_by_subj": f"{connection.namespace.name}.>"})
    return decode_dead_letter(base64.b64decode(told["message"]["data"]))
