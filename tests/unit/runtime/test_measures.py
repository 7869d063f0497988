"""Figures that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import generate_latest

from actors.runtime.measures import HubFigures, Measures, RateFigure, SourceFigures


def test_rates_and_flows_are_figures_when_they_are_asked_for() -> None:
    measures, figures, rows = Measures(), list[RateFigure](), [("pay", 7)]
    measures.follow_rates(lambda: figures, lambda: bool(figures))
    measures.follow_flows(lambda: rows)
    measures.flow_round("pay", loaded=5, failed=1)
    measures.flow_round("pay", loaded=2, failed=0)
    assert "penstock_governor_elected 0.0" in generate_latest(measures.registry).decode()
    figures.append(RateFigure("flow", "pay", 500.0, 12))
    rows[0] = ("pay", 9)
    told = generate_latest(measures.registry).decode().splitlines()
    for line in (
        'penstock_rate_target{kind="flow",name="pay"} 500.0',
        'penstock_rate_begun_total{kind="flow",name="pay"} 12.0',
        "penstock_governor_elected 1.0",
        'penstock_flow_rounds_total{flow="pay"} 2.0',
        'penstock_flow_rows_loaded_total{flow="pay"} 7.0',
        'penstock_flow_loads_failed_total{flow="pay"} 1.0',
        'penstock_flow_rows_in_flight{flow="pay"} 9.0',
    ):
        assert line in told


def test_a_zone_tells_how_it_stands_with_the_hub() -> None:
    measures = Measures()
    measures.follow_hub(lambda: HubFigures(is_linked=True, may_run=False, heard_s=7.5, behind=2))
    told = generate_latest(measures.registry).decode().splitlines()
    for line in (
        "penstock_hub_up 1.0",
        "penstock_zone_may_run 0.0",
        "penstock_hub_heard_seconds 7.5",
        "penstock_zone_epochs_behind 2.0",
    ):
        assert line in told


def test_figures_that_change_while_they_are_read_are_read_again() -> None:
    measures, flows = Measures(), {"pay": 7}

    def in_flight() -> Iterator[tuple[str, int]]:
        for flow, rows in flows.items():
            yield flow, rows
            flows.setdefault("mail", 1)  # as another thread does

    measures.follow_flows(in_flight)
    told = generate_latest(measures.registry).decode()
    assert 'penstock_flow_rows_in_flight{flow="pay"} 7.0' in told
    assert 'penstock_flow_rows_in_flight{flow="mail"} 1.0' in told


def _with_sources(count: int) -> Measures:
    measures = Measures()
    for number in range(count):
        figures = SourceFigures(lag_s=lambda: 2.5, down_s=0.0, slices=1, holes=0, is_parked=False, is_paused=number > 0)
        measures.source("mall", f"s{number}", figures)
    return measures


def test_sources_that_were_removed_are_dropped() -> None:
    measures = _with_sources(9)
    measures.keep_only([("mall", "s7")])
    told = generate_latest(measures.registry).decode()
    assert 'penstock_open_slices{platform="mall",source="s7"} 1.0' in told
    assert 'penstock_watermark_lag_seconds{platform="mall",source="s7"} 2.5' in told
    assert 'penstock_source_paused{platform="mall",source="s7"} 1.0' in told
    assert 's8"' not in told


def test_who_leads_no_more_tells_of_no_source() -> None:
    measures = _with_sources(3)
    measures.forget_sources()
    assert 'source="' not in generate_latest(measures.registry).decode()
