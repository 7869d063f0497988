"""Every call of nine callers at all doors, under faults of all kinds, judged by the rules of support/job_history.py.

The short form is part of every test run. The long one takes `PENSTOCK_HISTORY_S` seconds on one server and on three:
`PENSTOCK_HISTORY_S=3600 just chaos 7`. A history that breaks a rule is told with its shortest example and where all of
it was written.
"""

import os
from pathlib import Path

import pytest

from penstock import calls
from tests.chaos.conftest import Tell
from tests.support.chaos import Form
from tests.support.history_world import open_history

SHORT_S = 15.0


def seconds(form: Form) -> float:
    return float(os.environ.get("PENSTOCK_HISTORY_S", form.pick(round(SHORT_S), 300)))


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", 1.0)


@pytest.mark.timeout(9_000)
async def test_what_is_answered_is_so(tmp_path: Path, form: Form, tell: Tell) -> None:
    async with open_history(tmp_path, form) as world:
        verdict = await world.run(seconds(form))
    tell(verdict)


@pytest.mark.timeout(9_000)
async def test_what_is_answered_is_so_on_three_servers(tmp_path: Path, form: Form, tell: Tell) -> None:
    async with open_history(tmp_path, form, servers=3) as world:
        verdict = await world.run(seconds(form))
    tell(verdict)
