"""Jobs by command, through the service of a node: added, held, settled, looked at, recurring; and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from actors.jobs.schedule_desk import ScheduleDesk
from actors.jobs.scheduler import Scheduler
from actors.jobs.store import JobStore
from actors.jobs.topics import Topics
from actors.runtime.bounds import Anywhere
from actors.runtime.rates.shares import Shares
from penstock.api.service.service import DeskService
from penstock.node.jobs.doors import open_desk
from streams.clock import SYSTEM, now_ms
from tests.support.cli import CommandLine
from tests.support.moments import a_moment


@asynccontextmanager
async def node(cli: CommandLine, *, follows_schedules: bool = False) -> AsyncIterator[None]:
    """Run what answers: a desk and its service, and if so asked the actor of schedules."""
    connection, namespace, stop = cli.records.connection, cli.records.namespace, anyio.Event()
    session = cli.records.session
    store = JobStore(connection, cli.records.publisher, namespace, SYSTEM)
    topics = Topics(session.bucket("TOPICS"), connection, namespace)
    rates = Shares(lambda topic: topics.current(topic).rate or None)
    async with anyio.create_task_group() as tasks:
        await tasks.start(topics.run)
        opened = open_desk(
            connection,
            store=store,
            topics=topics,
            rates=rates,
            clock=SYSTEM,
            leases=session.bucket("LEASES"),
            handling=lambda _topic: (),
            bounds=Anywhere(),
            unmade=lambda _topic, _consumer: "",
        )
        async with opened as desk:
            await tasks.start(DeskService("jobs", desk, connection, stop, desk.end_waits).run)
            schedules = ScheduleDesk(session.bucket("RECURRING"), SYSTEM)
            await tasks.start(DeskService("schedules", schedules, connection, stop).run)
            if follows_schedules:
                actor = Scheduler(
                    node="n1",
                    connection=connection,
                    records=session.bucket("RECURRING"),
                    leases=session.bucket("LEASES"),
                    desk=desk,
                    store=store,
                    clock=SYSTEM,
                    stop=stop,
                )
                await tasks.start(actor.run)
            yield
        tasks.cancel_scope.cancel()


async def as_json(cli: CommandLine, *arguments: str) -> Any:
    return (await cli(*arguments, "--json")).ok().json()


async def told(cli: CommandLine, *arguments: str) -> Any:
    return await as_json(cli, "jobs", *arguments)


# ---- the life of a job


async def test_a_job_is_added_reserved_touched_and_finished(cli: CommandLine) -> None:
    async with node(cli):
        added = await told(cli, "add", "mail", '{"to":"a@b"}', "--id", "o1", "--ttr", "30s")
        assert (added["id"], added["state"], added["is_new"]) == ("o1", "ready", True)
        again = await told(cli, "add", "mail", '{"to":"c@d"}', "--id", "o1")
        assert (again["is_new"], again["is_same_body"]) == (False, False)
        [job] = (await told(cli, "reserve", "mail", "--holder", "me", "--wait", "20s"))["jobs"]
        assert (job["id"], job["body"], job["attempt"], job["ttr_ms"]) == ("o1", {"to": "a@b"}, 1, 30_000)
        shown = await told(cli, "peek", "mail", "o1")
        assert (shown["state"], shown["holder"]) == ("reserved", "me")
        for_people = (await cli("jobs", "peek", "mail", "o1")).ok().out
        assert "\nttr: 30s\n" in for_people
        assert "\ndue: 20" in for_people
        [held] = (await told(cli, "touch", job["receipt"], "--ttr", "1h"))["answers"]
        assert held["until_ms"] > job["until_ms"]
        (await cli("jobs", "finish", job["receipt"])).ok()
        assert (await told(cli, "count", "mail")) == [
            {"topic": "mail", "delayed": 0, "ready": 0, "reserved": 0, "done": 0}
        ]
        assert (await told(cli, "reserve", "mail"))["jobs"] == []


async def test_people_are_told_in_words(cli: CommandLine) -> None:
    async with node(cli):
        assert "mail/o1: added; ready" in (await cli("jobs", "add", "mail", "7", "--id", "o1")).ok().out
        assert "is there already, with another body" in (await cli("jobs", "add", "mail", "8", "--id", "o1")).ok().out
        assert (
            "o2: added; delayed, due 20"
            in (await cli("jobs", "add", "mail", "7", "--id", "o2", "--delay", "1h")).ok().out
        )
        assert "o2" in (await cli("jobs", "list", "mail")).ok().out
        reserved = (await cli("jobs", "reserve", "mail", "--wait", "20s")).ok().out
        assert "mail/o1: attempt 1 of 10, until" in reserved
        receipt = reserved.partition("receipt ")[2].split()[0]
        assert (
            f"{receipt}: released"
            in (await cli("jobs", "release", receipt, "--delay", "1h", "--reason", "no\nmoney")).ok().out
        )
        assert "before: attempt 1 at" in (await cli("jobs", "peek", "mail", "o1")).ok().out
        assert "nothing is ready in mail" in (await cli("jobs", "reserve", "mail")).ok().out
        assert "mail/o1: deleted" in (await cli("jobs", "delete", "mail", "o1")).ok().out
        assert "mail" in (await cli("jobs", "topics")).ok().out
        shown = (await cli("jobs", "topic", "mail")).ok().out.splitlines()
        assert {"mail: ttr = 1m", "mail: rate = 0 (no limit)", "mail: zone = -"} <= set(shown)
        unused = (await cli("jobs", "topic", "mial")).ok().out.splitlines()
        assert unused[0].startswith("mial: not used yet, it would have these settings;")
        assert unused[1:] == [line.replace("mail:", "mial:") for line in shown]
        assert "mail" in (await cli("jobs", "count")).ok().out


async def test_a_settled_receipt_is_stale_and_each_is_told(cli: CommandLine) -> None:
    async with node(cli):
        for job_id in ("a", "b"):
            await told(cli, "add", "mail", "1", "--id", job_id)
        jobs = (await told(cli, "reserve", "mail", "--most", "2", "--wait", "20s"))["jobs"]
        receipts = [job["receipt"] for job in jobs]
        (await cli("jobs", "release", receipts[0], "--delay", "1h", "--keep-attempt")).ok()
        answer = await cli("jobs", "finish", *receipts, "--json")
        assert answer.code == 1
        assert [each["code"] for each in answer.json()["answers"]] == ["stale", "ok"]
        assert f"{receipts[0]}: stale: " in answer.err
        shown = await told(cli, "peek", "mail", jobs[0]["id"])
        assert (shown["state"], shown.get("attempts", 0)) == ("delayed", 0)


async def test_a_buried_job_is_a_dead_letter_and_goes_round_again(cli: CommandLine) -> None:
    async with node(cli):
        await told(cli, "add", "mail", '{"n":1}', "--id", "o1")
        [job] = (await told(cli, "reserve", "mail", "--wait", "20s"))["jobs"]
        (await cli("jobs", "bury", job["receipt"], "--reason", "no such address")).ok()
        [letter] = (await cli("dead", "list", "--engine", "jobs", "--json")).ok().json()["letters"]
        assert (letter["name"], letter["id"], letter["reason"]) == ("mail", "o1", "no such address")
        assert "adds job o1 of mail, due now, with 10 attempts" in (await cli("dead", "show", "o1")).ok().out
        (await cli("dead", "replay", str(letter["seq"]))).ok()
        [job] = (await told(cli, "reserve", "mail", "--wait", "20s"))["jobs"]
        assert (job["id"], job["attempt"], job["body"]) == ("o1", 1, {"n": 1})
        assert (await cli("dead", "list", "--json")).ok().json()["letters"] == []


async def test_delayed_jobs_are_listed_by_page_and_due_time_and_kicked(cli: CommandLine) -> None:
    async with node(cli):
        for hours in (1, 2, 3, 4):
            await told(cli, "add", "mail", str(hours), "--id", f"o{hours}", "--delay", f"{hours}h")
        first = await told(cli, "list", "mail", "--state", "delayed", "--limit", "3")
        rest = await told(cli, "list", "mail", "--limit", "3", "--after", first["after"])
        assert sorted(job["id"] for job in first["jobs"] + rest["jobs"]) == ["o1", "o2", "o3", "o4"]
        assert rest["after"] is None
        noon_ms = now_ms() + 9_000_000  # two and a half hours from now
        from penstock.times import time_text

        early = await told(cli, "list", "mail", "--due-before", time_text(noon_ms))
        late = await told(cli, "list", "mail", "--due-after", time_text(noon_ms))
        assert sorted(job["id"] for job in early["jobs"]) == ["o1", "o2"]
        assert sorted(job["id"] for job in late["jobs"]) == ["o3", "o4"]
        assert (await told(cli, "kick", "mail", "o4")) == {"kicked": 1}
        [job] = (await told(cli, "reserve", "mail", "--wait", "20s"))["jobs"]
        assert job["id"] == "o4"
        assert (await cli("jobs", "kick", "mail", "nobody")).code == 1


async def test_a_topic_is_changed_paused_and_resumed(cli: CommandLine) -> None:
    async with node(cli):
        changed = await told(cli, "topic", "mail", "ttr=2m", "attempts=3", "rate=0.5", "lanes=high,low", "--pause")
        assert changed["settings"] | {"ttr": "2m", "attempts": 3, "rate": 0.5, "is_paused": True} == changed["settings"]
        assert changed["settings"]["lanes"] == ["high", "normal", "low"]
        resumed = await told(cli, "topic", "mail", "--resume", "--unset", "ttr")
        assert (resumed["settings"]["is_paused"], resumed["settings"]["ttr"]) == (False, "1m")
        for arguments, said in (
            (["ttr=5"], "has no unit"),
            (["tttr=5s"], "did you mean ttr?"),
            (["ttr"], "write NAME=VALUE"),
            (["ttr=1s", "ttr=2s"], "given twice"),
            (["ttr=1s", "--unset", "ttr"], "set and unset"),
        ):
            refused = await cli("jobs", "topic", "mail", *arguments)
            assert (refused.code != 0, said in refused.err) == (True, True), refused.err


# ---- many at once


async def test_a_file_is_added_and_its_bad_lines_are_told(cli: CommandLine, tmp_path: Path) -> None:
    rows: list[object] = [{"id": f"r{at}", "body": {"n": at}, "delay": "1h"} for at in range(1, 1201)]
    lines = [json.dumps(row) for row in rows]
    lines[6], lines[1099] = '{"id": "r7", "delay": "5"}', '{"id": "x", "delay_ms": -1}'
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    async with node(cli):
        stopped = await cli("jobs", "add", "mail", "--file", str(file), "--json")
        assert (stopped.code, stopped.json()["added"], stopped.json()["next_line"]) == (1, 6, 7)
        assert "line 7: --delay '5': has no unit" in stopped.err
        skipped = await cli("jobs", "add", "mail", "--file", str(file), "--on-bad", "skip", "--json")
        document = skipped.json()
        assert (skipped.code, document["added"], document["kept"], document["next_line"]) == (1, 1192, 6, 0)
        assert [bad["line"] for bad in document["bad"]] == [7, 1100]
        assert "delay_ms" in document["bad"][1]["reason"]
        assert (await told(cli, "count", "mail"))[0]["delayed"] == 1198
        missing = await cli("jobs", "add", "mail", "--file", str(tmp_path / "none.jsonl"))
        assert (missing.code, "No such file" in missing.err) == (2, True)


# ---- schedules


async def test_a_recurring_job_is_added_shown_paused_and_removed(cli: CommandLine) -> None:
    async with node(cli, follows_schedules=True):
        line = ["schedules", "add", "mail/nightly", '{"n":1}', "--cron", "0 9 1 1 *", "--tz", "Europe/Berlin"]
        added = await as_json(cli, *line, "--overlap", "allow")
        assert (added["is_new"], added["cron"], added["body"], len(added["next_ms"])) == (
            True,
            "0 9 1 1 *",
            {"n": 1},
            3,
        )
        assert not (await as_json(cli, *line, "--overlap", "allow"))["is_new"]
        other = await cli(*line[:4], "--every", "10m")
        assert (other.code, "replace it, or use another name" in other.err) == (1, True)
        with anyio.fail_after(20):
            while not (jobs := (await told(cli, "list", "mail"))["jobs"]):
                await a_moment()
        assert [job["due_ms"] for job in jobs] == added["next_ms"][:1]
        assert jobs[0]["id"].startswith("nightly.20")
        print((await cli("schedules", "list")).ok().out)
        assert "0 9 1 1 * Europe/Berlin" in (await cli("schedules", "list")).ok().out
        shown = await as_json(cli, "schedules", "show", "mail/nightly", "--next", "7")
        assert (shown["next_ms"][:3], len(shown["next_ms"])) == (added["next_ms"], 7)
        shown = (await cli("schedules", "show", "mail/nightly", "--next", "1")).ok().out
        assert 'when: 0 9 1 1 * Europe/Berlin\nstate: runs\nmisfire: once\noverlap: allow\nbody: {"n":1}' in shown
        assert (await as_json(cli, "schedules", "pause", "mail/nightly"))["is_changed"]
        with anyio.fail_after(20):
            while (await told(cli, "count", "mail"))[0]["delayed"]:
                await a_moment()
        assert (await as_json(cli, "schedules", "list"))[0]["next_ms"] == []
        job_id = (await as_json(cli, "schedules", "trigger", "mail/nightly"))["id"]
        with anyio.fail_after(20):
            while job_id not in [job["id"] for job in (await told(cli, "list", "mail", "--state", "ready"))["jobs"]]:
                await a_moment()
        ahead = await cli("schedules", "backfill", "mail/nightly", "-1d", "now")
        assert (ahead.code, "-1d to now: has no occurrence" in ahead.err) == (2, True)
        told_of = await as_json(
            cli, "schedules", "backfill", "mail/nightly", "2024-01-01T00:00:00Z", "2026-01-31T00:00:00Z"
        )
        assert told_of["end_ms"] == 1_769_817_600_000
        shown = (await cli("schedules", "show", "mail/nightly")).ok().out
        assert "backfill: goes on until 2026-01-31T00:00:00Z" in shown
        assert (await as_json(cli, "schedules", "resume", "mail/nightly"))["is_changed"]
        unsure = await cli("schedules", "remove", "mail/nightly")
        assert (unsure.code, "--yes" in unsure.err) == (2, True)
        (await cli("schedules", "remove", "mail/nightly", "--yes")).ok()
        assert (await as_json(cli, "schedules", "list")) == []
        gone = await cli("schedules", "show", "mail/nightly")
        assert (gone.code, "no schedule mail/nightly" in gone.err) == (1, True)


async def test_one_that_is_due_once_is_over_after_it(cli: CommandLine) -> None:
    async with node(cli, follows_schedules=True):
        at = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
        line = ["schedules", "add", "mail/once", "1", "--at", at]
        assert (await as_json(cli, *line))["is_new"]
        with anyio.fail_after(20):
            while (await told(cli, "count", "mail"))[0]["ready"] == 0:
                await a_moment()
        shown = (await cli("schedules", "show", "mail/once")).ok().out
        assert f"when: once, {at[:19]}" in shown
        assert "state: over\n" in shown
        [job] = (await told(cli, "reserve", "mail"))["jobs"]
        assert "not ended" in shown
        (await cli("jobs", "finish", job["receipt"])).ok()
        with anyio.fail_after(20):
            while (run := (await as_json(cli, "schedules", "show", "mail/once"))["runs"][0])["outcome"] != "finished":
                await a_moment()
        assert run["due_ms"] <= run["started_ms"] <= run["ended_ms"]
        shown = (await cli("schedules", "show", "mail/once")).ok().out
        assert re.search(r"\nrun: 20[^ ]+Z, finished, started [^ ]+ later, took [^ ]+\n", shown), shown
        again = await cli(*line)
        assert (again.code, "is there already" in again.out) == (0, True), "a program may add it at each start"
        late = await cli(*line, "--misfire", "skip", "--replace")
        assert (late.code, "is past; give a later moment" in late.err) == (2, True)


# ---- what is refused, and when nobody is there


async def test_what_the_desk_refuses_is_told_with_its_reason(cli: CommandLine) -> None:
    async with node(cli):
        for code, arguments, said in (
            (2, ["add", "a b", "1"], "topic"),
            (2, ["add", "mail", "1", "--delay", "8000d"], "delay_ms"),
            (2, ["add", "mail", "1", "--attempts", "5000"], "attempts"),
            (2, ["add", "mail", "1", "--id", "x" * 256], "255"),
            (2, ["add", "mail", "1", "--delay", "1h", "--expires-in", "1m"], "is over before the job is due"),
            (2, ["topic", "mail", "ttr=for"], "is not a duration"),
            (1, ["finish", "nonsense"], "nonsense"),
            (1, ["peek", "mail", "none"], "there is no such job"),
            (1, ["delete", "mail", "none"], "there is no such job"),
            (2, ["list", "mail", "--after", "tampered"], "cursor"),
        ):
            answer = await cli("jobs", *arguments)
            assert (answer.code, said in answer.err) == (code, True), (arguments, answer.err)
        (await cli("jobs", "topic", "still", "is_paused=true")).ok()
        paused = (await cli("jobs", "reserve", "still")).ok().out
        assert "still is paused; `penstock jobs topic still is_paused=false` has it go on" in paused
        assert "nothing is ready in mail" in (await cli("jobs", "reserve", "mail")).ok().out
        await told(cli, "add", "mail", "1", "--id", "o1")
        clash = await cli("jobs", "add", "mail", "1", "--id", "o1", "--on-same", "error", "--json")
        assert (clash.code, "o1" in clash.json()["error"] or "this id" in clash.json()["error"]) == (1, True)


async def test_where_no_node_answers_it_says_so(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.held.ASK_S", 2.0)  # a busy machine may take a while to say so
    answer = await cli("jobs", "add", "mail", "1")
    assert (answer.code, "no node answers; start one with the role `desk`" in answer.err) == (1, True), answer.err
