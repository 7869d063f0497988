"""Jobs submitted by a plain publish: added once, whatever comes twice; refused ones become dead letters."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from actors.jobs.rules.job_answers import Listed
from actors.jobs.submissions import TRACE_S, BadSubmission, job_submissions, read_submission
from actors.runtime import submissions
from streams.embedded.server import EmbeddedServer
from streams.errors import StreamError
from streams.link.connection import Connection
from streams.messages.jobs import NewJob
from streams.reads.log import last_entry
from tests.support.desks import TOPIC, Office, Started, open_office
from tests.support.moments import a_moment
from tests.support.natscli import NatsCli
from tests.support.server import stream_state

pytestmark = pytest.mark.three_servers

HOUR_MS = 3_600_000


@pytest.fixture
async def office(connection: Connection) -> AsyncIterator[Office]:
    async with open_office(connection, "SUBMIT") as opened:
        yield opened


@asynccontextmanager
async def taking(office: Office) -> AsyncIterator[asyncio.Task[None]]:
    """Run the actor, and stop it at the end of the block."""
    stop, started = anyio.Event(), Started()
    actor = job_submissions(office.desk, office.connection, office.publisher, stop)
    running = asyncio.create_task(actor.run(task_status=started))
    await started.wait()
    try:
        yield running
    finally:
        stop.set()
        await asyncio.wait({running})


async def hand_in(office: Office, payload: object, *, topic: str = TOPIC) -> int:
    """Publish a submission as any program does; return its sequence."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return (await office.publisher.publish(office.namespace.submit_job(topic), body)).seq


async def until_empty(office: Office) -> None:
    while (await stream_state(office.connection, office.namespace.stream("SUBMIT")))["messages"]:
        await a_moment()


async def peek(office: Office, job_id: str) -> Listed:
    found = await office.desk.peek(TOPIC, job_id)
    assert found is not None
    return found


async def test_what_is_handed_in_is_added(office: Office) -> None:
    await hand_in(office, {"id": "a", "body": {"to": 7}, "delay_ms": HOUR_MS})
    await hand_in(office, {"topic": TOPIC, "id": "b"})
    async with taking(office):
        await until_empty(office)
    one = await peek(office, "a")
    assert (one.state, bytes(one.body)) == ("delayed", b'{"to": 7}')
    assert (await peek(office, "b")).state == "ready"
    assert await office.dead() == []


async def test_a_topic_in_the_payload_alone_will_do(office: Office) -> None:
    subject = office.namespace.subject("submit", "job")
    await office.publisher.publish(subject, b'{"topic": "mail", "id": "a"}')
    async with taking(office):
        await until_empty(office)
    assert (await peek(office, "a")).state == "ready"


async def test_a_nonce_names_the_job_of_a_publish_as_of_any_other_add(office: Office) -> None:
    (added,) = await office.desk.add([NewJob(topic=TOPIC, body=msgspec.Raw(b"1"), nonce="n1")])
    for body in (1, 1, 2):
        await hand_in(office, {"nonce": "n1", "body": body})
    async with taking(office):
        await until_empty(office)
    assert (await office.desk.count(TOPIC)).ready == 1
    assert bytes((await peek(office, added.id)).body) == b"1"
    assert len(await office.dead()) == 1, "the one with another body"


async def test_one_that_was_added_and_comes_again_after_its_expiry_is_not_told_to_be_refused(office: Office) -> None:
    """Its desk died after the add and before the acknowledgement."""
    payload = {"id": "a", "expires_in_ms": 5_000}
    await hand_in(office, payload)
    subject = office.namespace.submit_job(TOPIC)
    stored = await last_entry(office.connection, office.namespace.stream("SUBMIT"), subject)
    assert stored is not None
    new = read_submission(TOPIC, stored.payload, seq=stored.seq, stored_ms=stored.stored_ms)
    (first,) = await office.desk.add([new], trace_s=TRACE_S)
    assert first.code == "ok"
    await office.desk.finish([(await office.reserve()).receipt])
    office.clock.ahead_ms = 6_000
    async with taking(office):
        await until_empty(office)
    assert await office.dead() == []


async def test_a_thousand_are_added_in_pages(office: Office) -> None:
    for n in range(1000):
        await office.connection.publish_core(office.namespace.submit_job(TOPIC), json.dumps({"id": f"{n}"}).encode())
    async with taking(office):
        await until_empty(office)
    assert (await office.desk.count(TOPIC)).ready == 1000


BAD = {
    "no JSON": b"{",
    "25 nothing": b"",
    "27 cut short": b'{"id": "a", "bo',
    "28 nested too deeply": b'{"body": ' + b"[" * 500 + b"]" * 500 + b"}",
    "28 nested far too deeply": b'{"body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "29 NaN": b'{"delay_ms": NaN}',
    "29 a body of NaN": b'{"body": NaN}',
    "30 a large number": b'{"delay_ms": 9223372036854775808}',
    "32 no UTF-8": b'{"body": "\xff"}',
    "32 half a surrogate": b'{"body": "\\ud800"}',
    "33 a mark in front": b'\xef\xbb\xbf{"id": "a"}',
    "26 an unknown field": b'{"delay": 5}',
    "a list": b"[]",
    "another topic": b'{"topic": "other"}',
    "a body that is too large": b'{"body": "' + b"x" * 300_000 + b'"}',
    "an id that is too long": json.dumps({"id": "x" * 256}).encode(),
    "47 a delay below nothing": b'{"delay_ms": -1}',
    "48 a delay for ever": b'{"delay_ms": 1000000000000000000}',
    "49 no TTR": b'{"ttr_ms": 0}',
    "due before it is added, expired": b'{"expires_ms": 1}',
}


async def test_what_is_refused_becomes_a_dead_letter_and_stops_nothing(office: Office) -> None:
    seqs = {await hand_in(office, payload): name for name, payload in BAD.items()}
    await hand_in(office, {"id": "good"})
    async with taking(office):
        await until_empty(office)
    letters = {seqs[int(letter["id"])]: letter for letter in await office.dead()}
    assert set(letters) == set(BAD)
    assert {(letter["engine"], letter["name"]) for letter in letters.values()} == {("submit", TOPIC)}
    assert all(letter["reason"] for letter in letters.values())
    assert "delay" in letters["26 an unknown field"]["reason"]
    assert letters["47 a delay below nothing"]["body"] == {"delay_ms": -1}
    assert (await peek(office, "good")).state == "ready"
    assert (await office.desk.count(TOPIC)).ready == 1


@pytest.mark.parametrize("token", ["a b", "*", "größe", "\udcff\udcfe", "a.b", "a" * 65, "default"])
async def test_an_odd_topic_is_refused_and_the_link_lives(office: Office, token: str) -> None:
    """1 to 14: whoever may publish below submit.job may send any bytes as a topic."""
    raw = f"{office.namespace.name}.submit.job.{token}".encode("utf-8", "surrogateescape")
    if b" " in raw:
        raw = raw.replace(b" ", b"\x01")
    office.connection.client.send(b"PUB %b  2\r\n{}\r\n" % raw)
    await office.connection.flush()
    link = office.connection.client.client_id
    async with taking(office) as running:
        await hand_in(office, {"id": "good"})
        await until_empty(office)
        assert not running.done()
    [letter] = await office.dead()
    assert letter["engine"] == "submit"
    assert (await peek(office, "good")).state == "ready"
    assert office.connection.client.client_id == link


async def test_the_same_message_twice_is_one_job(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash between the add and the ack: whatever the policy, the repeat finds its own job and is content."""
    for on_same in ("keep", "error", "replace"):
        await hand_in(office, {"id": on_same, "on_same": on_same, "body": 1, "delay_ms": HOUR_MS})
    await hand_in(office, {"body": "no id", "delay_ms": HOUR_MS})
    add = office.desk.add
    lost = 0

    async def lose(jobs: list[NewJob], **more: Any) -> object:
        nonlocal lost
        answers = await add(jobs, **more)
        if jobs and not lost:
            lost += 1
            raise StreamError("the process died here")
        return answers

    monkeypatch.setattr(office.desk, "add", lose)
    monkeypatch.setattr(submissions, "AGAIN_S", 0.0)
    async with taking(office):
        await until_empty(office)
    assert lost == 1
    assert (await office.desk.count(TOPIC)).delayed == 4
    assert await office.dead() == []


async def test_the_policies_hold_against_what_was_there_before(office: Office) -> None:
    for on_same in ("keep", "error", "replace"):
        await office.add(on_same, body="first", delay_ms=HOUR_MS)
        await hand_in(office, {"id": on_same, "on_same": on_same, "body": "second", "delay_ms": HOUR_MS})
    async with taking(office):
        await until_empty(office)
    bodies = [bytes((await peek(office, one)).body) for one in ("keep", "error", "replace")]
    assert bodies == [b'"first"', b'"first"', b'"second"']
    letters = {letter["body"]["on_same"]: letter["reason"] for letter in await office.dead()}
    assert set(letters) == {"keep", "error"}, "its publisher hears no answer, so nothing vanishes"
    assert "has a job of this id" in letters["error"]
    assert "has another job of this id" in letters["keep"]


async def test_what_the_topic_does_not_take_is_a_dead_letter(office: Office) -> None:
    await office.set(most_waiting=1)
    for n in range(3):
        await hand_in(office, {"id": f"{n}"})
    async with taking(office):
        await until_empty(office)
    assert (await office.desk.count(TOPIC)).ready == 1
    assert len(await office.dead()) == 2


async def test_a_delay_counts_from_the_publish(office: Office) -> None:
    await hand_in(office, {"id": "a", "delay_ms": HOUR_MS})
    stored_ms = office.clock.now_ms()
    office.clock.ahead_ms = HOUR_MS // 2  # no node ran for half an hour
    async with taking(office):
        await until_empty(office)
    assert abs((await peek(office, "a")).due_ms - stored_ms - HOUR_MS) < 60_000


async def test_headers_of_the_servers_are_of_no_avail(office: Office) -> None:
    """22: what a client forges is refused by the server, or means nothing to us."""
    for name, value in (("Nats-TTL", "1s"), ("Nats-Rollup", "sub"), ("Nats-Schedule", "@at 2030-01-01T00:00:00Z")):
        with pytest.raises(StreamError):
            await office.publisher.publish(office.namespace.submit_job(TOPIC), b"{}", headers={name: value})
    subject, headers = office.namespace.submit_job(TOPIC), {"Penstock-Cause": "forged"}
    await office.publisher.publish(subject, b'{"id": "a"}', message_id="forged", headers=headers)
    async with taking(office):
        await until_empty(office)
    assert (await peek(office, "a")).state == "ready"


async def test_by_the_nats_command(server: EmbeddedServer, office: Office, tmp_path: Path) -> None:
    nats = NatsCli.or_skip(server.url, tmp_path)
    await nats.run("pub", office.namespace.submit_job(TOPIC), '{"id": "by-hand", "body": 1}')
    async with taking(office):
        await until_empty(office)
    assert (await peek(office, "by-hand")).state == "ready"


def test_moments_are_absolute_and_a_repeat_says_the_same() -> None:
    payload = b'{"delay_ms": 5000, "expires_in_ms": 9000}'
    first = read_submission("mail", payload, seq=7, stored_ms=1_000_000)
    assert (first.id, first.due_ms, first.delay_ms) == ("submit-1000000-7", 1_005_000, 0)
    assert (first.expires_ms, first.expires_in_ms) == (1_009_000, None)
    again = read_submission("mail", payload, seq=7, stored_ms=1_000_000)
    assert (again.id, again.due_ms, again.expires_ms) == (first.id, first.due_ms, first.expires_ms)


def test_without_any_topic_it_is_refused() -> None:
    with pytest.raises(BadSubmission, match="no topic"):
        read_submission("", b'{"id": "a"}', seq=1, stored_ms=1)
