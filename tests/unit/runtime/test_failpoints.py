"""Points at which a test can have the process killed."""

import os
import signal
import subprocess
import sys

import pytest

from actors.runtime import failpoints


def passings(wanted: str, points: list[str]) -> list[int]:
    """Return at which passing (from 1) the crash was asked for."""
    crashed: list[int] = []
    passed: list[str] = []
    reach = failpoints.crash_at(wanted, lambda: crashed.append(len(passed)))
    for point in points:
        passed.append(point)
        reach(point)
    return crashed


def test_crashes_the_first_time_the_point_is_passed() -> None:
    assert passings("cut", ["offer", "cut", "cut"]) == [2]


def test_crashes_the_nth_time_and_only_then() -> None:
    assert passings("cut:3", ["cut", "cut", "offer", "cut", "cut"]) == [4]


@pytest.mark.parametrize("wanted", ["cut:0", "cut:-1", "cut:x", "cut:1.5"])
def test_refuses_a_count_that_is_none(wanted: str) -> None:
    with pytest.raises(ValueError, match="NAME:N with N from 1"):
        failpoints.crash_at(wanted, lambda: None)


def test_is_an_empty_function_when_nothing_is_armed() -> None:
    assert failpoints.reach is failpoints._pass_by


def test_kills_the_process_without_cleaning_up() -> None:
    code = "from actors.runtime.failpoints import reach\ntry:\n    reach('ack')\nfinally:\n    print('cleaned up')"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, failpoints.VARIABLE: "ack"},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stdout == b""
