"""The first screen: every command by what a person wants to do, on 80 columns."""

import pytest
from typer.testing import CliRunner

from penstock.cli.root import COMMANDS, app


def help_of(*arguments: str) -> list[str]:
    done = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    return done.stdout.splitlines()


def test_the_first_screen_names_every_command_once_under_what_it_is_for() -> None:
    lines = help_of()
    assert [line.rstrip(":") for line in lines if line in {f"{title}:" for title in COMMANDS}] == list(COMMANDS)
    for entries in COMMANDS.values():
        for entry in entries:
            assert sum(line.split() == [entry.name, *entry.line.split()] for line in lines) == 1, entry
    assert max(map(len, lines)) <= 80
    assert {"orders", "jobs", "batches"} <= set(" ".join(lines).lower().replace(",", " ").split())


def test_a_groups_screen_says_what_each_of_its_commands_does() -> None:
    text = " ".join(" ".join(help_of("batch")).split())
    assert "items List a batch's items: what was to be done, how it ended, and why." in text


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ("verify", "SOURCE FROM [TO]"),
        ("jobs finish", "RECEIPT..."),
        ("rates watch", "[[KIND/]NAME]"),
        ("settings set", "LEVEL [NAME=VALUE]..."),
    ],
)
def test_a_usage_line_has_the_brackets_that_its_arguments_have(words: str, usage: str) -> None:
    assert help_of(*words.split())[0] == f"Usage: penstock {words} [OPTIONS] {usage}"


def test_options_for_the_server_stand_apart() -> None:
    lines = help_of("jobs", "add")
    assert lines.index("Which installation:") > lines.index("Options:") > lines.index("Arguments:")
    assert lines[lines.index("Which installation:") + 1].split()[:2] == ["--nats", "URL"]
