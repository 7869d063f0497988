"""The history check catches what it is there for: nodes with one thing broken on purpose (tests/support/mutant_node.py)
break the rules that are named for it. Of the long form; one of them alone: `pytest tests/chaos/test_history_mutants.py
-k fired_early`.
"""

from pathlib import Path

import pytest

from penstock.sdk import calls
from tests.support.chaos import Form
from tests.support.history_world import Hurt, open_history
from tests.support.mutant_node import MUTANTS

AFTER_THE_END = {"settled after its end", "handed out after its end", "there after its end", "ended twice"}
CAUGHT_BY = {
    "end_without_condition": {
        *AFTER_THE_END,
        "settled by an earlier receipt",
        "settled after it was given back",
        "lost",
    },
    "receipts_count_too_long": {"settled after its hold"},
    "fired_early": {"handed out before it was due"},
    "adds_without_nonce": {*AFTER_THE_END, "two runs of the same attempt", "told not done, and it was done"},
    "settled_without_second_look": AFTER_THE_END,
}
HURT: dict[str, tuple[Hurt, ...]] = {"adds_without_nonce": ("wires",), "settled_without_second_look": ("servers",)}
"""The faults without which a mutant does no harm."""
TRIES = 3
SECONDS = {"adds_without_nonce": 60.0, "settled_without_second_look": 90.0}


@pytest.fixture(autouse=True)
def _asks_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "TRY_S", 1.0)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_mutant_is_caught(tmp_path: Path, form: Form, mutant: str) -> None:
    """Chance decides what meets in a run: one of three has to catch it."""
    for attempt in range(TRIES):
        folder = tmp_path / f"{attempt}"
        folder.mkdir()
        again = Form(is_long=form.is_long, seed=form.seed + attempt)
        async with open_history(folder, again, mutant=mutant) as world:
            verdict = await world.run(SECONDS.get(mutant, 20.0), HURT.get(mutant, ()))
        if CAUGHT_BY[mutant] & set(verdict.broken):
            return
    pytest.fail(verdict.line())
