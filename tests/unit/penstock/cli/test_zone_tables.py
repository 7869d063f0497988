"""What `penstock zones` and `penstock routing` print fits a terminal of 80 columns, however long the names are."""

from collections.abc import Callable
from io import StringIO

import pytest

from actors.zone.rules.plan import plan
from actors.zone.rules.report import MoveReport, TakenReport
from actors.zone.rules.routing import drained, made, next_map
from actors.zone.views import ChangeView, HandoverView, MapView, ZoneJobView, ZoneShown, ZoneView, map_view
from penstock.cli.routing import say_history, say_map, say_plan, say_report, weight_of
from penstock.cli.terminal.output import Output
from penstock.cli.zones import say_zone
from penstock.errors import UsageError

JOB = "a-job-with-a-name-of-32-letters-"
ZONES = ("europe-west-4-and-long-1", "europe-west-4-and-long-2")
BEFORE = next_map(
    None, made({ZONES[0]: "0-333,500-999", ZONES[1]: "334-499"}, count=1000), at_ms=1, by="ann", why="new"
)
AFTER = next_map(BEFORE, drained(BEFORE, ZONES[0]), at_ms=2, by="somebody-else", why=f"drain of {ZONES[0]}")
OFFSET = 1_234_567_890_123


class Terminal(StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def _change(out: Output) -> None:
    view = ChangeView(plan=plan(BEFORE, AFTER, {JOB: {}}), map=map_view(AFTER), is_applied=False, nodeless=[*ZONES])
    say_plan(out, view)


def _map(out: Output) -> None:
    view: MapView = map_view(AFTER)
    say_map(out, view)
    say_history(out, [view, map_view(BEFORE)])


def _report(out: Output) -> None:
    taken = TakenReport(job=JOB, zone=ZONES[1], taken=834, waiting="0-5,7", moved_on=1, start=OFFSET, took_ms=12_345,
                        repeated=123_456, passed=9, skipped=0, forced=834, is_caught_up=False)  # fmt: skip
    report = MoveReport(epoch=1_000_002, why=f"drain of {ZONES[0]}", by="", changed_ms=1, shards=834, is_over=False,
                        took_ms=12_345, repeated=1, passed=2, skipped=0, taken=[taken])  # fmt: skip
    say_report(out, report)


def _zone(out: Output) -> None:
    zone = ZoneView(zone=ZONES[1], state="live", shards="0-999", count=1000, weight=1.0, had="", nodes=["n1", "n2"])
    came = HandoverView(job=JOB, shard="7", before=ZONES[0], after=ZONES[1], epoch=1_000_002, offset=OFFSET,
                        start=OFFSET, repeated=123_456, passed=0, skipped=0, took_ms=12_345, taken_ms=2,
                        is_forced=True)  # fmt: skip
    job = ZoneJobView(job=JOB, shards=1000, start=OFFSET, ahead=OFFSET, waiting="0-5,7")
    say_zone(out, ZoneShown(zone=zone, jobs=[job], handovers=[came, came]))


@pytest.mark.parametrize("say", [_change, _map, _report, _zone])
def test_tables_of_zones_fit_80_columns(say: Callable[[Output], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    say(Output(is_json=False, file=file))
    assert [line for line in file.getvalue().splitlines() if len(line) > 80] == []


def test_a_plan_names_zones_without_a_live_node() -> None:
    file = StringIO()
    _change(Output(is_json=False, file=file))
    for zone in ZONES:
        assert f"zone {zone} has no live node: its new shards wait for one" in file.getvalue()


def test_a_plan_names_regions_that_no_zone_has_any_more() -> None:
    before = made({"a": "DE,FR,JP"}, function="region")
    after = made({"a": "DE"}, function="region")
    file = StringIO()
    say_plan(
        Output(is_json=False, file=file),
        ChangeView(plan=plan(before, after, {}), map=map_view(after), is_applied=False),
    )
    assert "no zone has FR, JP any more: rows of these regions wait for one that does" in file.getvalue()


def test_hand_overs_of_one_job_from_one_zone_are_one_line() -> None:
    file = StringIO()
    _zone(Output(is_json=False, file=file))
    [line] = [line for line in file.getvalue().splitlines() if ZONES[0] in line]
    assert line.split() == [JOB, ZONES[0], "1000002", "2", "12345", str(OFFSET), "246912", "0", "2"]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "much", "", "-1", "1e7"])
def test_a_weight_is_a_number(number: str) -> None:
    with pytest.raises(UsageError, match="--weight: "):
        weight_of(f"east={number}")
    assert weight_of("east=2") == ("east", 2.0)
