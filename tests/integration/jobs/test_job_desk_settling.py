"""How a job that the desk handed out is settled: by receipt, by its id, by the end of its time."""

from typing import Any

import pytest

from actors.jobs.dead_letters import write_dead_letters
from streams.errors import OutcomeUnknown, StreamError
from tests.support.desks import TOPIC, Office, codes_of


async def test_a_receipt_counts_until_the_ttr_is_over_and_no_longer(office: Office) -> None:
    """56: finish, touch, release and bury with what is held no more."""
    await office.add("a", ttr_ms=60_000)
    job = await office.reserve()
    office.clock.ahead_ms = 61_000
    for settle in (office.desk.finish, office.desk.touch, office.desk.release, office.desk.bury):
        [answer] = await settle([job.receipt])
        assert answer.code == "stale", settle
        assert answer.reason


async def test_who_does_not_finish_within_the_ttr_gives_the_job_up(office: Office) -> None:
    await office.add("a", ttr_ms=1_000)
    first = await office.reserve(holder="one")
    second = await office.reserve(wait_ms=30_000)
    assert (second.id, second.attempt) == ("a", 2)
    assert second.receipt != first.receipt
    assert "its TTR ran out" in second.history[0]
    assert codes_of(await office.desk.finish([first.receipt])) == ["stale"]
    assert codes_of(await office.desk.finish([second.receipt])) == ["ok"]


async def test_a_finish_is_finished_again_by_its_own_receipt_only(office: Office) -> None:
    """57: finish twice."""
    await office.add("a")
    job = await office.reserve()
    first, again = await office.desk.finish([job.receipt]), await office.desk.finish([job.receipt])
    assert codes_of(first) == codes_of(again) == ["ok"]
    topic, key, seq, until_ms, _, nonce = job.receipt.split(".")
    forged = ".".join((topic, key, seq, until_ms, "0" * 12, nonce))
    assert codes_of(await office.desk.finish([forged])) == ["stale"]


async def test_of_many_receipts_each_has_its_own_answer(office: Office) -> None:
    await office.try_add("a", "b", "c")
    jobs = await office.desk.reserve(TOPIC, most=3, wait_ms=10_000)
    await office.desk.delete(TOPIC, jobs[1].id)
    asked = [jobs[0].receipt, jobs[1].receipt, "no receipt", jobs[2].receipt, jobs[0].receipt]
    assert codes_of(await office.desk.finish(asked)) == ["ok", "stale", "bad", "ok", "ok"]


async def test_a_touch_holds_it_longer_under_the_same_receipt(office: Office) -> None:
    await office.add("a", ttr_ms=60_000)
    job = await office.reserve()
    [touched] = await office.desk.touch([job.receipt], ttr_ms=600_000)
    assert touched.code == "ok"
    assert touched.until_ms > job.until_ms + 500_000
    office.clock.ahead_ms = 120_000
    assert codes_of(await office.desk.finish([job.receipt])) == ["ok"]


async def test_a_release_gives_it_back_at_once_or_later(office: Office) -> None:
    await office.add("a")
    job = await office.reserve()
    assert codes_of(await office.desk.release([job.receipt], delay_ms=0, counts=False)) == ["ok"]
    again = await office.reserve()
    assert again.attempt == 1
    assert codes_of(await office.desk.release([again.receipt], delay_ms=3_600_000, reason="not yet")) == ["ok"]
    listed = await office.desk.peek(TOPIC, "a")
    assert listed is not None
    assert (listed.state, listed.attempts) == ("delayed", 1)
    assert "not yet" in listed.history[-1]
    assert codes_of(await office.desk.finish([again.receipt])) == ["stale"]


async def test_a_release_without_a_delay_waits_as_the_topic_says(office: Office) -> None:
    await office.set(backoff="100s", backoff_cap="1000s")
    await office.add("a")
    waits = []
    for _ in range(2):
        job = await office.reserve()
        await office.desk.release([job.receipt])
        listed = await office.desk.peek(TOPIC, "a")
        assert listed is not None
        waits.append(listed.due_ms - office.clock.now_ms())
        assert await office.desk.kick(TOPIC, "a") == 1
    assert 90_000 < waits[0] <= 120_000
    assert 190_000 < waits[1] <= 240_000


async def test_the_last_attempt_makes_a_dead_letter_with_its_history(office: Office) -> None:
    await office.add("a", body={"x": 1}, attempts=2)
    for reason in ("first", "second"):
        job = await office.reserve()
        await office.desk.release([job.receipt], delay_ms=0, reason=reason)
    assert await office.desk.reserve(TOPIC, wait_ms=50) == []
    [letter] = await office.dead()
    assert (letter["engine"], letter["name"], letter["id"], letter["attempts"]) == ("jobs", TOPIC, "a", 2)
    assert [each["reason"] for each in letter["history"]] == ["first", "second"]
    assert await office.state("a") == "done"


async def test_what_is_used_up_or_expired_is_not_handed_out(office: Office) -> None:
    await office.add("late", delay_ms=0, expires_in_ms=1)
    await office.add("dies", attempts=1, ttr_ms=1_000)
    first = await office.reserve()
    assert first.id == "dies"
    while len(letters := await office.dead()) < 2:
        assert await office.desk.reserve(TOPIC, wait_ms=200) == []
    assert {letter["id"]: letter["reason"].partition(":")[0] for letter in letters} == {
        "late": "expired",
        "dies": "1 attempts are used up",
    }
    assert [await office.state(job_id) for job_id in ("late", "dies")] == ["done", "done"]


async def test_a_bury_sets_it_aside(office: Office) -> None:
    await office.add("a")
    job = await office.reserve()
    assert codes_of(await office.desk.bury([job.receipt], reason="poison")) == ["ok"]
    assert [letter["reason"] for letter in await office.dead()] == ["poison"]
    assert await office.desk.reserve(TOPIC) == []


async def test_a_release_that_cannot_bury_is_stale_after_a_bury(office: Office) -> None:
    await office.add()
    receipt = (await office.reserve()).receipt
    assert [answer.code for answer in await office.desk.bury([receipt])] == ["ok"]
    assert [answer.code for answer in await office.desk.release([receipt], delay_ms=0, counts=False)] == ["stale"]
    assert [answer.code for answer in await office.desk.bury([receipt])] == ["ok"]


async def test_finish_by_id_ends_the_hold_that_there_is(office: Office) -> None:
    await office.add("a", topic="one")
    await office.add("a", topic="two")
    assert (await office.desk.finish_by_id("a")).code == "not_found"
    await office.reserve("one")
    assert (await office.desk.finish_by_id("a", is_allowed=lambda topic: topic == "two")).code == "not_found"
    assert (await office.desk.finish_by_id("a")).code == "ok"
    assert [await office.state("a", topic) for topic in ("one", "two")] == [None, "ready"]
    assert (await office.desk.finish_by_id("a")).code == "ok", "the other was never handed out, so this is a repeat"
    await office.desk.release([(await office.reserve("two")).receipt])
    assert (await office.desk.finish_by_id("a")).code == "unknown"
    assert (await office.desk.finish_by_id("a", is_allowed=lambda topic: topic == "one")).code == "ok"
    assert (await office.desk.finish_by_id("unheard")).code == "not_found"


@pytest.mark.parametrize("remember", ["", "1h"])
async def test_who_held_a_job_that_was_finished_by_its_id_is_told_that_it_is_over(
    office: Office, remember: str
) -> None:
    if remember:
        await office.set(remember=remember)
    await office.add("a")
    receipt = (await office.reserve()).receipt
    assert (await office.desk.finish_by_id("a")).code == "ok"
    assert codes_of(await office.desk.finish([receipt])) == ["stale"]
    assert (await office.desk.finish_by_id("a")).code == "ok", "a repeat"


@pytest.mark.parametrize("remember", ["", "1h"])
async def test_a_repeat_of_a_finish_by_id_ends_no_later_job(office: Office, remember: str) -> None:
    """Its answer was lost, or a desk that stood still took up its first try now."""
    if remember:
        await office.set(remember=remember)
    await office.add("a")
    await office.reserve()
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    await office.add("a", on_same="replace")
    later = await office.reserve()
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    assert await office.state("a") == "reserved"
    assert codes_of(await office.desk.finish([later.receipt])) == ["ok"]
    await office.add("a", on_same="replace")
    await office.reserve()
    assert (await office.desk.finish_by_id("a", nonce="mine")).code == "ok"
    assert await office.state("a") == "reserved"
    assert (await office.desk.finish_by_id("a", nonce="another")).code == "ok"
    assert await office.state("a") != "reserved"


@pytest.mark.parametrize("end", ["delete", "finish", "replace"])
@pytest.mark.parametrize("how", ["bury", "release"])
async def test_what_ends_while_it_is_buried_is_no_dead_letter(
    office: Office, monkeypatch: pytest.MonkeyPatch, end: str, how: str
) -> None:
    """Whoever sends dead letters again would run it once more."""
    await office.set(attempts=1)
    await office.add("a")
    receipt = (await office.reserve()).receipt

    async def write_then_end(*given: Any) -> list[int | StreamError]:
        written = await write_dead_letters(*given)
        if end == "replace":
            await office.add("a", on_same="replace")
        else:
            ended = office.desk.delete(TOPIC, "a") if end == "delete" else office.desk.finish_by_id("a")
            assert (await ended).code == "ok"
        return written

    monkeypatch.setattr("actors.jobs.reservations.write_dead_letters", write_then_end)
    settled = office.desk.bury([receipt]) if how == "bury" else office.desk.release([receipt])
    assert codes_of(await settled) == ["stale"]
    assert await office.dead() == []


@pytest.mark.parametrize(
    ("end", "then"),
    [
        *((end, "") for end in ("delete", "finish by the id", "finish", "replace", None)),
        *((end, then) for end in ("delete", "replace", None) for then in ("another is there", "another has ended")),
    ],
)
async def test_a_dead_letter_whose_job_came_to_another_end_runs_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch, end: str | None, then: str
) -> None:
    """The bury had no answer, and its caller asked no more. `then`: what became of another job of its id."""

    async def lose(*given: Any) -> list[int | StreamError]:
        await write_dead_letters(*given)
        return [OutcomeUnknown("no answer", subject="")]

    await office.add("a")
    receipt = (await office.reserve()).receipt
    with monkeypatch.context() as patch:
        patch.setattr("actors.jobs.reservations.write_dead_letters", lose)
        assert codes_of(await office.desk.bury([receipt])) == ["unknown"]
    match end:
        case "delete":
            assert (await office.desk.delete(TOPIC, "a")).code == "ok"
        case "finish by the id":
            assert (await office.desk.finish_by_id("a")).code == "ok"
        case "finish":
            assert codes_of(await office.desk.finish([receipt])) == ["ok"]
        case "replace":
            await office.add("a", on_same="replace")
        case _:
            assert codes_of(await office.desk.bury([receipt])) == ["ok"]
    if then and end != "replace":
        await office.add("a")
    if then == "another has ended":
        assert codes_of(await office.desk.finish([(await office.reserve()).receipt])) == ["ok"]
    stands = await office.state("a")
    assert len(await office.dead()) == 1
    await office.desk.kick(TOPIC, "a")
    is_sent = end is None and then != "another is there"
    assert await office.state("a") == ("ready" if is_sent else stands)
    assert len(await office.dead()) == (end is None and not is_sent)


@pytest.mark.three_servers
async def test_finish_by_id_finds_what_was_reserved_just_now(office: Office) -> None:
    """Of three servers one may be a moment behind, and be the one that is asked."""
    for number in range(400):
        await office.add(f"{number}")
        assert (await office.reserve()).id == f"{number}"
        assert (await office.desk.finish_by_id(f"{number}")).code == "ok", number
