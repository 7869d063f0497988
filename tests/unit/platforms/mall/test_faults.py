"""Faults are dealt at their chances, the same for a seed, and one at a time."""

import pytest

from platforms.mall.__main__ import duration_ms, parser
from platforms.mall.faults import FAULT_NAMES, PRESETS, Dealer, Faults


def deal(faults: Faults, count: int, *, seed: int = 1, step_ms: int = 0) -> list[str | None]:
    dealer = Dealer(faults, seed)
    return [dealer.deal(number * step_ms) for number in range(count)]


def test_a_seed_deals_the_same_faults_again() -> None:
    assert deal(PRESETS["hard"], 500) == deal(PRESETS["hard"], 500)
    assert deal(PRESETS["hard"], 500) != deal(PRESETS["hard"], 500, seed=2)


def test_faults_come_about_as_often_as_they_are_set() -> None:
    dealt = deal(Faults(error=0.2, cut=0.1), 10_000)
    assert 1_800 < dealt.count("error") < 2_200
    assert 850 < dealt.count("cut") < 1_150
    assert set(dealt) == {"error", "cut", None}


def test_without_faults_none_is_dealt() -> None:
    assert deal(PRESETS["none"], 1_000) == [None] * 1_000


def test_named_faults_come_first_and_once() -> None:
    assert deal(Faults(next=("html", "cut")), 4) == ["html", "cut", None, None]


def test_dealt_faults_are_counted() -> None:
    dealer = Dealer(Faults(next=("html", "html", "cut")), 1)
    for _ in range(5):
        dealer.deal(0)
    assert dealer.dealt == {"html": 2, "cut": 1}


def test_an_honest_limit_throttles_what_is_above_it() -> None:
    assert deal(Faults(rate_per_s=10), 100, step_ms=100).count("throttle") == 0
    throttled = deal(Faults(rate_per_s=10), 1_000, step_ms=50).count("throttle")
    assert 450 < throttled < 500


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_presets_leave_most_answers_honest(preset: str) -> None:
    assert sum(getattr(PRESETS[preset], name) for name in FAULT_NAMES) < 0.5


@pytest.mark.parametrize(
    ("text", "ms"), [("250ms", 250), ("20s", 20_000), ("2h", 7_200_000), ("-10m", -600_000), ("0", 0)]
)
def test_durations_of_the_command_line(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    "arguments", [["--live", "20"], ["--paging", "pages"], ["--faults", "many"], ["--history", "soon"]]
)
def test_a_wrong_command_line_ends_with_its_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err
