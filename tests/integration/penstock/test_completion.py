"""Shell completion: what a shell is given by the script that `penstock` prints for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = str(Path(sys.executable).parent)
"""Where the `penstock` of this environment is."""
BASH = """
eval "$(_PENSTOCK_COMPLETE=source_bash penstock)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
"$(complete -p penstock | sed 's/.*-F \\([^ ]*\\).*/\\1/')" penstock
printf '%s\\n' "${COMPREPLY[@]}"
"""
LINES = [
    ("penstock jo", {"jobs"}),
    ("penstock jobs re", {"reserve", "release"}),
    ("penstock schedules pa", {"pause"}),
    ("penstock jobs add t --priority ", {"high", "normal", "low"}),
    ("penstock batch submit --ta", {"--task"}),
    ("penstock sources list --name", {"--namespace"}),
]


def told(*command: str, **environment: str) -> str:
    environment = {**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}", "TERM": "dumb", **environment}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=60).stdout


@pytest.mark.parametrize(("line", "expected"), LINES)
def test_bash_completes_commands_options_and_choices(line: str, expected: set[str]) -> None:
    assert set(told("bash", "-c", BASH, "bash", *line.split(" ")).split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_given_a_script_and_its_answers(shell: str) -> None:
    script = told("penstock", _PENSTOCK_COMPLETE=f"source_{shell}")
    assert f"_PENSTOCK_COMPLETE=complete_{shell}" in script
    answer = told(
        "penstock",
        _PENSTOCK_COMPLETE=f"complete_{shell}",
        _TYPER_COMPLETE_ARGS="penstock jobs re",
        _TYPER_COMPLETE_FISH_ACTION="get-args",
    )
    assert all(name in answer for name in ("reserve", "release"))
