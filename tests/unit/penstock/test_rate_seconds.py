"""How seconds of rates are drawn, told and summed up."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from actors.flow.rates_desk import RatesView, RateView
from penstock.cli.rates import read_rate
from penstock.cli.shown import rates_chart
from penstock.cli.shown.rate_seconds import (
    LEVELS,
    PLAIN_LEVELS,
    RateSecond,
    Second,
    each_second,
    is_near,
    levels_of,
    rate_text,
    sparkline,
)
from penstock.cli.shown.rates_report import report_of
from penstock.cli.shown.rates_watch import RatesTable, line_of
from penstock.errors import UsageError

AT_MS = 1_790_000_000_000
counted = st.integers(0, 10_000)
targets = st.one_of(st.integers(1, 10_000).map(float), st.floats(0.001, 10_000))


def second(*rates: tuple[str, float, int], governor: str = "n1", silent: Sequence[str] = ()) -> Second:
    return Second(
        at_ms=AT_MS,
        governor=governor,
        answered=2 - len(silent),
        asked=2,
        silent=silent,
        rates=[RateSecond(kind="topic", name=name, rate=rate, begun=begun) for name, rate, begun in rates],
    )


def test_a_second_is_drawn_against_its_target() -> None:
    assert sparkline([(0, 8), (1, 8), (4, 8), (7, 8), (8, 8), (9, 8), (5, 0)]) == "▁▁▄▇█! "
    assert sparkline([(0, 100), (50, 100), (99, 100), (101, 100), (102, 100)], PLAIN_LEVELS) == "_-##!"
    assert sparkline([(0, 1 / 60), (1, 1 / 60), (2, 1 / 60)]) == "▁█!"


@given(counted, targets)
def test_only_what_is_above_the_target_is_marked_so(begun: int, rate: float) -> None:
    sign = sparkline([(begun, rate)])
    assert (sign == "!") == (begun > rate and not is_near(begun, rate))
    assert sign in (*LEVELS, "!")


@given(counted, targets)
def test_near_is_one_per_cent_and_of_a_fraction_the_whole_numbers_beside_it(begun: int, rate: float) -> None:
    assert not is_near(begun, rate) or abs(begun - rate) < max(1, rate / 100 + 1e-9)
    assert is_near(round(rate), rate)


@pytest.mark.parametrize(
    ("text", "per_s"),
    [("500", 500), ("0.5", 0.5), ("1/m", 1 / 60), ("36/h", 0.01), ("8/s", 8), ("0", 0), ("default", None)],
)
def test_rates_are_read_as_people_write_them(text: str, per_s: float | None) -> None:
    assert read_rate(text) == per_s


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "inf", "5/d", "5/", "/m", "1 000"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="rate: "):
        read_rate(text)


def test_rates_are_told_in_the_unit_that_reads_best() -> None:
    told = [rate_text(rate) for rate in (0, 500, 2.5, 0.5, 1 / 60, 0.001)]
    assert told == ["no limit", "500/s", "2.5/s", "0.5/s", "1/m", "3.6/h"]


def test_a_line_has_the_second_and_what_is_wrong() -> None:
    assert line_of(second(("mail", 50, 49)), LEVELS).endswith("Z topic/mail 49 of 50/s ▇")
    wrong = line_of(second(governor="", silent=["n2"]), LEVELS)
    assert "no rates; no governor now: work that waits for a rate has one elected" in wrong
    assert wrong.endswith("1 of 2 nodes answered, so counts are too low; silent: n2")


def test_a_stream_that_has_no_blocks_gets_plain_signs() -> None:
    levels = [levels_of(io.TextIOWrapper(io.BytesIO(), encoding=name)) for name in ("utf-8", "ascii", "latin-1")]
    assert levels == [LEVELS, PLAIN_LEVELS, PLAIN_LEVELS]


@pytest.mark.parametrize("name", ["mail", "x" * 64])
def test_the_table_fits_the_terminal(name: str) -> None:
    past = RatesTable()
    for number in range(100):
        past.add(latest := second((name, 1_000_000, 900_000 + number), ("other", 0.5, 1), governor="n" * 40))
    out = io.StringIO()
    Console(file=out, width=80).print(past.table(latest, 80, LEVELS))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("▇▇▇▇▇▇▇▇" in line for line in lines)


def test_a_report_counts_what_is_near_and_what_is_above() -> None:
    seen = [second(("mail", 100, begun)) for begun in (99, 100, 101, 98, 102)] + [second(("mail", 0, 0), silent=["n2"])]
    report = report_of(seen)
    assert (report.seconds, report.least, report.most, report.near, report.above) == (6, 0, 102, 0.6, 1)
    assert (report.unheard, report.mean) == (1, round(500 / 6, 3))
    assert report_of([second(("mail", 0, 0))]).near == 0.0


def test_a_chart_has_its_words_as_text(tmp_path: Path) -> None:
    report = report_of([second(("mail", 100, begun)) for begun in (99, 100)] + [second(("mail", 0, 0))])
    rates_chart.check_chart(tmp_path / "a.svg")
    rates_chart.draw(report, tmp_path / "a.svg")
    rates_chart.draw(report, tmp_path / "b.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    assert ">topic/mail: 100.0% of the seconds within 1 % of the target<" in drawn


def test_without_the_package_a_chart_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(UsageError, match=r"--svg: .*not installed here: pip install 'penstock\[charts\]'"):
        rates_chart.check_chart(tmp_path / "a.svg")


class Nodes:
    """Answers about one rate: second by second, some of them slowly."""

    def __init__(self, gaps: Sequence[int]) -> None:
        self._gaps = iter(gaps)
        self._until_s = AT_MS // 1000

    async def ask(self, seconds: int) -> RatesView:
        self._until_s += next(self._gaps)
        begun = [*range(self._until_s - seconds, self._until_s)]
        one = RateView(kind="topic", name="t", rate=1.0, last=begun[-1], mean=0.0, begun=begun, nodes=[])
        return RatesView(until_ms=self._until_s * 1000, governor="n1", answered=1, asked=1, silent=[], rates=[one])


async def test_each_second_comes_once_though_answers_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_wait(_s: float) -> None:
        return None

    monkeypatch.setattr("penstock.cli.shown.rate_seconds.anyio.sleep", no_wait)
    nodes = Nodes([0, 1, 0, 0, 2, 1, 1])
    seen: list[Second] = []
    async for each in each_second(nodes.ask):
        seen.append(each)
        if len(seen) == 6:
            break
    starts = [each.at_ms // 1000 for each in seen]
    assert starts == [*range(starts[0], starts[0] + 6)]
    assert [each.rates[0].begun for each in seen] == starts
