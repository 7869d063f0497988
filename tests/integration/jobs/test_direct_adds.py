"""A client that stores its jobs by itself keeps the rules that a desk keeps, and gives a desk what it cannot judge."""

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import Raw

import penstock
from actors.jobs.rules.job_answers import Added, NotAdded
from penstock.sdk import direct_adds
from penstock.sdk.client import Client
from streams.embedded.server import EmbeddedServer
from streams.errors import OutcomeUnknown, StreamError
from streams.link.store_health import StoreHealth
from streams.messages.jobs import LARGEST_BODY
from streams.publish.outcomes import Outgoing, Receipt
from tests.support.desks import TOPIC, Office, open_service
from tests.support.moments import a_moment

pytestmark = pytest.mark.three_servers


@pytest.fixture
async def client(server: EmbeddedServer, office: Office) -> AsyncIterator[Client]:
    async with penstock.connect(server.url, namespace=office.namespace.name, direct=True) as opened:
        yield opened


async def test_it_adds_without_a_desk_by_the_same_rules(client: Client, office: Office) -> None:
    jobs = client.jobs
    await office.set(ttr="90s", attempts=4)
    await office.add("taken", body=1)
    answers = await asyncio.gather(
        jobs.add(TOPIC, {"to": 7}, id="a", delay="1h"),
        jobs.add(TOPIC, 2, id="taken"),
        jobs.add(TOPIC, 2, id="taken", on_same="error"),
        jobs.add("a b"),
        jobs.add(TOPIC, Raw(b'"' + b"x" * LARGEST_BODY + b'"')),
        jobs.add(TOPIC, id="\n"),
        jobs.add("fresh", 1),
        jobs.add(TOPIC, 1, id="twice"),
        jobs.add(TOPIC, 2, id="twice"),
        return_exceptions=True,
    )
    assert [getattr(answer, "code", None) for answer in answers] == [
        *("ok", "ok", "exists", "bad", "bad", "bad"),
        *("ok", "ok", "ok"),
    ]
    assert [answer.is_new for answer in answers if isinstance(answer, Added)] == [True, False, True, True, False]
    shown = await office.desk.peek(TOPIC, "a")
    assert shown is not None
    assert (shown.state, shown.ttr_ms, shown.most_attempts) == ("delayed", 90_000, 4)
    assert [bytes(job.body) for job in await office.desk.reserve("fresh", wait_ms=10_000)] == [b"1"]


async def test_a_repeat_is_the_same_add(client: Client, office: Office) -> None:
    for _ in range(2):
        [one, two] = await client.jobs.add_many([penstock.new_job(TOPIC, n, nonce=f"n{n}") for n in range(2)])
        assert isinstance(one, Added)
        assert isinstance(two, Added)
        assert (one.is_new, two.is_new, one.id == two.id) == (True, True, False)
    assert (await office.desk.count(TOPIC)).ready == 2
    [answer] = await client.jobs.add_many([penstock.new_job(TOPIC, "another", nonce="n0")])
    assert isinstance(answer, NotAdded)
    assert (answer.code, answer.field) == ("bad", "nonce")
    for _ in range(2):
        await office.desk.finish([(await office.reserve()).receipt])
    assert (await client.jobs.add(TOPIC, 0, nonce="n0")).state == "done", "it is over, and not made again"
    assert (await office.desk.count(TOPIC)).ready == 0


async def test_what_it_cannot_judge_goes_to_a_desk(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.set("few", most_waiting=1)
    await office.set("region", region_key="to")
    await client.jobs.add(TOPIC, 1, id="a")
    while client.jobs.direct is None or client.jobs.direct.takes(penstock.new_job("few")):
        await a_moment()
    asks = {"few": {}, "region": {}, TOPIC: {"id": "a", "on_same": "replace"}}
    with monkeypatch.context() as impatient:
        impatient.setattr(client.jobs._service, "_timeout_s", 2.0)
        for topic, options in asks.items():
            with pytest.raises(penstock.Unavailable, match="no node answers"):
                await client.jobs.add(topic, 2, **options)  # type: ignore[arg-type] # a table of keywords
    async with open_service(office):
        assert (await client.jobs.add(TOPIC, 2, id="a", on_same="replace")).is_new
        answers = await client.jobs.add_many([penstock.new_job(topic, {"to": "x"}) for topic in ("few", TOPIC, "few")])
        assert [answer.code for answer in answers] == ["ok", "ok", "quota"]


async def test_a_topic_that_gets_a_region_meanwhile_is_judged_by_a_desk(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks before it adds, and the topic's settings may come in between."""
    await client.jobs.add("places", {"to": "before"})
    await office.set("places", region_key="to")
    direct = client.jobs.direct
    assert direct is not None
    while direct.takes(penstock.new_job("places")):
        await a_moment()
    monkeypatch.setattr(direct, "takes", lambda job: job.on_same != "replace")
    jobs = [penstock.new_job("places", {"to": f"{n}"}) for n in range(3)]
    with monkeypatch.context() as impatient:
        impatient.setattr(client.jobs._service, "_timeout_s", 2.0)
        with pytest.raises(penstock.Unavailable, match="no node answers"):
            await client.jobs.add("places", {"to": "x"})
        with pytest.raises(penstock.Unavailable, match="no node answers"):
            await client.jobs.add_many(jobs)
    assert (await office.desk.count("places")).ready == 1, "none was stored without a look at its region"
    async with open_service(office):
        assert (await client.jobs.add("places", {"to": "x"})).is_new
        answers = await client.jobs.add_many([*jobs, penstock.new_job("places")])
    assert [(answer.code, answer.topic) for answer in answers] == [("ok", "places")] * 4
    assert (await office.desk.count("places")).ready == 1 + 1 + 4


async def test_it_stops_before_the_store_is_full(
    server: EmbeddedServer, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = StoreHealth(used=99, limit=100)

    async def told(_ask: object) -> StoreHealth:
        return health

    monkeypatch.setattr(direct_adds, "account_health", told)
    async with penstock.connect(server.url, namespace=office.namespace.name, direct=True) as client:
        connection = client.jobs._service.connection
        while not connection.store.full:
            await a_moment()
        with pytest.raises(penstock.Unavailable, match="full"):
            await client.jobs.add(TOPIC, 1)
        assert (await office.desk.count(TOPIC)).ready == 0


async def test_without_the_streams_it_does_not_open(server: EmbeddedServer) -> None:
    with pytest.raises(penstock.PenstockError):
        async with penstock.connect(server.url, namespace="nowhere", direct=True):
            pass


async def test_while_the_settings_cannot_be_followed_desks_add(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = client.jobs.direct
    assert direct is not None
    monkeypatch.setattr(direct, "_topics", None)
    async with open_service(office):
        assert (await client.jobs.add(TOPIC, 1)).is_new


async def test_an_unknown_outcome_is_a_timeout(client: Client, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = client.jobs.direct
    assert direct is not None
    adding = direct._adding
    assert adding is not None

    async def lost(jobs: object, **_more: object) -> list[OutcomeUnknown]:
        return [OutcomeUnknown("no acknowledgement", subject="x")]

    monkeypatch.setattr(adding._store, "add_many", lost)
    with pytest.raises(penstock.Timeout):
        await client.jobs.add(TOPIC, 1)


async def test_of_many_plain_adds_each_has_its_own_answer(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than fit on their way at once. What is refused, or taken, costs no other its answer."""
    jobs = client.jobs
    await jobs.add(TOPIC, 1, id="taken")
    steps = _steps(client, monkeypatch)
    large = Raw(b'"' + b"x" * (LARGEST_BODY - 2) + b'"')
    odd = {
        3: jobs.add(TOPIC, 2, id="taken", on_same="error"),
        4: jobs.add(TOPIC, 2, id="taken"),
        5: jobs.add(TOPIC, large, id="5"),
        6: jobs.add(TOPIC, "first", id="twice"),
        7: jobs.add(TOPIC, "second", id="twice"),
        8: jobs.add(TOPIC, id="8", attempts=0),
    }
    calls = [odd.get(number) or jobs.add(TOPIC, number, id=f"{number}") for number in range(1_500)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    errors = {at: getattr(answer, "code", answer) for at, answer in enumerate(answers) if isinstance(answer, Exception)}
    assert errors == {3: "exists", 8: "bad"}
    added = {at: answer for at, answer in enumerate(answers) if isinstance(answer, Added)}
    assert [at for at, answer in added.items() if not answer.is_new] == [4, 7]
    assert (added[4].is_same_body, added[7].is_same_body) == (False, False)
    assert [answer.id for at, answer in added.items() if at not in odd] == [
        f"{n}" for n in range(1_500) if n not in odd
    ]
    assert (await office.desk.count(TOPIC)).ready == 1 + 1_500 - 4
    assert sum(steps) < 1_000, "as many as there is room for were sent by their own calls"


async def test_a_plain_add_whose_answer_is_lost_is_read_back(
    client: Client, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.jobs.add(TOPIC, 0, id="first")
    direct = client.jobs.direct
    assert direct is not None
    assert direct._adding is not None
    publisher = direct._adding._store._jobs.publisher
    start = publisher.start

    def lose(message: Outgoing, **more: Any) -> "Future[Receipt | StreamError]":
        answer: Future[Receipt | StreamError] = asyncio.get_running_loop().create_future()
        unknown = OutcomeUnknown("no acknowledgement", subject=message.subject)
        if message.subject.endswith(".stored"):
            sent = start(message, **more)
            assert sent is not None
            sent.add_done_callback(lambda _: answer.set_result(unknown))
        else:
            answer.set_result(unknown)
        return answer

    with monkeypatch.context() as lossy:
        lossy.setattr(publisher, "start", lose)
        assert (await client.jobs.add(TOPIC, 1, id="stored")).is_new
        with pytest.raises(penstock.Timeout) as lost:
            await client.jobs.add(TOPIC, 1, id="lost")
    assert lost.value.job is not None
    [again] = await client.jobs.add_many([lost.value.job])
    assert isinstance(again, Added)
    assert again.is_new
    assert (await office.desk.count(TOPIC)).ready == 3


async def test_a_caller_that_leaves_its_plain_add_costs_no_other_its_answer(client: Client, office: Office) -> None:
    await client.jobs.add(TOPIC, 0, id="first")
    calls = [asyncio.create_task(client.jobs.add(TOPIC, n, id=f"{n}")) for n in range(100)]
    asyncio.get_running_loop().call_soon(lambda: [call.cancel() for call in calls[::2]])
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [asyncio.CancelledError, Added] * 50
    again = await asyncio.gather(*(client.jobs.add(TOPIC, n, id=f"{n}") for n in range(100)))
    assert [answer.is_same_body for answer in again] == [True] * 100
    assert (await office.desk.count(TOPIC)).ready == 101


def _steps(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many jobs each step adds from here on."""
    direct = client.jobs.direct
    assert direct is not None
    assert direct._adding is not None
    sizes: list[int] = []
    add_many = direct._adding._store.add_many

    async def count(adds: Any, **more: Any) -> Any:
        sizes.append(len(adds))
        return await add_many(adds, **more)

    monkeypatch.setattr(direct._adding._store, "add_many", count)
    return sizes
