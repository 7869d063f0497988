"""What a person does at the desk: delete, kick, list, count, and change a topic."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import json

from actors.jobs.copies import GoneAnswer, GoneAsk
from actors.jobs.rules.job_rules import KEPT_MS, MOST_PAST, BadJob
from actors.jobs.stream import JobStream
from streams.errors import NoStream, OutcomeUnknown, StreamError
from streams.jobs.moves import Move
from streams.link.frames import Message
from streams.subjects import token_of
from tests.support.desks import TOPIC, Office, codes_of, open_second_office
from tests.support.moments import a_moment


async def test_a_delete_that_is_repeated_is_told_what_the_first_one_did(office: Office) -> None:
    """Its answer was lost, or its desk stopped in the midst of it."""
    await office.add()
    for _ in range(2):
        assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    assert (await office.desk.delete(TOPIC, "1", nonce="another")).code == "not_found"
    await office.add()
    assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    assert await office.state() == "ready", "a job that was added since stands"


async def test_a_delete_of_its_callers_own_that_is_repeated_within_a_day_takes_no_later_job(office: Office) -> None:
    await office.add()
    assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    office.clock.ahead_ms = KEPT_MS - 60_000
    await office.add()
    assert (await office.desk.delete(TOPIC, "1", nonce="mine")).code == "ok"
    assert await office.state() == "ready", "a job that was added since stands"


async def test_an_id_that_is_deleted_often_knows_no_more_than_its_latest_adds_and_deletes(office: Office) -> None:
    for number in range(MOST_PAST):
        await office.add(nonce=f"add-{number}")
        assert (await office.desk.delete(TOPIC, "1", nonce=f"delete-{number}")).code == "ok"
    found = await office.store.find_key(TOPIC, "1")
    assert found is not None
    assert found.done is not None
    assert len(found.done.past) == MOST_PAST


@pytest.mark.parametrize("state", ["delayed", "ready", "reserved"])
async def test_what_was_deleted_is_never_handed_out(office: Office, state: str) -> None:
    await office.add("a", delay_ms=3_600_000 if state == "delayed" else 0)
    receipt = (await office.reserve()).receipt if state == "reserved" else ""
    answer = await office.desk.delete(TOPIC, "a")
    assert (answer.code, answer.reason) == ("ok", f"it was {state}")
    assert await office.state("a") is None
    assert (await office.desk.delete(TOPIC, "a")).code == "not_found"
    if receipt:
        assert codes_of(await office.desk.finish([receipt])) == ["stale"]
    assert await office.desk.reserve(TOPIC, wait_ms=20) == []


async def test_an_id_is_deleted_in_every_topic_that_is_allowed(office: Office) -> None:
    for topic in ("one", "two", "three"):
        await office.add("a", topic=topic, delay_ms=3_600_000)
    assert (await office.desk.delete(None, "a", is_allowed=lambda topic: topic != "two")).code == "ok"
    assert [await office.state("a", topic) for topic in ("one", "two", "three")] == [None, "delayed", None]
    assert (await office.desk.delete(None, "a", is_allowed=lambda topic: topic != "two")).code == "not_found"


@pytest.mark.parametrize("end", ["finish", "bury"])
async def test_what_ends_before_its_delete_is_stored_is_not_told_as_deleted(
    office: Office, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await office.set(remember="1h")
    await office.add("a")
    receipt = (await office.reserve()).receipt
    stream: JobStream = office.store.delete.__self__._jobs  # type: ignore[attr-defined]
    move_on = stream.move

    async def end_first(move: Move) -> int | StreamError:
        monkeypatch.setattr(stream, "move", move_on)
        assert codes_of(await (office.desk.finish if end == "finish" else office.desk.bury)([receipt])) == ["ok"]
        return await move_on(move)

    monkeypatch.setattr(stream, "move", end_first)
    assert (await office.desk.delete(TOPIC, "a")).code == "not_found"
    assert (await office.state("a"), len(await office.dead())) == ("done", end == "bury")


async def test_what_is_over_is_not_deleted_and_stays_known(office: Office) -> None:
    await office.set(remember="1h")
    await office.add("a")
    await office.desk.finish([(await office.reserve()).receipt])
    answer = await office.desk.delete(TOPIC, "a")
    assert (answer.code, answer.reason) == ("not_found", "it is over already")
    assert await office.state("a") == "done"


@pytest.mark.parametrize("job_id", ["plain", "with blanks and ümlauts", "a" * 255, "h_1", "..", "*", "$JS.API.>"])
async def test_any_printable_id_is_added_found_and_deleted(office: Office, job_id: str) -> None:
    """7, 8, 11, 13, 15, 53."""
    await office.add(job_id, delay_ms=3_600_000)
    peeked = await office.desk.peek(TOPIC, job_id)
    assert peeked is not None
    assert peeked.id == job_id
    assert (await office.desk.delete(None, job_id)).code == "ok"


async def answering(
    office: Office, names: list[str], *, is_deaf: Callable[[int], bool] = lambda _asked: False
) -> tuple[list[GoneAsk], Callable[[], Awaitable[None]]]:
    """Have nodes of these names drop copies, as workers do. `is_deaf(n)`: nobody hears the n-th request."""
    asked: list[GoneAsk] = []

    def heard(message: Message) -> None:
        asked.append(json.decode(message.payload, type=GoneAsk))
        for name in [] if is_deaf(len(asked)) else names:
            frame = f"PUB {message.reply}  ".encode()
            payload = json.encode(GoneAnswer(name))
            office.connection.client.send(frame + b"%d\r\n%b\r\n" % (len(payload), payload))

    subscription = await office.connection.subscribe(office.namespace.subject("gone"), heard)
    return asked, subscription.unsubscribe


async def test_a_delete_waits_for_the_nodes_that_fetched_ahead(office: Office) -> None:
    await office.add("a")
    office.handling = {"n1", "n2"}
    asked, stop = await answering(office, ["n1", "n2", "n3"])
    assert (await office.desk.delete(TOPIC, "a")).code == "ok"
    assert asked == [GoneAsk(TOPIC, token_of("a"))]
    await stop()


async def test_a_delete_asks_again_whoever_did_not_hear_it(office: Office) -> None:
    """A link that breaks takes the request along, and the node is there again a moment later, with its copy."""
    await office.add("a")
    office.handling = {"n1"}
    asked, stop = await answering(office, ["n1"], is_deaf=lambda number: number == 1)
    assert (await office.desk.delete(TOPIC, "a")).code == "ok"
    assert asked == 2 * [GoneAsk(TOPIC, token_of("a"))]
    await stop()


async def test_a_delete_does_not_wait_long_for_a_dead_node(office: Office) -> None:
    await office.add("a")
    office.handling = {"n1", "dead"}

    def dies(_asked: int) -> bool:
        office.handling = {"n1"}
        return False

    asked, stop = await answering(office, ["n1"], is_deaf=dies)
    assert (await office.desk.delete(TOPIC, "a")).code == "ok"
    assert len(asked) > 1
    await stop()


async def test_a_delete_is_unknown_while_a_node_that_lives_does_not_reply(office: Office) -> None:
    """Its server and ours do not reach each other, and both reach the third. It may still begin its copy."""
    await office.add("a")
    office.handling = {"n1", "n2"}
    _, stop = await answering(office, ["n1"])
    with pytest.raises(OutcomeUnknown, match="n2"):
        await office.desk.delete(TOPIC, "a", nonce="0123456789abcdef")
    await stop()
    _, stop = await answering(office, ["n1", "n2"])
    assert (await office.desk.delete(TOPIC, "a", nonce="0123456789abcdef")).code == "ok"
    await stop()


async def test_a_kick_makes_delayed_jobs_ready(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(5)], delay_ms=3_600_000)
    assert await office.desk.kick(TOPIC, "3") == 1
    assert (await office.reserve()).id == "3"
    assert await office.desk.kick(TOPIC, most=2) == 2
    assert len(await office.desk.reserve(TOPIC, most=10, wait_ms=10_000)) == 2
    assert [await office.desk.kick(TOPIC, "unheard"), await office.desk.kick("unheard")] == [0, 0]


@pytest.mark.three_servers
@pytest.mark.parametrize("was", ["delayed", "buried"])
async def test_a_repeat_of_a_kick_by_id_makes_no_later_job_ready(office: Office, was: str) -> None:
    """Its answer was lost, or a desk that stood still took up its first try now."""
    await office.add("a", delay_ms=3_600_000 if was == "delayed" else 0)
    if was == "buried":
        await office.desk.bury([(await office.reserve()).receipt])
    for _ in range(2):
        assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    receipt = (await office.reserve()).receipt
    await (office.desk.bury if was == "buried" else office.desk.finish)([receipt])
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert (await office.state("a"), len(await office.dead())) == ((None, 0) if was == "delayed" else ("done", 1))
    await office.add("a", delay_ms=3_600_000, on_same="replace")
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert await office.state("a") == "delayed"
    assert await office.desk.kick(TOPIC, "a", nonce="another") == 1
    assert await office.state("a") == "ready"


@pytest.mark.three_servers
async def test_a_kick_just_before_the_job_is_due_leaves_its_mark_too(office: Office) -> None:
    await office.add("a", delay_ms=300)
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    await office.desk.finish([(await office.reserve()).receipt])
    await office.add("a", delay_ms=3_600_000)
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert await office.state("a") == "delayed"


async def test_a_kick_that_meets_the_firing_is_answered_as_one(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is ready, as was asked for. Another kick stands for the timer."""
    stream: JobStream = office.desk._store.kick_delayed.__self__._jobs  # type: ignore[attr-defined]
    move = stream.move

    async def move_late(*given: Any) -> int | StreamError:
        monkeypatch.setattr(stream, "move", move)
        assert await office.desk.kick(TOPIC, "a") == 1
        return await move(*given)

    await office.add("a", delay_ms=3_600_000)
    monkeypatch.setattr(stream, "move", move_late)
    assert await office.desk.kick(TOPIC, "a", nonce="mine") == 1
    assert await office.state("a") == "ready"
    assert await office.desk.kick(TOPIC, "a", nonce="another") == 0, "it was ready before"


async def test_a_kick_goes_on_over_several_pages(office: Office) -> None:
    """A page of jobs has at most 4 MiB."""
    await office.try_add(*[f"{n}" for n in range(25)], body="x" * 200_000, delay_ms=3_600_000)
    page = await office.store.list_jobs(TOPIC, "delayed", most=24)
    assert len(page.found) < 24
    assert await office.desk.kick(TOPIC, most=24) == 24
    count = await office.store.count(TOPIC)
    assert (count.ready, count.delayed) == (24, 1)


async def test_a_kick_brings_back_what_was_buried_before_what_is_delayed(office: Office) -> None:
    await office.try_add("a", "b")
    for job in await office.desk.reserve(TOPIC, most=2, wait_ms=10_000):
        await office.desk.bury([job.receipt], reason="poison")
    await office.add("later", delay_ms=3_600_000)
    assert await office.desk.kick(TOPIC, most=10) == 2
    assert sorted(job.id for job in await office.desk.reserve(TOPIC, most=10, wait_ms=10_000)) == ["a", "b"]
    assert await office.dead() == []
    assert await office.desk.kick(TOPIC, most=10) == 1


async def test_a_kick_brings_back_one_that_was_buried(office: Office) -> None:
    await office.add("a", body={"x": 1})
    await office.desk.bury([(await office.reserve()).receipt], reason="poison")
    assert await office.desk.kick(TOPIC, "a") == 1
    again = await office.reserve()
    assert (again.id, bytes(again.body), again.attempt) == ("a", b'{"x":1}', 1)


async def test_lists_are_paged_and_hold_each_job_once(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(25)], delay_ms=3_600_000)
    await office.add("ready")
    found, after = [], ""
    while True:
        page = await office.desk.list(TOPIC, state="delayed", after=after, limit=10)
        found += [job.id for job in page.jobs]
        after = page.after
        if not after:
            break
    assert found == [f"{n}" for n in range(25)]
    assert [job.id for job in (await office.desk.list(TOPIC, state="ready")).jobs] == ["ready"]


async def test_a_page_of_large_jobs_is_short_and_the_list_goes_on(office: Office) -> None:
    await office.try_add(*[f"{n}" for n in range(12)], body="x" * 200_000, delay_ms=3_600_000)
    pages, after = [], ""
    while True:
        page = await office.desk.list(TOPIC, after=after, limit=1000, most_bytes=500_000)
        pages.append(len(page.jobs))
        after = page.after
        if not after:
            break
    assert sum(pages) == 12
    assert max(pages) <= 3
    assert len((await office.desk.list(TOPIC, limit=5, most_bytes=1000)).jobs) >= 1


async def test_a_list_by_due_time(office: Office) -> None:
    now_ms = office.clock.now_ms()
    for hours in (1, 2, 3):
        await office.add(f"{hours}", delay_ms=hours * 3_600_000)
    page = await office.desk.list(TOPIC, due_after_ms=now_ms + 5_400_000, due_before_ms=now_ms + 9_000_000)
    assert [job.id for job in page.jobs] == ["2"]


async def test_a_cursor_that_somebody_changed_is_refused(office: Office) -> None:
    """68."""
    await office.try_add("a", "b", "c", delay_ms=3_600_000)
    after = (await office.desk.list(TOPIC, limit=1)).after
    assert [job.id for job in (await office.desk.list(TOPIC, limit=1, after=after)).jobs] == ["b"]
    number, mark = after.rsplit(".", 1)
    for changed in ("x", "0.1", after + "0", f"0.99.{mark}", f"{number}.{'0' * 12}", "é", f"{number}.é"):
        with pytest.raises(BadJob) as refused:
            await office.desk.list(TOPIC, limit=1, after=changed)
        assert refused.value.field == "after"
    with pytest.raises(BadJob):
        await office.desk.list(TOPIC, state="ready", after=after)


async def test_counts_and_topics(office: Office) -> None:
    await office.try_add("a", "b", "c")
    await office.add("d", delay_ms=3_600_000)
    await office.add("e", topic="other", priority="high")
    await office.reserve()
    await office.desk.finish([(await office.reserve()).receipt])
    while (counts := await office.desk.count(TOPIC)).ready != 1:  # the server takes an ack a moment after it came
        await a_moment()
    assert (counts.delayed, counts.reserved, counts.done) == (1, 1, 0)
    while len(office.desk.topics()) < 2:
        await a_moment()
    assert [view.topic for view in office.desk.topics()] == [TOPIC, "other"]


async def test_a_topic_is_changed_and_a_bad_setting_refused(office: Office) -> None:
    view = await office.desk.change_topic(TOPIC, {"ttr": "90s", "attempts": 3})
    assert (view.settings["ttr"], view.settings["attempts"]) == ("90s", 3)
    with pytest.raises(BadJob) as refused:
        await office.desk.change_topic(TOPIC, {"ttr": "90"})
    assert refused.value.field == "ttr"
    view = await office.desk.change_topic(TOPIC, {"ttr": None})
    assert (view.settings["ttr"], view.settings["attempts"]) == ("1m", 3)


async def test_what_is_set_at_one_desk_is_shown_at_another_at_once(office: Office) -> None:
    async with open_second_office(office.connection) as other:
        shown = []
        for number in range(1, 31):
            await office.desk.change_topic(TOPIC, {"most_waiting": number})
            shown.append((await other.desk.change_topic(TOPIC, {})).settings["most_waiting"])
    assert shown == list(range(1, 31))


async def test_what_is_set_for_all_topics_is_changed_under_the_name_default(office: Office) -> None:
    assert (await office.desk.change_topic("default", {"attempts": 4})).settings["attempts"] == 4
    while (await office.desk.change_topic(TOPIC, {})).settings["attempts"] != 4:
        await a_moment()
    (refused,) = await office.try_add("a", topic="default")
    assert (refused.code, office.desk.topics()) == ("bad", [])
    with pytest.raises(BadJob):
        await office.desk.reserve("default")


async def test_what_the_broker_does_not_take_is_told(office: Office) -> None:
    await office.add("a")
    await office.connection.api(f"STREAM.DELETE.{office.namespace.stream('JOBS')}")
    with pytest.raises(NoStream):
        await office.desk.peek(TOPIC, "a")


async def test_jobs_of_a_topic_with_slots_are_not_reserved_and_the_refusal_says_what_to_do(office: Office) -> None:
    await office.add("a")
    await office.desk.change_topic(TOPIC, {"slots": 2})
    with pytest.raises(BadJob) as refused:
        await office.desk.reserve(TOPIC)
    assert refused.value.field == "topic"
    assert "only 2 calls of a key run at once, so only handlers in nodes take its jobs" in str(refused.value)
    assert f"run them by @penstock.job, or lift the limit by `penstock jobs topic {TOPIC} slots=0`" in str(
        refused.value
    )
    await office.desk.change_topic(TOPIC, {"slots": 0})
    assert (await office.reserve()).id == "a"
