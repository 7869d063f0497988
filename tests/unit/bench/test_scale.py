"""A line of `bench scale` holds if a unit costs no more at ten times the size, within its own limit."""

import json

import pytest

from bench._scale import Line
from bench.scale import ScaleResult


def line(costs: tuple[float, float], *, reached: float | None = None, most: float | None = None) -> Line:
    return Line(
        what="a scan", things="sources", unit="us", sizes=(10, 100), costs=costs, reached=reached, most=most, of="s"
    )


@pytest.mark.parametrize(
    ("costs", "reached", "most", "ok"),
    [
        ((10.0, 13.0), None, None, True),
        ((10.0, 13.1), None, None, False),
        ((10.0, 1.0), 5.0, 5.0, True),
        ((10.0, 1.0), 5.1, 5.0, False),
        ((10.0, 1.0), None, 5.0, False),
    ],
)
def test_a_line_holds_by_its_growth_and_by_its_limit(
    costs: tuple[float, float], reached: float | None, most: float | None, ok: bool
) -> None:
    assert line(costs, reached=reached, most=most).ok is ok


def test_the_table_is_shown_to_people_and_in_json() -> None:
    found = ScaleResult(what="steepest", ours=1.5, target="1.3 x", ok=False, unit=" x", lines=(line((10.0, 15.0)),))
    assert found.as_row().splitlines()[1] == "  MISSED a scan: 10 -> 15 us x1.50 at 10 -> 100 sources"
    shown = json.loads(found.as_json())
    assert [(each["what"], each["growth"], each["ok"]) for each in shown["lines"]] == [("a scan", 1.5, False)]
