"""Claims are measured in turns, judged by their median, and found by their file."""

import json

import pytest

from bench.__main__ import names
from bench.harness import Rounds, in_turns, reached


async def test_sides_take_turns_and_the_first_round_does_not_count() -> None:
    turns: list[str] = []

    async def ours(number: int) -> int:
        turns.append(f"ours {number}")
        return 10

    async def theirs(number: int) -> int:
        turns.append(f"theirs {number}")
        return 5

    rates = await in_turns(ours, theirs, rounds=2)
    assert turns == ["ours 0", "theirs 0", "ours 1", "theirs 1", "ours 2", "theirs 2"]
    assert (len(rates.ours), len(rates.theirs)) == (2, 2)


def test_the_ratio_is_between_neighbours_in_time() -> None:
    assert Rounds([10.0, 100.0, 30.0], [5.0, 10.0, 10.0]).ratio == 3.0


@pytest.mark.parametrize(
    ("ours", "theirs", "is_sound", "ok"),
    [(100.0, 90.0, True, True), (50.0, 20.0, True, True), (50.0, 40.0, True, False), (100.0, 10.0, False, False)],
)
def test_a_claim_holds_by_its_figure_or_its_ratio_and_only_if_it_happened(
    ours: float, theirs: float, is_sound: bool, ok: bool
) -> None:
    result = reached("what", Rounds([ours], [theirs]), reach=100, or_ratio=2, is_sound=is_sound, further=7)
    assert result.ok is ok
    shown = json.loads(result.as_json())
    assert {"what", "ours", "theirs", "ratio", "target", "ok", "further"} <= set(shown)
    assert (shown["ours"], shown["further"]) == (ours, 7)
    assert result.as_row().startswith("ok" if ok else "MISSED")


def test_every_module_is_a_claim_and_nothing_else() -> None:
    assert {"publisher", "puller"} <= set(names())
    assert not {"__main__", "__init__", "harness", "all"} & set(names())
