"""What cannot be meant is refused before anything is asked of a server: exit code 2 and one line."""

import json
from io import StringIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.root import app
from penstock.cli.settings import seed_of
from penstock.cli.terminal.output import Output, moment
from penstock.errors import UsageError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    for variable in ("PENSTOCK_NATS", "PENSTOCK_DATA"):
        monkeypatch.delenv(variable, raising=False)
    done = CliRunner().invoke(
        app, [*arguments, "--nats", "nats://127.0.0.1:9"] if "--nats" not in arguments else arguments
    )
    return done.exit_code, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--roles", "fetch"], "did you mean 'fetcher'"),
        (["up", "--drain", "-1"], "drain_s: Expected `float` >= 0"),
        (["up", "--drain", "20 s"], "drain_s: '20 s' is not a duration; write a number with its unit, as 250ms, 60s"),
        (["outbox", "relay", "--db", "sqlite:///x", "--poll", "5x"], "--poll '5x': is not a duration; write a number"),
        (["outbox", "relay", "--db", "sqlite:///x", "--poll", "2h"], "--poll 2h: is out of range; use 10ms to 1h"),
        (["jobs", "add", "t", "1", "--delay", ""], "is empty; write a number with its unit, as 30s or 2h"),
        (["jobs", "add", "t", "1", "--at="], "is empty; write a moment, as 2026-12-24T08:00:00Z"),
        (["jobs", "release", "r", "--delay", ""], "is empty"),
        (["up", "--name", "a b"], "name: 'a b' does not fit; use 1 to 64 of"),
        (["up", "--nats", "nats://joe:hunter2@h"], "no user or password"),
        (["up", "--seed", "/none.toml"], "/none.toml: No such file"),
        (["up", "--config", "/none.toml"], "/none.toml: No such file"),
        (["up", "--zoen", "x"], "--zone"),
        (["up", "--http", "7070"], "http: '7070' is no address; write HOST:PORT"),
        (["init", "--replicas", "2"], "use 1, 3 or 5"),
        (["dead", "list", "--engine", "job"], "--engine 'job': there is none; did you mean jobs?"),
        (["dead", "drop", "--all", "--engine", "mall", "--yes"], "there are batch, fetch, jobs, sink, submit"),
        (["settings", "set", "mall"], "nothing to set"),
        (["settings", "set", "mall", "slice"], "write NAME=VALUE"),
        (["settings", "set", "mall", "slice=2m", "slice=3m"], "given twice"),
        (["batch", "task", "tag", "slots=1", "slots=2"], "slots: given twice"),
        (["batch", "submit", "--task", "tag", "--param", "a=1", "--param", "a=2"], "a: given twice"),
        (["batch", "submit", "--task", "tag", "--param", "a"], "'a': write --param NAME=VALUE"),
        (["flows", "set", "pay", "rate=1", "rate=2"], "rate: given twice"),
        (["flows", "set", "pay", "groups=a:odd,a:even"], "groups: a: given twice"),
        (["flows", "set", "pay", "rate"], "'rate': write NAME=VALUE, as rate=500"),
        (["routing", "apply", "--move", "3=a", "--move", "3=b"], "--move: 3: is given twice, as a and as b"),
        (["routing", "plan", "--weight", "a=1", "--weight", "a=2"], "--weight: a: is given twice, as 1.0 and as 2.0"),
        (["settings", "set", "mall", "slise=2m"], "did you mean slice?"),
        (["settings", "set", "a b", "slice=2m"], "a level is default, PLATFORM or PLATFORM/SOURCE"),
        (["settings", "get", "mall", "slise"], "did you mean slice?"),
    ],
)
def test_a_wrong_argument_ends_with_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    code, told = run(monkeypatch, *arguments)
    assert code == 2
    assert said in told
    assert "hunter2" not in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "arguments", [["nosuch"], ["jobs", "add"], ["jobs", "list", "t", "--limit", "x"], ["batch", "--zoen"], ["--zoen"]]
)
def test_a_program_gets_json_of_a_wrong_argument_too(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, list(told), told["error"] in done.stderr) == (2, ["error"], True)
    plain = CliRunner().invoke(app, arguments)
    assert (plain.exit_code, plain.stdout) == (2, "")


def test_a_table_is_for_people_and_json_for_programs() -> None:
    for is_json in (False, True):
        file = StringIO()
        out = Output(is_json=is_json, file=file)
        out.say("one line")
        out.records({"a": "A"}, [{"a": 1, "b": 2}], empty="none")
        out.table(["x"], [], empty="nothing there")
        if is_json:
            assert json.loads(file.getvalue()) == [{"a": 1, "b": 2}]
        else:
            assert "one line" in file.getvalue()
            assert "nothing there" in file.getvalue()
            assert " 1 " in file.getvalue()


def test_text_from_elsewhere_cannot_steer_the_terminal() -> None:
    file = StringIO()
    out = Output(is_json=False, file=file)
    out.say("a\x1b[2Jb")
    out.table(["x"], [["\x1b]0;title\x07", "[bold]plain[/bold]"][:1]])
    assert "\x1b" not in file.getvalue()
    assert "\\x1b[2J" in file.getvalue()


def test_a_moment_is_shown_in_utc() -> None:
    assert moment(1_700_000_000_123) == "2023-11-14 22:13:20Z"
    assert moment(0) == "-"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[platform.mall]\nretries = 1\n[platform.mall]\nretries = 2\n", "not TOML: Cannot declare"),
        ("default:\n  retries: no\n", "not TOML"),
        ("[default]\nretries = 1\nretries = 2\n", "not TOML: Cannot overwrite"),
        ("[platform.default]\nretries = 1\n", "no platform can be called so"),
        ("[default]\nsecret = 'hunter2'\n", "looks like a secret"),
    ],
)
def test_a_seed_file_is_refused_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "seed.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=said) as refused:
        seed_of(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert "hunter2" not in str(refused.value)
