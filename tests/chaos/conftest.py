"""How much the attacks ask, and the report: one line of JSON a scenario, at the end."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.chaos import Form


class Judged(Protocol):
    """What a run ended in."""

    @property
    def is_whole(self) -> bool: ...

    def line(self) -> str: ...


_verdicts: list[Judged] = []

SHORT = {
    "test_rates.py",
    "test_flows.py",
    "test_batches.py",
    "test_failpoints.py",
    "test_history.py",
    "test_jobs.py",
    "test_many.py",
    "test_server.py",
    "test_pauses.py",
    "test_platform.py",
    "test_settings.py",
    "test_stops.py",
    "test_clocks.py",
    "test_zones.py",
}
"""The attacks of every test run, two and a half minutes in all; the others come with `--long` (`just chaos`), or when
they are named."""

SET_MS = 50

AssertWhole = Callable[[Judged], None]


def _ahead_ms() -> int:
    """Return by how much the wall clock is ahead of the monotonic one."""
    return round((time.time() - time.monotonic()) * 1000)


@pytest.fixture
def form(request: pytest.FixtureRequest) -> Form:
    """The short form, unless `--long` was given."""
    return Form(is_long=request.config.getoption("--long"), seed=request.config.getoption("--seed"))


@pytest.fixture
def assert_whole() -> AssertWhole:
    """Take a verdict into the report, and have the test fail if it is not whole. Verdicts say what is early by the
    machine's clock: if that was set meanwhile, the failure says so."""
    ahead_ms = _ahead_ms()

    def take(verdict: Judged) -> None:
        _verdicts.append(verdict)
        set_ms = _ahead_ms() - ahead_ms
        why = f" (the machine's clock was set by {set_ms} ms meanwhile)" if abs(set_ms) > SET_MS else ""
        assert verdict.is_whole, verdict.line() + why

    return take


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _verdicts:
        terminalreporter.section("chaos")
        for verdict in _verdicts:
            terminalreporter.write_line(verdict.line())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what takes long to the long form."""
    for item in items:
        is_ours = item.path.parent == Path(__file__).parent and item.path.name not in SHORT
        is_named = any(item.path.name in argument for argument in config.args)
        if is_ours and not is_named and not config.getoption("--long"):
            item.add_marker(pytest.mark.skip(reason="an attack of the long form: just chaos"))
