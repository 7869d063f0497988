"""The puller on a real server: what it holds is bounded, and it goes on after every way to die."""

import logging
from collections.abc import Callable
from datetime import datetime

import anyio
import pytest

from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import NoStream, PermissionDenied, StreamError
from streams.link.connection import Connection, connect
from streams.publish.publisher import Outgoing, Publisher
from streams.pull.puller import Delivery, Puller
from tests.support.moments import a_moment
from tests.support.server import add_consumer, add_stream, stream_state

SECOND_NS = 1_000_000_000


async def filled(connection: Connection, count: int, **consumer: object) -> str:
    """Make a work queue with `count` messages and the consumer `c`."""
    stream = await add_stream(connection, "WORK", retention="workqueue")
    await add_consumer(connection, stream, "c", **consumer)
    await fill(connection, count)
    return stream


async def fill(connection: Connection, count: int) -> None:
    async with Publisher(connection) as publisher:
        subjects = [connection.namespace.subject("work", f"{number}") for number in range(count)]
        await publisher.publish_many([Outgoing(subject, subject.encode()) for subject in subjects])


async def numbers(connection: Connection, stream: str) -> dict[str, int]:
    """Return the consumer's own counts."""
    info = await connection.api(f"CONSUMER.INFO.{stream}.c")
    return {name: value for name, value in info.items() if isinstance(value, int)}


async def until(check: Callable[[], bool]) -> None:
    """Wait until `check` says yes."""
    with anyio.fail_after(30):
        while not check():
            await a_moment()


async def until_waiting(connection: Connection, stream: str, requests: int) -> None:
    """Ask until this many requests stand at the server."""
    with anyio.fail_after(30):
        while (await numbers(connection, stream))["num_waiting"] != requests:
            await a_moment()


async def until_left(connection: Connection, stream: str, messages: int) -> None:
    """Ask until this many messages are left: the server takes an ack a moment after it came."""
    with anyio.fail_after(30):
        while (await stream_state(connection, stream))["messages"] != messages:
            await a_moment()


# ---- deliveries


async def test_a_delivery_says_what_it_is(connection: Connection, publisher: Publisher) -> None:
    stream = await filled(connection, 0)
    subject = connection.namespace.subject("work", "a")
    await publisher.publish(subject, b"body", headers={"Penstock-Node": "n1"})
    await publisher.publish(subject, b"next")
    async with Puller(connection, stream, "c", capacity=1) as puller:
        delivery = await puller.receive()
        stored = await connection.api(f"STREAM.MSG.GET.{stream}", {"seq": 1})
        assert (delivery.subject, delivery.payload) == (subject, b"body")
        assert delivery.headers == {"Penstock-Node": "n1"}
        assert (delivery.seq, delivery.delivered, delivery.pending) == (1, 1, 1)
        assert delivery.facts.stream == stream
        second, _, fraction = stored["message"]["time"].rstrip("Z").partition(".")
        stored_s = datetime.fromisoformat(f"{second}+00:00").timestamp()
        assert delivery.stored_ms == stored_s * 1000 + int(fraction.ljust(9, "0")[:3])
        assert not delivery.is_settled


async def test_what_is_acknowledged_leaves_the_queue(connection: Connection) -> None:
    stream = await filled(connection, 40)
    async with Puller(connection, stream, "c", capacity=4) as puller:
        payloads = []
        for number in range(40):
            delivery = await puller.receive()
            payloads.append(delivery.payload)
            await (delivery.ack() if number % 2 else delivery.ack_sync())
        await until_left(connection, stream, 0)
    assert payloads == [connection.namespace.subject("work", f"{number}").encode() for number in range(40)]


async def test_settling_again_does_nothing(connection: Connection) -> None:
    stream = await filled(connection, 1)
    async with Puller(connection, stream, "c", capacity=1) as puller:
        delivery = await puller.receive()
        await delivery.ack_sync()
        for again in (delivery.ack, delivery.ack_sync, delivery.nak, delivery.extend):
            await again()
        await delivery.term("late")
        delivery.forget()
        assert delivery.is_settled
        assert puller.held == 0
    assert (await numbers(connection, stream))["num_redelivered"] == 0


async def test_a_nak_brings_it_again_after_its_delay(connection: Connection) -> None:
    stream = await filled(connection, 1)
    async with Puller(connection, stream, "c", capacity=1) as puller:
        await (await puller.receive()).nak()
        second = await puller.receive()
        started_s = anyio.current_time()
        await second.nak(delay_s=0.3)
        third = await puller.receive()
        assert (second.delivered, third.delivered) == (2, 3)
        assert anyio.current_time() - started_s >= 0.29


async def test_a_term_removes_it_and_tells_why(connection: Connection) -> None:
    stream = await filled(connection, 1)
    reasons: list[bytes] = []
    advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{stream}.c"
    await connection.subscribe(advisory, lambda message: reasons.append(message.payload))
    async with Puller(connection, stream, "c", capacity=1) as puller:
        await (await puller.receive()).term("no JSON:\r\n+ACK")
        await connection.flush()
        await until(lambda: len(reasons) == 1)
    assert b'"reason":"no JSON:  +ACK"' in reasons[0]
    await until_left(connection, stream, 0)


async def test_an_ack_that_nobody_takes_leaves_it_unsettled(connection: Connection) -> None:
    stream = await filled(connection, 1)
    async with Puller(connection, stream, "c", capacity=1) as puller:
        delivery = await puller.receive()
        await connection.api(f"STREAM.DELETE.{stream}")
        with pytest.raises(NoStream):
            await delivery.ack_sync()
        assert not delivery.is_settled
        delivery.forget()
        assert puller.held == 0


async def test_what_is_kept_alive_is_not_given_to_others(connection: Connection) -> None:
    stream = await filled(connection, 3, ack_wait=3 * SECOND_NS)
    async with Puller(connection, stream, "c", capacity=3, keep_alive_s=0.2) as puller:
        kept, clock = await puller.receive(), await puller.receive()  # a third one stays in the puller
        await clock.nak(delay_s=3.5)
        again = await puller.receive()
        assert (again.seq, again.delivered, again.payload) == (3, 1, again.payload)
        again = await puller.receive()
        assert (again.seq, again.delivered) == (clock.seq, 2)
        assert (await numbers(connection, stream))["num_redelivered"] == 1
        await kept.ack_sync()


async def test_what_is_not_kept_alive_comes_again(connection: Connection) -> None:
    stream = await filled(connection, 1, ack_wait=SECOND_NS // 2)
    async with Puller(connection, stream, "c", capacity=1) as puller:
        first = await puller.receive()
        async with Puller(connection, stream, "c", capacity=1) as other:
            again = await other.receive()
        assert (again.seq, again.delivered) == (first.seq, 2)


async def test_what_is_handed_out_once_more_to_its_holder_does_not_come_twice(connection: Connection) -> None:
    stream = await filled(connection, 1)
    async with Puller(connection, stream, "c", capacity=3) as puller:
        first = await puller.receive()
        puller.send(first.frame(b"-NAK"))  # as a new leader does by itself
        while not (await numbers(connection, stream))["num_redelivered"]:
            await a_moment()
        await fill(connection, 2)
        assert [(await puller.receive()).seq for _ in range(2)] == [2, 3]  # there is room for both
        await first.ack_sync()
        await until_left(connection, stream, 2)


# ---- how much


@pytest.mark.parametrize("capacity", [1, 3, 16, 17, 100])
async def test_never_more_than_its_capacity(connection: Connection, capacity: int) -> None:
    stream = await filled(connection, 300)
    async with Puller(connection, stream, "c", capacity=capacity) as puller:
        held: list[Delivery] = []
        for _ in range(300):
            held.append(await puller.receive())
            assert puller.held + puller.requested <= capacity
            if len(held) == capacity or len(held) > 10:
                assert (await numbers(connection, stream))["num_ack_pending"] <= capacity
                while held:
                    await held.pop().ack_sync()  # of a plain ack the server may hear after the next request
    assert (await numbers(connection, stream))["num_pending"] == 0


async def test_many_are_received_at_once_but_not_waited_for_long(connection: Connection) -> None:
    stream = await filled(connection, 25)
    async with Puller(connection, stream, "c", capacity=100) as puller:
        got = [await puller.receive()]
        while len(got) < 20:
            got += await puller.receive_many(20 - len(got), 5)
        await until(lambda: puller.held == 25)
        started_s = anyio.current_time()
        rest = await puller.receive_many(10, 0.2)
        assert [delivery.seq for delivery in got + rest] == list(range(1, 26))
        assert 0.15 < anyio.current_time() - started_s < 30
        with anyio.move_on_after(0.1) as scope:
            await puller.receive_many(10, 0.01)
        assert scope.cancelled_caught


async def test_receivers_that_give_up_take_nothing_along(connection: Connection) -> None:
    stream = await filled(connection, 0)
    async with Puller(connection, stream, "c", capacity=10) as puller:
        seqs: list[int] = []
        async with anyio.create_task_group() as tasks:

            async def receive() -> None:
                seqs.append((await puller.receive()).seq)

            for number in range(10):
                if number % 2:
                    tasks.start_soon(receive)
                else:
                    with anyio.move_on_after(0.01) as scope:
                        await puller.receive()
                    assert scope.cancelled_caught
            await fill(connection, 5)
        assert sorted(seqs) == [1, 2, 3, 4, 5]


async def test_a_paused_puller_asks_for_nothing(connection: Connection) -> None:
    stream = await filled(connection, 0)
    async with Puller(connection, stream, "c", capacity=10) as puller:
        await until_waiting(connection, stream, 1)
        puller.set_capacity(0)
        await connection.flush()
        await fill(connection, 5)
        with anyio.fail_after(30):
            while (counts := await numbers(connection, stream))["num_pending"] != 5:
                await a_moment()
        assert (counts["num_ack_pending"], puller.requested) == (0, 0)
        puller.set_capacity(2)
        seqs = []
        for _ in range(5):
            delivery = await puller.receive()
            seqs.append(delivery.seq)
            assert puller.held + puller.requested <= 2
            await delivery.ack()
        assert seqs == [1, 2, 3, 4, 5]


async def test_at_its_end_it_gives_back_what_nobody_received(connection: Connection) -> None:
    stream = await filled(connection, 10)
    async with Puller(connection, stream, "c", capacity=10) as puller:
        mine = await puller.receive()
        await until(lambda: puller.held == 10)
    with pytest.raises(StreamError, match="closed"):
        await puller.receive()
    await mine.ack()
    async with Puller(connection, stream, "c", capacity=10) as other:
        with anyio.fail_after(20):  # the ack wait is thirty seconds
            again = [await other.receive() for _ in range(9)]
    assert [delivery.seq for delivery in again] == list(range(2, 11))
    assert {delivery.delivered for delivery in again} == {2}


# ---- every way to die


async def test_it_goes_on_after_killed_servers(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
        stream = await filled(connection, 0, ack_wait=SECOND_NS)
        seen: set[bytes] = set()

        async def work(puller: Puller) -> None:
            while True:
                delivery = await puller.receive()
                await delivery.ack()
                seen.add(delivery.payload)

        async with Puller(connection, stream, "c", capacity=50) as puller, anyio.create_task_group() as tasks:
            tasks.start_soon(work, puller)
            for kill in range(3):
                subject = connection.namespace.subject("work", f"{kill}")
                await publisher.publish_many(
                    [Outgoing(subject, b"%d %d" % (kill, n), f"{kill} {n}") for n in range(300)]
                )
                await until(lambda most=kill * 300: len(seen) > most)  # type: ignore[misc] # bound at once
                await own_server.kill()
                await own_server.start()
            await until_left(connection, stream, 0)  # an ack that was lost with a server costs a redelivery
            assert len(seen) == 900
            assert puller.held + puller.requested <= 50
            tasks.cancel_scope.cancel()


async def test_it_waits_for_its_consumer_and_says_so_once(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    stream = connection.namespace.stream("WORK")
    caplog.set_level(logging.INFO, "streams.pull.puller")

    def told() -> list[str]:
        return [
            record.message for record in caplog.records if record.message in ("puller.troubled", "puller.recovered")
        ]

    async with Puller(connection, stream, "c", capacity=5) as puller:
        await until(lambda: len(told()) == 1)
        await filled(connection, 1)
        with anyio.fail_after(20):
            await (await puller.receive()).ack()
        await connection.api(f"CONSUMER.DELETE.{stream}.c")
        await until(lambda: len(told()) == 3)
        await add_consumer(connection, stream, "c")
        await fill(connection, 1)
        with anyio.fail_after(20):
            await (await puller.receive()).ack()
        assert puller.held + puller.requested <= 5
    assert told() == ["puller.troubled", "puller.recovered"] * 2


async def test_an_expired_request_is_made_again(connection: Connection) -> None:
    stream = await filled(connection, 0)
    async with Puller(connection, stream, "c", capacity=5, expires_s=0.1) as puller:
        await until_waiting(connection, stream, 1)
        first_inbox = puller.requested
        with anyio.move_on_after(0.5) as scope:  # several expiries
            await puller.receive()
        assert scope.cancelled_caught
        assert puller.requested == first_inbox == 5
        await until_waiting(connection, stream, 1)
        await fill(connection, 1)
        assert (await puller.receive()).seq == 1


async def test_silence_is_noticed_and_ended(connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    stream = await filled(connection, 0)
    async with Puller(connection, stream, "c", capacity=5, expires_s=0.5) as puller:
        await until_waiting(connection, stream, 1)
        assert puller._inbox is not None
        connection.client.send(f"UNSUB {puller._inbox.sid}\r\n".encode())  # the server drops requests nobody hears
        await fill(connection, 1)
        with anyio.fail_after(20):
            assert (await puller.receive()).seq == 1
    assert {record.message for record in caplog.records} == {"puller.silent"}


async def test_a_subject_that_is_no_text_is_delivered_and_ends_nothing(connection: Connection) -> None:
    """11: the server stores any bytes as a subject; a strict decoding would end the reading of the whole link."""
    stream = await filled(connection, 0)
    prefix = (await connection.api(f"STREAM.INFO.{stream}"))["config"]["subjects"][0].removesuffix(".>").encode()
    connection.client.send(b"PUB %b.\xff\xfe  1\r\nx\r\n" % prefix)
    async with Puller(connection, stream, "c", capacity=5) as puller:
        with anyio.fail_after(20):
            delivery = await puller.receive()
            await delivery.ack_sync()
        assert delivery.subject == f"{prefix.decode()}.\ufffd\ufffd"
        assert connection.is_connected


async def test_nothing_more_comes_when_the_connection_is_closed_for_good(connection: Connection) -> None:
    stream = await filled(connection, 0)
    async with Puller(connection, stream, "c", capacity=5) as puller:
        connection.client.send(b"PUB " + b"a" * 5000 + b" 0\r\n\r\n")
        with anyio.fail_after(20), pytest.raises(StreamError, match="for good"):
            await puller.receive()


async def test_a_forbidden_consumer_is_told_to_the_receiver(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = 'authorization { users: [ { user: w, password: p, permissions: { publish: { deny: "$JS.API.>" } } } ] }'
    async with embedded_server(tmp_path_factory.mktemp("own"), config=config) as server:
        async with connect(server.url.replace("//", "//w:p@"), name="test") as connection:
            async with Puller(connection, "WORK", "c", capacity=1) as puller:
                with anyio.fail_after(20), pytest.raises(PermissionDenied):
                    await puller.receive()


async def test_deliveries_go_to_whoever_asked_for_them_as_they_come(connection: Connection) -> None:
    stream = await filled(connection, 3)
    taken: list[Delivery] = []
    async with Puller(connection, stream, "c", capacity=3, deliver=taken.append) as puller:
        await until(lambda: len(taken) == 3)
        assert [delivery.seq for delivery in taken] == [1, 2, 3]
        assert puller.held == 3
        await taken[0].ack_sync()
    assert (await numbers(connection, stream))["num_ack_pending"] == 2  # they are their taker's to settle


async def test_many_are_acknowledged_at_once_each_of_them_once(connection: Connection) -> None:
    stream = await filled(connection, 30)
    taken: list[Delivery] = []
    async with Puller(connection, stream, "c", capacity=20, deliver=taken.append) as puller:
        async with Puller(connection, stream, "c", capacity=10) as other:
            await until(lambda: len(taken) == 20)
            foreign = await other.receive()
            await taken[0].ack()
            puller.ack_all([*taken, foreign])
            puller.ack_all(taken)
            assert (puller.held, all(delivery.is_settled for delivery in taken)) == (0, True)
            assert not foreign.is_settled  # it is another's, and its place is there
            await foreign.ack()
    await until_left(connection, stream, 9)


async def test_puller_knows_of_trouble_with_its_consumer(connection: Connection) -> None:
    stream = await filled(connection, 0)
    async with Puller(connection, stream, "c", capacity=1) as puller:
        assert not puller.is_troubled
        await connection.api(f"CONSUMER.DELETE.{stream}.c")
        await until(lambda: puller.is_troubled)
        await add_consumer(connection, stream, "c")
        await fill(connection, 1)
        await puller.receive()
        assert not puller.is_troubled


async def test_a_place_that_is_free_does_not_wait_for_others_to_become_free(connection: Connection) -> None:
    stream = await filled(connection, 20)
    taken: list[Delivery] = []
    async with Puller(connection, stream, "c", capacity=20, deliver=taken.append) as puller:
        await until(lambda: len(taken) == 20)
        for delivery in taken[:4]:
            await delivery.ack_sync()
        assert (puller.held, puller.requested) == (16, 1)  # too few became free for a request of their own
        await fill(connection, 4)
        await until(lambda: len(taken) == 24)


async def test_places_that_become_free_one_by_one_are_asked_for_together(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await filled(connection, 0)
    asked: list[int] = []
    send = connection.client.send

    def noted(frame: bytes) -> None:
        if b"expires" in frame:
            asked.append(int(frame.rpartition(b'"batch":')[2].partition(b",")[0]))
        send(frame)

    monkeypatch.setattr(connection.client, "send", noted)
    async with Puller(connection, stream, "c", capacity=8, expires_s=60) as puller:
        for _ in range(16):
            await fill(connection, 1)
            await (await puller.receive()).ack()
        assert asked == [8, 4, 4, 4, 4]
        taken = list[Delivery]()
        await fill(connection, 12)
        with anyio.fail_after(30):
            while len(taken) < 8:  # as many as it may hold, though the server was asked for fewer
                taken.append(await puller.receive())
        await taken.pop().ack()
        with anyio.fail_after(30):
            await puller.receive()


async def test_pulls_to_which_nothing_comes_become_rare_and_a_message_is_still_handed_over_at_once(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await filled(connection, 0)
    lasts: list[int] = []
    send = connection.client.send

    def noted(frame: bytes) -> None:
        if b"expires" in frame:
            lasts.append(int(frame.rpartition(b":")[2].rstrip().rstrip(b"}")) // 100_000_000)
        send(frame)

    monkeypatch.setattr(connection.client, "send", noted)
    async with Puller(connection, stream, "c", capacity=1, expires_s=0.1) as puller:
        await until(lambda: len(lasts) >= 4)
        assert lasts[:4] == [1, 5, 24, 24]
        asked = len(lasts)
        await fill(connection, 1)
        with anyio.fail_after(30):
            delivery = await puller.receive()
        assert len(lasts) <= asked + 1  # it came to the pull that waited, or to the next one, if that had just ended
        await delivery.ack()
        await until(lambda: len(lasts) >= 6)
        assert 1 in lasts[4:6]
