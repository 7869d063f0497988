"""What cannot be meant by a command about jobs, schedules or tokens is refused before anything is asked of a server."""

import pytest
from typer.testing import CliRunner

from penstock.cli.root import app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add", "mail"], "give a BODY"),
        (["add", "mail", "1", "--file", "x"], "give a BODY"),
        (["add", "mail", "--file", "x", "--id", "y"], "each line has its own id"),
        (["add", "mail", "hello"], "is no JSON"),
        (["add", "mail", "@/none.json"], "No such file"),
        (["add", "mail", "1", "--delay", "5"], "has no unit"),
        (["add", "mail", "1", "--delay", "-5m"], "is negative"),
        (["add", "mail", "1", "--delay", "1m", "--at", "now"], "give one of them"),
        (["add", "mail", "1", "--at", "2026-11-21T09:30"], "says no zone"),
        (["add", "mail", "1", "--at", "2026-11-21T09:30", "--tz", "Mars"], "no such time zone"),
        (["add", "mail", "1", "--ttr", "soon"], "is not a duration"),
        (["add", "mail", "1", "--ttr", "0s"], "--ttr '0s': is out of range; write 1s to 7d"),
        (["reserve", "mail", "--ttr", "8d"], "--ttr '8d': is out of range; write 1s to 7d"),
        (["touch", "receipt", "--ttr", "0s"], "--ttr '0s': is out of range; write 1s to 7d"),
        (["add", "mail", "1", "--priority", "urgent"], "urgent"),
        (["add", "mail", "1", "--dealy", "5m"], "--dealy"),
        (["reserve", "mail", "--wait", "30"], "has no unit"),
        (["reserve", "mail", "--most", "0"], "--most"),
        (["finish"], "RECEIPT"),
        (["list", "mail", "--due-before", "12"], "is no moment"),
        (["list", "mail", "--state", "gone"], "gone"),
        (["topic", "mail", "ttr"], "write NAME=VALUE"),
        (["topic", "mail", "ttr=1s", "ttr=2s"], "given twice"),
        (["topic", "mail", "ttr=1s", "--unset", "ttr"], "set and unset"),
    ],
)
def test_a_wrong_argument_ends_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    refused("jobs", *arguments, said=said, monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["schedules", "add", "mail", "--every", "1m"], "write TOPIC/NAME"),
        (["schedules", "add", "mail/a b", "--every", "1m"], "contains ' '"),
        (["schedules", "add", "mail/n", "--every", "0s"], "is no interval"),
        (["schedules", "add", "mail/n", "--every", "10"], "has no unit"),
        (["schedules", "add", "mail/n", "--every", "1ms"], "use 1s to 366d"),
        (["schedules", "add", "mail/n"], "either cron or every"),
        (["schedules", "add", "mail/n", "--cron", "61 * * * *"], "the minute is not understood"),
        (["schedules", "add", "mail/n", "--cron", "* * * *"], "has 4 fields"),
        (["schedules", "add", "mail/n", "--cron", "@daily", "--tz", "Europe/Berlim"], "did you mean Europe/Berlin?"),
        (["schedules", "add", "mail/n", "--cron", "@daily", "--misfire", "all"], "overlap allow"),
        (["schedules", "add", "mail/n", "--cron", "@daily", "--ttr", "1ms"], "--ttr '1ms': is out of range; write 1s"),
        (["schedules", "add", "mail/n", "--at", "tomorrow"], "is no moment"),
        (["schedules", "add", "mail/n", "--every", "1m", "--at", "2096-01-31T08:00:00Z"], "or fixed_delay or at"),
        (
            ["schedules", "add", "mail/n", "--every", "1m", "--jitter", "1m"],
            "--jitter '1m': is out of range; use less than 1m",
        ),
        (["schedules", "add", "mail/n", "--every", "1m", "--jitter", "some"], "--jitter"),
        (["schedules", "add", "mail/n", "--every", "1m", "--initial-delay", "5"], "has no unit"),
        (["schedules", "add", "mail/n", "--every", "1m", "--start", "now", "--initial-delay", "5s"], "beside a start"),
        (["schedules", "add", "mail/n", "--every", "1m", "--most-missed", "5"], "limits misfire all"),
        (["schedules", "add", "mail/n", "--every", "1m", "--misfire", "all", "--overlap", "cancel"], "overlap allow"),
        (["schedules", "add", "mail/n", "[1]", "--every", "1m", "--data-time", "at"], "a JSON object"),
        (["schedules", "trigger", "mail"], "write TOPIC/NAME"),
        (["schedules", "backfill", "mail/n", "-1d", "-2d"], "must lie before"),
        (["schedules", "add", "mail/n", "--fixed-delay", "0s"], "is no interval"),
        (["schedules", "add", "mail/n", "--fixed-delay", "1m", "--overlap", "allow"], "waits for its end"),
        (["schedules", "list", "--topic", "a.b"], "contains '.'"),
        (["schedules", "pause", "mail"], "write TOPIC/NAME"),
        (["tokens", "add", "me", "--verb", "reed"], "did you mean read?"),
        (["tokens", "add", "me", "--expires", "90"], "has no unit"),
        (["tokens", "revoke", "me"], "--yes"),
        (["dead", "replay"], "--all"),
        (["dead", "replay", "1", "--reason", "x"], "leave out the other options"),
        (["dead", "replay", "--all", "--older-than", "3"], "has no unit"),
        (["dead", "list", "--older-than", "3d", "--newer-than", "1d"], "no letter is both"),
        (["dead", "replay", "--all", "--rate", "0"], "--rate"),
    ],
)
def test_so_does_one_about_schedules_tokens_and_dead_letters(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    refused(*arguments, said=said, monkeypatch=monkeypatch)


def refused(*arguments: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("PENSTOCK_NATS", "PENSTOCK_DATA"):
        monkeypatch.delenv(variable, raising=False)
    done = CliRunner().invoke(app, [*arguments, "--nats", "nats://127.0.0.1:9"])
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
