"""Topics on a real server: made at first use, followed live by every node, what is refused keeps what was in force."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import pytest
from anyio import Event, create_task_group, fail_after

from actors.jobs.topics import Topics
from actors.runtime.rules.setting_values import BadSetting
from streams.buckets.bucket import Bucket
from streams.errors import Disconnected, MalformedSubject, NoStream
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.publish.publisher import Publisher
from streams.pull.once import PullOnce
from tests.support.buckets import add_bucket
from tests.support.jobs import topology_of_jobs
from tests.support.moments import a_moment
from tests.support.server import make_topology

pytestmark = pytest.mark.three_servers


@asynccontextmanager
async def followed(connection: Connection, bucket: Bucket[bytes]) -> AsyncIterator[Topics]:
    topics = Topics(bucket, connection, connection.namespace)
    async with create_task_group() as tasks:
        await tasks.start(lambda *, task_status: topics.run(task_status=task_status))
        yield topics
        tasks.cancel_scope.cancel()


@pytest.fixture
async def bucket(connection: Connection, publisher: Publisher) -> Bucket[bytes]:
    await make_topology(connection, topology_of_jobs(connection.namespace))
    return Bucket(connection, publisher, await add_bucket(connection, "TOPICS", history=10), bytes)


async def until(is_so: Callable[[], bool]) -> None:
    with fail_after(20):
        while not is_so():
            await a_moment()


async def consumers(connection: Connection) -> set[str]:
    answers = [await connection.api(f"CONSUMER.NAMES.{name}") for name in connection.namespace.jobs_streams()]
    return {name for answer in answers for name in answer.get("consumers") or ()}


async def test_a_topic_is_made_at_its_first_use_with_the_consumers_of_its_lanes(
    connection: Connection, bucket: Bucket[bytes]
) -> None:
    async with followed(connection, bucket) as topics:
        with fail_after(20):
            assert "mail" not in topics
            await topics.use("mail", "normal")
            assert await consumers(connection) == {"jobs_mail"}
            await topics.use("mail", "high")
            assert await consumers(connection) == {"jobs_mail", "jobs-high_mail"}
            await until(lambda: topics.current("mail").lanes == ("high", "normal"))
            assert topics.known() == ["mail"]
            entry = await bucket.get("mail")
            assert entry is not None
            assert entry.value == b'{"lanes":["high","normal"]}'


async def test_a_topic_does_not_wait_for_the_consumer_of_another_one(
    connection: Connection, bucket: Bucket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with a hundred flows has two hundred topics."""
    asked: list[str] = []
    both, request = Event(), connection.request

    async def together(subject: str, payload: bytes = b"", **others: Any) -> Message:
        if "CONSUMER.CREATE" in subject and "together" in subject:
            asked.append(subject)
            if len(asked) == 2:
                both.set()
            await both.wait()
        return await request(subject, payload, **others)

    async with followed(connection, bucket) as topics:
        monkeypatch.setattr(connection, "request", together)
        with fail_after(20):
            async with create_task_group() as tasks:
                for topic in ("together-a", "together-b", "together-a"):
                    tasks.start_soon(topics.use, topic, "normal")
        assert len(asked) == 2, "each is made once"
        assert await consumers(connection) == {"jobs_together-a", "jobs_together-b"}


async def test_every_node_hears_of_a_topic_and_its_lanes(connection: Connection, bucket: Bucket[bytes]) -> None:
    told: list[str] = []
    async with followed(connection, bucket) as topics:
        with fail_after(20):
            async with followed(connection, bucket) as other:
                other.on_change(told.append)
                async with create_task_group() as tasks:
                    for node in (topics, other, topics, other):
                        for priority in ("low", "normal"):
                            tasks.start_soon(node.use, "mail", priority)
                await until(lambda: other.current("mail").lanes == topics.current("mail").lanes == ("normal", "low"))
                assert set(told) == {"mail"}
                await other.use("mail")
                assert await consumers(connection) == {"jobs_mail", "jobs-low_mail"}


async def test_an_add_enlists_a_topic_without_a_consumer(connection: Connection, bucket: Bucket[bytes]) -> None:
    async with followed(connection, bucket) as topics, followed(connection, bucket) as others:
        with fail_after(20):
            await topics.enlist("mail", "normal")
            await topics.enlist("mail", "high")
            assert await consumers(connection) == set()
            await until(lambda: set(others.current("mail").lanes) == {"high", "normal"})
            await others.use("mail")
            assert await consumers(connection) == {"jobs_mail", "jobs-high_mail"}
            await bucket.delete("mail")
            await until(lambda: "mail" not in topics)
            await topics.enlist("mail", "low")
            assert topics.current("mail").lanes == ("normal", "low")


async def test_a_missing_consumer_is_made_again(connection: Connection, bucket: Bucket[bytes]) -> None:
    async with followed(connection, bucket) as topics:
        with fail_after(20):
            await topics.use("mail")
            await connection.api(f"CONSUMER.DELETE.{connection.namespace.jobs_stream('mail')}.jobs_mail")
            await topics.use("mail")
            assert await consumers(connection) == set()  # nobody has told that it is missing
            topics.forget_consumer("mail")
            await topics.use("mail")
            assert await consumers(connection) == {"jobs_mail"}


async def test_what_is_set_is_in_force_level_by_level(connection: Connection, bucket: Bucket[bytes]) -> None:
    async with followed(connection, bucket) as topics:
        with fail_after(20):
            settings = await topics.change("mail", {"ttr": "90s", "rate": 50})
            assert (settings.ttr_ms, settings.rate) == (90_000, 50.0)
            await bucket.put("default", b'{"attempts":3,"ttr":"5m"}')
            await until(lambda: topics.current("mail").attempts == 3)
            assert topics.current("mail").ttr_ms == 90_000
            assert topics.current("nobody").ttr_ms == 300_000
            await topics.change("mail", {"ttr": None, "is_paused": True})
            await until(lambda: topics.current("mail").is_paused)
            assert topics.current("mail").ttr_ms == 300_000
            await bucket.delete("mail")
            await until(lambda: "mail" not in topics)
            assert topics.current("mail").attempts == 3


async def test_a_bad_value_is_refused_at_the_door_and_in_the_bucket(
    connection: Connection, bucket: Bucket[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with followed(connection, bucket) as topics:
        with fail_after(20), caplog.at_level(logging.WARNING):
            await topics.change("mail", {"ttr": "90s"})
            await until(lambda: topics.current("mail").ttr_ms == 90_000)
            with pytest.raises(BadSetting, match="did you mean ttr"):
                await topics.change("mail", {"tr": "90s"})
            for bad in (b"{", b'{"ttr":60}', b"[]", b'{"backoff":"1d"}'):
                await bucket.put("mail", bad)
            await bucket.put("default", b'{"nonsense":1}')
            await bucket.put("other", b'{"ttr":"61s"}')
            await until(lambda: topics.current("other").ttr_ms == 61_000)
            assert topics.current("mail").ttr_ms == 90_000
            assert sum("topics.refused" in record.message for record in caplog.records) == 5
            with pytest.raises(BadSetting):  # what is there cannot be built upon
                await topics.change("mail", {"ttr": "60s"})
            await topics.use("mail")  # and is not overwritten


async def test_a_topic_written_badly_before_the_start_is_known_with_the_default_settings(
    connection: Connection, bucket: Bucket[bytes]
) -> None:
    await bucket.put("mail", b"{")
    async with followed(connection, bucket) as topics:
        assert "mail" in topics
        assert topics.current("mail").ttr_ms == 60_000


@pytest.mark.parametrize("topic", ["default", "a.b", "$JS.API.>", "", "a b"])
async def test_a_name_that_is_no_topic_is_refused(connection: Connection, bucket: Bucket[bytes], topic: str) -> None:
    async with followed(connection, bucket) as topics:
        with fail_after(20):
            with pytest.raises(MalformedSubject):
                await topics.use(topic, "normal")
            assert await consumers(connection) == set()


async def test_who_changes_different_settings_at_once_loses_nothing(
    connection: Connection, bucket: Bucket[bytes]
) -> None:
    names = {"ttr": "90s", "attempts": 7, "rate": 5, "most_waiting": 9}
    fields = ("ttr_ms", "attempts", "rate", "most_waiting")
    async with followed(connection, bucket) as topics:
        with fail_after(20):
            async with create_task_group() as tasks:
                for name, value in names.items():
                    tasks.start_soon(topics.change, "mail", {name: value})
            await until(lambda: attrgetter(*fields)(topics.current("mail")) == (90_000, 7, 5.0, 9))


async def test_a_consumer_that_nobody_pulls_from_goes_and_its_jobs_stay(
    connection: Connection, publisher: Publisher, bucket: Bucket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,500 topics of one token cost the server 65 MB, for ever."""
    monkeypatch.setattr("streams.topology.specs.JOBS_IDLE_S", 0.5)
    ready = connection.namespace.job("ready", "mail", "1")
    async with followed(connection, bucket) as topics:
        with fail_after(60):
            await topics.use("mail", "normal")
            await publisher.publish(ready, b"{}")
            while await consumers(connection) != set():
                await a_moment()
            monkeypatch.setattr("streams.topology.specs.JOBS_IDLE_S", 60)
            async with PullOnce(connection) as pulls:
                stream = connection.namespace.jobs_stream("mail")
                is_told = False
                while not is_told:  # a server that has not heard of it yet answers nothing, or has nothing
                    try:
                        await pulls.pull(stream, "jobs_mail", most=1, wait_s=1.0, most_bytes=1 << 20)
                    except Disconnected:
                        continue
                    except NoStream:
                        is_told = True
                topics.forget_consumer("mail")  # as whoever pulls does then
                await topics.use("mail", "normal")
                [delivery] = await pulls.pull(stream, "jobs_mail", most=1, wait_s=20.0, most_bytes=1 << 20)
                assert delivery.payload == b"{}"


async def test_a_consumer_that_was_made_before_they_went_is_used_as_it_is(
    connection: Connection, bucket: Bucket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streams.topology.specs.JOBS_IDLE_S", 0.0)
    async with followed(connection, bucket) as topics:
        await topics.use("mail", "normal")
    monkeypatch.undo()
    async with followed(connection, bucket) as topics:
        await topics.use("mail", "normal")
