"""Dead letters of jobs and submissions by command: chosen by reason and age, sent round again at a rate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec import Raw

from actors.jobs.adds import JobAdds
from actors.jobs.dead_letters import Burial, write_dead_letters
from actors.jobs.replay import JobReplay, ReplayedJob
from actors.jobs.store import JobStore
from actors.runtime.resending import Resending
from penstock.admin.dead_letters import DeadLetterEntry, Filter, dead_letters, drop
from penstock.admin.dead_replay import Replayed, Replayer
from penstock.cli.dead import _paced, _so_far
from streams.clock import SYSTEM, monotonic_s, now_ms
from streams.errors import OutcomeUnknown
from streams.messages.fetch import DeadLetter, encode
from streams.messages.jobs import JobRecord
from streams.publish.publisher import Publisher
from streams.reads.log import LogEntry, extent_of, read_log
from tests.support.cli import Answer, CommandLine


def job(job_id: str, topic: str = "mail") -> JobRecord:
    at_ms = now_ms()
    return JobRecord(
        topic=topic,
        id=job_id,
        due_ms=at_ms,
        body=Raw(b"1"),
        added_ms=at_ms,
        ttr_ms=60_000,
        attempts=3,
        most_attempts=3,
        history=("attempt 3 at 2026-11-21T09:30:00Z on n1: timeout", "sent round again from dead letter 7 at x"),
    )


async def bury(cli: CommandLine, *burials: tuple[str, str, str]) -> None:
    """Bury jobs: topic, id, reason."""
    letters = [Burial(job(job_id, topic), at, reason) for at, (topic, job_id, reason) in enumerate(burials, 1)]
    told = await write_dead_letters(cli.records.connection, cli.records.publisher, cli.records.namespace, letters)
    assert all(isinstance(each, int) for each in told)


async def submission_letters(cli: CommandLine, count: int) -> None:
    """Bury submissions that were refused."""
    for at in range(count):
        payload = Raw(b'{"topic":"mail","body":%d}' % at)
        letter = DeadLetter(engine="submit", name="mail", id=str(at), reason="x", attempts=1, first_ms=1, body=payload)
        await cli.records.publisher.publish(cli.records.namespace.dead("submit", "mail", str(at)), encode(letter))


async def under_way(cli: CommandLine) -> list[int]:
    """Return the letters that are said to be sent again, or in doubt."""
    return sorted(await Resending(cli.records.session.bucket("LEASES")).seqs())


async def ready(cli: CommandLine, topic: str = "mail") -> int:
    store = JobStore(cli.records.connection, cli.records.publisher, cli.records.namespace, SYSTEM)
    return (await store.count(topic)).ready


async def left(cli: CommandLine) -> int:
    return (await extent_of(cli.records.connection, cli.records.namespace.stream("DEAD"))).messages


async def test_jobs_are_chosen_by_topic_and_reason_and_go_round_again(cli: CommandLine) -> None:
    await bury(
        cli,
        ("mail", "a", "HTTP 500"),
        ("mail", "b", "http 503"),
        ("mail", "c", "bad address"),
        ("sms", "d", "HTTP 500"),
    )
    some = (await cli("dead", "list", "--reason", "http", "--json")).ok().json()["letters"]
    assert [letter["id"] for letter in some] == ["a", "b", "d"]
    told = (await cli("dead", "replay", "--all", "--name", "mail", "--reason", "HTTP", "--json")).ok().json()
    assert (told, await ready(cli), await ready(cli, "sms"), await left(cli)) == (
        {"replayed": 2, "shared": 0, "gone": 0, "kept": []},
        2,
        0,
        2,
    )
    assert (await cli("dead", "drop", "--all", "--reason", "address", "--yes", "--json")).ok().json() == {
        "dropped": 1,
        "gone": 0,
        "in_doubt": 0,
    }
    assert await left(cli) == 1


@pytest.mark.three_servers
async def test_hundreds_go_round_again(cli: CommandLine) -> None:
    await bury(cli, *(("mail", str(number), "HTTP 500") for number in range(300)))
    told = (await cli("dead", "replay", "--all", "--name", "mail", "--json")).ok().json()
    assert (told, await left(cli)) == ({"replayed": 300, "shared": 0, "gone": 0, "kept": []}, 0)
    assert await ready(cli) == 300


async def test_letters_are_chosen_by_age(cli: CommandLine) -> None:
    await bury(cli, ("mail", "a", "x"))
    assert (await cli("dead", "list", "--older-than", "1h", "--json")).ok().json()["letters"] == []
    assert len((await cli("dead", "list", "--newer-than", "1h", "--json")).ok().json()["letters"]) == 1
    assert (await cli("dead", "replay", "--all", "--older-than", "1h", "--json")).ok().json()["replayed"] == 0
    assert (await cli("dead", "replay", "--all", "--newer-than", "1h", "--json")).ok().json()["replayed"] == 1


async def test_a_letter_about_a_job_is_shown_with_its_history(cli: CommandLine) -> None:
    await bury(cli, ("mail", "a", "timeout"))
    shown = (await cli("dead", "show", "a")).ok().out
    assert "attempt 3: 2026-11-21T09:30:00Z n1: timeout\nsent round again from dead letter 7 at x\n" in shown
    assert "why: timeout\ndue: 20" in shown
    assert ", normal priority, 1m to run\n" in shown
    assert shown.endswith("again: adds job a of mail, due now, with 3 attempts\n1\n"), "its own body, and that alone"
    whole = (await cli("dead", "show", "a", "--json")).ok().json()
    assert json.loads(whole["body"])["most_attempts"] == 3


async def test_what_is_there_already_keeps_its_letter(cli: CommandLine) -> None:
    await bury(cli, ("mail", "a", "x"), ("mail", "b", "x"))
    store = JobStore(cli.records.connection, cli.records.publisher, cli.records.namespace, SYSTEM)
    await store.add_many([(job("a"), "keep")])
    odd = DeadLetter(engine="jobs", name="mail", id="c", reason="no job", attempts=0, first_ms=1, body=Raw(b"{}"))
    await cli.records.publisher.publish(cli.records.namespace.dead("jobs", "mail", "c"), encode(odd))
    told = await cli("dead", "replay", "--all", "--json")
    assert (told.code, told.json()["replayed"], [kept["id"] for kept in told.json()["kept"]]) == (1, 1, ["a", "c"])
    assert "is ready; finish or delete it first" in told.err
    assert "its body is no job" in told.err
    assert await left(cli) == 2


@pytest.mark.parametrize("name", ["mail", "job"])
async def test_a_refused_submission_is_handed_in_again(cli: CommandLine, name: str) -> None:
    payload = b'{"topic":"mail","body":1}'
    letter = DeadLetter(engine="submit", name=name, id="7", reason="bad", attempts=1, first_ms=1, body=Raw(payload))
    namespace = cli.records.namespace
    await cli.records.publisher.publish(namespace.dead("submit", name, "7"), encode(letter))
    (await cli("dead", "replay", "--all", "--engine", "submit")).ok()
    stream, pattern = namespace.stream("SUBMIT"), namespace.pattern("submit", ">")
    [entry] = [entry async for entry in read_log(cli.records.connection, stream, pattern)]
    expected = "submit.job.mail" if name == "mail" else "submit.job"
    assert (entry.subject, entry.payload) == (f"{namespace.name}.{expected}", payload)
    assert await left(cli) == 0


async def test_a_letter_that_was_dropped_meanwhile_is_not_sent(cli: CommandLine) -> None:
    await bury(cli, ("mail", "a", "x"), ("mail", "b", "x"))
    letters = [letter async for letter in dead_letters(cli.records, Filter())]
    assert await drop(cli.records, letters[0].seq) == ["dropped"]
    assert await drop(cli.records, letters[0].seq) == ["gone"]
    told = await Replayer(cli.records, by="test").replay(letters)
    assert ([each.id for each in told], await ready(cli), await left(cli)) == (["b"], 1, 0)


async def test_of_many_who_send_the_same_letters_one_counts_each(cli: CommandLine) -> None:
    await bury(cli, *(("mail", f"{at}", "x") for at in range(40)))
    await submission_letters(cli, 40)
    letters = [letter async for letter in dead_letters(cli.records, Filter())]
    told = await asyncio.gather(*(Replayer(cli.records, by=f"{at}").replay(letters) for at in range(3)))
    own = sorted(each.seq for one in told for each in one if each.is_done and each.is_own)
    assert own == [letter.seq for letter in letters]
    assert await under_way(cli) == sorted({each.seq for one in told for each in one if not each.is_own})
    assert (await ready(cli), await left(cli)) == (40, 0)


async def test_who_replays_hears_which_letters_another_took(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    await bury(cli, ("mail", "a", "x"), ("mail", "b", "x"))
    replay = Replayer.replay

    async def late(self: Replayer, letters: Sequence[DeadLetterEntry]) -> list[Replayed]:
        await drop(cli.records, letters[0].seq)
        return await replay(self, letters)

    monkeypatch.setattr(Replayer, "replay", late)
    told = (await cli("dead", "replay", "--all")).ok().out
    assert (
        told == "1 sent again, 0 left as they are, 1 gone meanwhile: another caller sent them again or dropped them\n"
    )


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("kind", ["job", "submission"])
async def test_a_letter_that_is_sent_while_it_is_dropped_is_not_told_as_dropped(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, moment: str, kind: str
) -> None:
    """The replay has looked whether the letter is there. Then it is dropped, before or after its content is stored."""
    if kind == "job":
        await bury(cli, ("mail", "a", "x"))
        which: tuple[type, str] = (JobAdds, "add_many")
    else:
        await submission_letters(cli, 1)
        which = (Publisher, "try_many")
    store, drops = getattr(*which), list[Answer]()

    async def stored(*args: Any, **more: Any) -> Any:
        if moment == "before":
            drops.append(await cli("dead", "drop", "1", "--yes", "--json"))
        outcomes = await store(*args, **more)
        if moment == "after":
            drops.append(await cli("dead", "drop", "1", "--yes", "--json"))
        return outcomes

    letters = [letter async for letter in dead_letters(cli.records, Filter())]
    monkeypatch.setattr(*which, stored)
    [told] = await Replayer(cli.records, by="test").replay(letters)
    [dropped] = drops
    assert (told.is_done, told.is_own, await left(cli)) == (True, False, 0)
    assert (dropped.code, dropped.json()) == (1, {"dropped": 0, "gone": 0, "in_doubt": 1})


async def test_a_replay_whose_letters_another_removed_says_that_it_sent_them(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(cli, ("mail", "a", "x"), ("mail", "b", "x"))
    send_again = JobReplay.send_again

    async def two(self: JobReplay, letters: Sequence[LogEntry]) -> list[ReplayedJob]:
        await send_again(self, letters[:1])
        return await send_again(self, letters)

    monkeypatch.setattr(JobReplay, "send_again", two)
    told = (await cli("dead", "replay", "--all")).ok().out
    assert told == "1 sent again, 0 left as they are, 1 sent again whose letters another caller removed first\n"


async def test_a_letter_that_a_replay_left_as_it_is_can_be_dropped(cli: CommandLine) -> None:
    await bury(cli, ("mail", "a", "x"))
    store = JobStore(cli.records.connection, cli.records.publisher, cli.records.namespace, SYSTEM)
    await store.add_many([(job("a"), "keep")])
    assert (await cli("dead", "replay", "1")).code == 1
    assert (await cli("dead", "drop", "1", "--yes")).ok().out == "1 dropped\n"


@pytest.mark.parametrize("first", ["this", "another"])
async def test_a_drop_whose_answer_was_lost_is_in_doubt(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Whichever call removed the letter: another one may have sent it again, and is through with it."""
    await bury(cli, ("mail", "a", "x"))
    connection, request, lost = cli.records.connection, "STREAM.MSG.DELETE", list[str]()
    own = connection.api

    async def api(subject: str, *args: Any, **more: Any) -> Any:
        if not subject.startswith(request) or lost:
            return await own(subject, *args, **more)
        lost.append(subject)
        if first == "this":
            await own(subject, *args, **more)
        else:
            [letter] = [letter async for letter in dead_letters(cli.records, Filter())]
            [told] = await Replayer(cli.records, by="test").replay([letter])
            assert told.is_own
        raise OutcomeUnknown("no answer in time", subject=subject)

    monkeypatch.setattr(connection, "api", api)
    assert await drop(cli.records, 1) == ["in_doubt"]
    assert await left(cli) == 0


async def test_letters_go_no_faster_than_the_rate(cli: CommandLine) -> None:
    await bury(cli, *(("mail", str(at), "x") for at in range(45)))
    began_s = monotonic_s()
    told = (await cli("dead", "replay", "--all", "--rate", "100", "--json")).ok().json()
    assert (told["replayed"], await ready(cli)) == (45, 45)
    assert monotonic_s() - began_s >= 0.34, "ten at once, then ten each tenth of a second"


async def test_a_rate_parts_letters_into_groups() -> None:
    async def many() -> AsyncIterator[tuple[DeadLetterEntry, float]]:
        for at in range(1, 26):
            yield DeadLetterEntry(at, "t.dead.jobs.mail.x", 0, b"", None), at / 25

    sizes = [(len(group), share) async for group, share in _paced(many(), 100.0)]
    assert sizes == [(10, 0.4), (10, 0.8), (5, 1.0)]
    assert [len(group) async for group, _ in _paced(many(), None)] == [25]
    assert [len(group) async for group, _ in _paced(many(), 1e6)] == [25]


async def test_a_replay_that_fails_says_how_many_letters_were_sent(cli: CommandLine) -> None:
    await bury(cli, ("mail", "a", "x"), ("mail", "b", "x"))
    told = await cli("dead", "replay", "1", "2", "99", "--rate", "10")
    assert (told.code, await ready(cli), await left(cli)) == (2, 2, 0)
    assert told.err.endswith("`penstock dead list` shows them; 2 sent again, the other letters are as they were\n")
    nothing = await cli("dead", "replay", "99", "--rate", "10", "--json")
    assert nothing.json() == {"error": "no dead letter 99; `penstock dead list` shows them"}


async def test_a_drop_that_fails_says_how_many_letters_are_gone(cli: CommandLine) -> None:
    await bury(cli, *(("mail", str(at), "x") for at in range(300)))
    told = await cli("dead", "drop", *map(str, range(1, 257)), "999", "--yes")
    assert (told.code, await left(cli)) == (2, 44)
    assert told.err.endswith("; 256 dropped, the other letters are as they were\n")


@pytest.mark.parametrize(("least", "most", "text"), [(0, 0, ""), (3, 3, "3 x, "), (3, 259, "3 to 259 x, ")])
def test_what_a_group_without_an_outcome_has_done_is_not_known(least: int, most: int, text: str) -> None:
    assert _so_far("x", least, most) == (text and f"{text}the other letters are as they were")


async def test_hundreds_of_submissions_go_round_again_in_their_order(cli: CommandLine) -> None:
    await submission_letters(cli, 300)
    namespace = cli.records.namespace
    told = (await cli("dead", "replay", "--all", "--json")).ok().json()
    stream, pattern = namespace.stream("SUBMIT"), namespace.pattern("submit", ">")
    sent = [entry.payload async for entry in read_log(cli.records.connection, stream, pattern)]
    assert sent == [b'{"topic":"mail","body":%d}' % at for at in range(300)]
    assert (told, await left(cli)) == ({"replayed": 300, "shared": 0, "gone": 0, "kept": []}, 0)
