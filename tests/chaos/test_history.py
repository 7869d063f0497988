"""Every call of ten callers at all doors, under faults of all kinds, judged by the rules of support/job_history.py.

`pytest tests/chaos/test_history.py --long --seconds 3600 --seed 7` goes on for an hour, on one server and then on
three. Where a rule is broken the report has its shortest example, and names the file with the whole history.
"""

from pathlib import Path

import pytest

from penstock.sdk import calls
from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form
from tests.support.history_world import open_history

SHORT_S, LONG_S = 15.0, 300.0


@pytest.fixture
def seconds(request: pytest.FixtureRequest, form: Form) -> float:
    told: float | None = request.config.getoption("--seconds")
    return told or (LONG_S if form.is_long else SHORT_S)


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", 1.0)


@pytest.mark.timeout(9_000)
async def test_what_is_answered_is_so(tmp_path: Path, form: Form, seconds: float, assert_whole: AssertWhole) -> None:
    async with open_history(tmp_path, form) as world:
        verdict = await world.run(seconds)
    assert_whole(verdict)


@pytest.mark.timeout(9_000)
async def test_what_is_answered_is_so_on_three_servers(
    tmp_path: Path, form: Form, seconds: float, assert_whole: AssertWhole
) -> None:
    async with open_history(tmp_path, form, servers=3) as world:
        verdict = await world.run(seconds)
    assert_whole(verdict)
