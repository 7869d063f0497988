"""The publisher on a real server: each outcome, and none lost over killed servers and broken links."""

import base64
from collections.abc import AsyncIterator

import anyio
import pytest

from streams.embedded.server import EmbeddedServer
from streams.errors import (
    ConnectionLost,
    Disconnected,
    MalformedHeader,
    MalformedSubject,
    NoStream,
    OutcomeUnknown,
    RevisionConflict,
    StoreFull,
    TooLarge,
)
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher, Receipt
from tests.support.proxy import Proxy, proxy
from tests.support.server import add_stream, freeze, stream_state, thaw


@pytest.fixture
async def stream(connection: Connection) -> str:
    """A stream on `<namespace>.events.>` that allows all that is tried here."""
    return await add_stream(connection, "EVENTS", max_msg_size=2000, allow_msg_ttl=True, allow_atomic=True)


@pytest.fixture
def subject(connection: Connection, stream: str) -> str:
    return connection.namespace.subject("events", "a")


# ---- stored, duplicate, refused


async def test_a_stored_message_has_its_sequence_and_a_repeat_is_a_duplicate(
    publisher: Publisher, stream: str, subject: str
) -> None:
    assert await publisher.publish(subject, b"1", message_id="one") == Receipt(stream, 1, False)
    assert await publisher.publish(subject, b"1", message_id="one") == Receipt(stream, 1, True)
    assert await publisher.publish(subject, b"1") == Receipt(stream, 2, False)


async def test_an_expected_sequence_is_checked_and_the_conflict_names_the_actual_one(
    publisher: Publisher, stream: str, subject: str
) -> None:
    assert (await publisher.publish(subject, b"1", expected_seq=0)).seq == 1
    assert (await publisher.publish(subject, b"2", expected_seq=1)).seq == 2
    with pytest.raises(RevisionConflict) as conflict:
        await publisher.publish(subject, b"3", expected_seq=1)
    assert conflict.value.subject == subject
    assert (conflict.value.actual, conflict.value.err_code) == (2, 10071)
    assert not conflict.value.is_after_retry


async def test_the_server_checks_the_expected_sequence_before_the_id(publisher: Publisher, subject: str) -> None:
    """Why a conflict after a retry may be with our own message, id or not."""
    await publisher.publish(subject, b"1", message_id="one", expected_seq=0)
    with pytest.raises(RevisionConflict) as conflict:
        await publisher.publish(subject, b"1", message_id="one", expected_seq=0)
    assert conflict.value.actual == 1


async def test_a_message_with_a_time_to_live_carries_it(
    connection: Connection, publisher: Publisher, stream: str, subject: str
) -> None:
    await publisher.publish(subject, b"1", ttl_s=60)
    stored = await connection.api(f"STREAM.MSG.GET.{stream}", {"seq": 1})
    assert base64.b64decode(stored["message"]["hdrs"]) == b"NATS/1.0\r\nNats-TTL: 60s\r\n\r\n"


async def test_without_id_a_missing_stream_is_refused_at_once(connection: Connection, publisher: Publisher) -> None:
    with anyio.fail_after(20), pytest.raises(NoStream):
        await publisher.publish(connection.namespace.subject("nowhere"), b"", timeout_s=60)


async def test_with_id_a_missing_stream_is_waited_for(connection: Connection, publisher: Publisher) -> None:
    receipts: list[Receipt] = []
    subject = connection.namespace.subject("late", "a")

    async def publish() -> None:
        receipts.append(await publisher.publish(subject, b"", message_id="one"))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish)
            with pytest.raises(NoStream):
                await publisher.publish(connection.namespace.subject("never"), b"", message_id="two", timeout_s=3.0)
            stream = await add_stream(connection, "LATE")
    assert receipts == [Receipt(stream, 1, False)]


async def test_too_large_for_the_stream_or_the_server(
    connection: Connection, publisher: Publisher, subject: str
) -> None:
    with pytest.raises(TooLarge) as by_stream:
        await publisher.publish(subject, bytes(2001))
    assert by_stream.value.err_code == 10054
    with pytest.raises(TooLarge) as by_us:
        await publisher.publish(subject, bytes(connection.max_payload), message_id="with headers it is above")
    assert by_us.value.err_code == 0


async def test_a_full_stream_refuses(connection: Connection, publisher: Publisher) -> None:
    await add_stream(connection, "DEAD", max_msgs=1, discard="new")
    await publisher.publish(connection.namespace.subject("dead", "a"), b"")
    with pytest.raises(StoreFull, match="maximum messages exceeded"):
        await publisher.publish(connection.namespace.subject("dead", "b"), b"", message_id="b")


async def test_many_come_back_in_order_and_a_refusal_keeps_no_other_back(
    connection: Connection, publisher: Publisher, subject: str
) -> None:
    await publisher.publish(subject, b"0", message_id="old")
    outcomes = await publisher.publish_many(
        [
            Outgoing(subject, b"1", "new", {"Penstock-Node": "n1"}),
            Outgoing(subject, bytes(2001), "large"),
            Outgoing(connection.namespace.subject("nowhere"), b""),
            Outgoing(subject, b"2", None, {"Nats-Expected-Last-Subject-Sequence": "99"}),
            Outgoing(subject, bytes(connection.max_payload + 1), "larger"),
            Outgoing(subject, b"0", "old"),
        ]
    )
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [Receipt, TooLarge, NoStream, RevisionConflict, TooLarge, Receipt]
    assert (outcomes[0], outcomes[5]) == (
        Receipt(subject_stream(connection), 2, False),
        Receipt(subject_stream(connection), 1, True),
    )
    assert await publisher.publish_many([]) == []


async def test_nothing_of_many_is_sent_if_one_is_malformed(
    connection: Connection, publisher: Publisher, stream: str, subject: str
) -> None:
    with pytest.raises(MalformedSubject):
        await publisher.publish_many([Outgoing(subject, b""), Outgoing("a b", b"")])
    with pytest.raises(MalformedHeader):
        await publisher.publish_many([Outgoing(subject, b""), Outgoing(subject, b"", "x\r\ny")])
    assert (await stream_state(connection, stream))["messages"] == 0


async def test_twenty_thousand_in_one_call_are_all_stored(
    connection: Connection, publisher: Publisher, stream: str, subject: str
) -> None:
    outcomes = await publisher.publish_many([Outgoing(subject, b"x", f"{n}") for n in range(20_000)])
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, Receipt)] == list(range(1, 20_001))


# ---- unknown


async def test_a_server_that_hangs_leaves_the_outcome_unknown(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection:
        stream = await add_stream(connection, "EVENTS")
        subject = connection.namespace.subject("events", "a")
        async with Publisher(connection, attempt_timeout_s=0.1, deadline_s=0.4) as publisher:
            await freeze(own_server)
            with pytest.raises(OutcomeUnknown) as without_id:
                await publisher.publish(subject, b"")
            with pytest.raises(OutcomeUnknown) as with_id:
                await publisher.publish(subject, b"", message_id="one")
            with pytest.raises(OutcomeUnknown):
                await publisher.publish_many([Outgoing(subject, b"", "many")])
            thaw(own_server)
            assert (without_id.value.message_id, with_id.value.message_id) == (None, "one")
            assert with_id.value.subject == subject
            # All three were stored after all, each once: what was unknown is learnt by the same id.
            assert (await publisher.publish(subject, b"", message_id="one", timeout_s=20)).is_duplicate
        assert (await stream_state(connection, stream))["messages"] == 3


async def test_unknown_is_sent_again_until_it_is_known(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection:
        stream = await add_stream(connection, "EVENTS")
        subject = connection.namespace.subject("events", "a")
        async with Publisher(connection, attempt_timeout_s=0.05) as publisher:
            await freeze(own_server)
            receipts: list[Receipt] = []

            async def publish() -> None:
                receipts.append(await publisher.publish(subject, b"", message_id="one"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                with pytest.raises(OutcomeUnknown):  # by then the other was sent several times
                    await publisher.publish(subject, b"", timeout_s=0.3)
                thaw(own_server)
            assert len(receipts) == 1
        assert (await stream_state(connection, stream))["messages"] == 2


async def test_what_is_on_its_way_is_asked_for_again(connection: Connection, publisher: Publisher) -> None:
    """As the leader of three servers answers while another message of that id is not stored yet."""
    subject = connection.namespace.subject("elsewhere")
    answers = [b'{"stream":"S","seq":7,"duplicate":true}', b'{"error":{"code":409,"err_code":10158}}']

    def answer(_subject: bytes, reply: bytes, _payload: bytes, _block: bytes | None) -> None:
        connection.send_core(reply.decode(), answers.pop())

    connection.listen(subject, answer)
    with anyio.fail_after(60):
        assert (await publisher.publish(subject, b"", message_id="one")).seq == 7


@pytest.fixture
async def link(own_server: EmbeddedServer) -> AsyncIterator[Proxy]:
    async with proxy(own_server.port) as opened:
        yield opened


async def test_a_lost_answer_is_learnt_after_the_reconnect(own_server: EmbeddedServer, link: Proxy) -> None:
    async with connect(own_server.url, name="watcher") as watcher, connect(link.url, name="test") as connection:
        stream = await add_stream(watcher, "EVENTS")
        with_id, conditional, once = (watcher.namespace.subject("events", name) for name in "abc")
        stored = anyio.Event()
        await watcher.subscribe(once, lambda message: stored.set())
        await watcher.flush()
        async with Publisher(connection, deadline_s=20) as publisher:
            link.mute()

            async def publish_with_id() -> None:
                assert (await publisher.publish(with_id, b"", message_id="one")).is_duplicate

            async def publish_conditional() -> None:
                with pytest.raises(RevisionConflict) as conflict:
                    await publisher.publish(conditional, b"", expected_seq=0)
                assert conflict.value.is_after_retry
                assert conflict.value.actual == 2

            async def publish_once() -> None:
                with pytest.raises(OutcomeUnknown):
                    await publisher.publish(once, b"", timeout_s=0.5)

            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(publish_with_id)
                    tasks.start_soon(publish_conditional)
                    tasks.start_soon(publish_once)
                    await stored.wait()
                    link.cut()
        assert (await stream_state(watcher, stream))["messages"] == 3


async def test_while_the_link_is_down_publishes_wait_or_were_certainly_not_sent(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
        stream = await add_stream(connection, "EVENTS")
        subject = connection.namespace.subject("events", "a")
        gone = anyio.Event()
        connection.on_disconnect(gone.set)
        await own_server.kill()
        await gone.wait()
        with pytest.raises(Disconnected):
            await publisher.publish(subject, b"never", timeout_s=0.1)
        assert publisher.in_flight == 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(own_server.start)
            assert await publisher.publish(subject, b"later", timeout_s=60) == Receipt(stream, 1, False)


async def test_after_a_close_for_good_nothing_waits(connection: Connection, stream: str, subject: str) -> None:
    async with Publisher(connection) as publisher:
        connection.client.send(b"PUB " + b"a" * 5000 + b" 0\r\n\r\n")
        with anyio.fail_after(20), pytest.raises((OutcomeUnknown, ConnectionLost)):
            await publisher.publish(subject, b"", message_id="one", timeout_s=60)
        with pytest.raises(ConnectionLost):
            await publisher.publish(subject, b"", message_id="one")


# ---- the window


async def test_no_more_is_on_its_way_than_the_window(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection, window=5) as publisher:
        stream = await add_stream(connection, "EVENTS")
        subject = connection.namespace.subject("events", "a")
        await freeze(own_server)
        most = 0
        async with anyio.create_task_group() as tasks:

            async def publish(number: int) -> None:
                nonlocal most
                await publisher.publish(subject, b"", message_id=f"{number}")
                most = max(most, publisher.in_flight)

            for number in range(50):
                tasks.start_soon(publish, number)
            tasks.start_soon(publisher.publish_many, [Outgoing(subject, b"", f"many {n}") for n in range(50)])
            await anyio.wait_all_tasks_blocked()
            assert publisher.in_flight == 5
            thaw(own_server)
        assert most <= 5
        assert (await stream_state(connection, stream))["messages"] == 100


async def test_a_caller_that_gives_up_takes_no_place_for_good(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection, window=1) as publisher:
        await add_stream(connection, "EVENTS")
        subject = connection.namespace.subject("events", "a")
        await freeze(own_server)
        async with anyio.create_task_group() as sending:
            sending.start_soon(lambda: publisher.publish(subject, b"", message_id="sent"))
            while publisher.in_flight == 0:
                await anyio.lowlevel.checkpoint()
            sending.cancel_scope.cancel()
        with anyio.move_on_after(0.05) as waiting:
            await publisher.publish(subject, b"", message_id="waiting")
        with pytest.raises(Disconnected, match="window stayed full"):
            await publisher.publish(subject, b"", timeout_s=0.05)
        thaw(own_server)
        assert waiting.cancelled_caught
        assert (await publisher.publish(subject, b"", message_id="waiting")).seq == 2


# ---- killed servers


async def test_every_acknowledged_message_is_there_once_after_three_kills(own_server: EmbeddedServer) -> None:
    async with (
        connect(own_server.url, name="test") as connection,
        Publisher(connection, attempt_timeout_s=0.5) as publisher,
    ):
        stream = await add_stream(connection, "EVENTS", max_msgs_per_subject=1)
        acknowledged = anyio.Event()
        counts: dict[str, int] = {}
        is_over = False

        async def publish(worker: int) -> None:
            number = 0
            while not is_over:
                subject = connection.namespace.subject("events", f"{worker}-{number}")
                receipt = await publisher.publish(subject, b"x", message_id=f"{worker}-{number}")
                counts[subject] = receipt.seq
                number += 1
                acknowledged.set()

        async with anyio.create_task_group() as tasks:
            for worker in range(16):
                tasks.start_soon(publish, worker)
            for _ in range(3):
                acknowledged = anyio.Event()
                await acknowledged.wait()
                await own_server.kill()
                await own_server.start()
            acknowledged = anyio.Event()
            await acknowledged.wait()
            is_over = True
        state = await stream_state(connection, stream)
        assert state["messages"] == len(counts) == state["last_seq"]
        assert sorted(counts.values()) == list(range(1, len(counts) + 1))


def subject_stream(connection: Connection) -> str:
    return connection.namespace.stream("EVENTS")
