"""Metrics for Prometheus: what this node did, and, on the node that leads the monitor, how far each source is.

Names follow Prometheus' conventions: base units, `_total` for counters. `penstock up --metrics HOST:PORT` serves them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

BY_SOURCE = ("platform", "source")
READS = 10
"""How often figures are read that change while they are read."""
LATENESS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class SourceFigures(NamedTuple):
    """One source, as the leading monitor sees it. `lag_s` is called, from another thread, whenever somebody asks: it
    grows with time alone. `down_s`: for how long it cannot be reached. `slices`: open. `holes`: not accepted."""

    lag_s: Callable[[], float]
    down_s: float
    slices: int
    holes: int
    is_parked: bool
    is_paused: bool


class RateFigure(NamedTuple):
    """A rate that this node spends. `target`: of the cluster, per second. `begun`: by this node."""

    kind: str
    name: str
    target: float
    begun: int


class HubFigures(NamedTuple):
    """How this node's zone stands with the hub. `is_linked`: its last question was answered. `may_run`: the zone may
    work. `heard_s`: since the last confirmed renewal. `behind`: epochs from the zone's own map to that of the hub."""

    is_linked: bool
    may_run: bool
    heard_s: float
    behind: int


class Backlog(NamedTuple):
    """What waits in the whole installation, by label values. `jobs`: by topic and state. `ready_s`: for how long the
    first ready job of a topic waits or runs. `dead`: dead letters by engine and name. `batches`: those that are not
    over, by task and state, `items`: their items that have no end yet, by task, and `step_s`: the age of the oldest
    split or reduce, by task. `sinks`: messages that a sink has not acknowledged. `nodes`: live ones, by role."""

    jobs: Mapping[tuple[str, ...], float] = {}
    ready_s: Mapping[tuple[str, ...], float] = {}
    dead: Mapping[tuple[str, ...], float] = {}
    batches: Mapping[tuple[str, ...], float] = {}
    items: Mapping[tuple[str, ...], float] = {}
    step_s: Mapping[tuple[str, ...], float] = {}
    sinks: Mapping[tuple[str, ...], float] = {}
    nodes: Mapping[tuple[str, ...], float] = {}


class Measures:
    """A node's metrics, in a registry of its own."""

    def __init__(self) -> None:
        from prometheus_client import (  # not needed by commands
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            disable_created_metrics,
        )

        disable_created_metrics()  # type: ignore[no-untyped-call]  # an eighth of the answer, for nobody
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)

        self._slices = counter("penstock_slices_total", "Slices that this node ended.", ("platform", "outcome"))
        unproven = "Slices that this node read, and of which no count or end proves that they are whole."
        self._unproven = counter("penstock_slices_unproven_total", unproven, ("platform",))
        self._orders = counter("penstock_orders_total", "Orders that this node published.", ("platform",))

        self._by_source: dict[tuple[str, str], SourceFigures] = {}
        registry.register(_Asked(lambda: _of_sources(self._by_source)))
        self._elected = gauge("penstock_monitor_elected", "1 on the node that leads the monitor.")

        self._lateness = Histogram(
            "penstock_job_lateness_seconds",
            "When a job became ready, minus when it was due.",
            ("topic",),
            buckets=LATENESS_S,
            registry=registry,
        )
        self._left = counter("penstock_jobs_left_to_server_total", "Jobs that a timer left to the server's own firing.")
        self._handled = counter(
            "penstock_jobs_handled_total", "Jobs in handlers' hands, by their end.", ("topic", "outcome")
        )
        self._held = gauge("penstock_jobs_held", "Jobs that handlers hold now.", ("topic",))

        self._rounds = counter("penstock_flow_rounds_total", "Rounds that this node made.", ("flow",))
        self._loaded = counter("penstock_flow_rows_loaded_total", "New rows of these rounds.", ("flow",))
        failed = "Shards of these rounds whose load failed or did not answer, and failed splits."
        self._failed = counter("penstock_flow_loads_failed_total", failed, ("flow",))

        self._requests = counter(
            "penstock_gateway_requests_total",
            "Requests that this node's gateway answered, by operation and status.",
            ("operation", "status"),
        )
        self._answered = cache(self._requests.labels)  # looking up labels costs more than counting

    def follow_waiting(self, waiting: Callable[[], Backlog | None]) -> None:
        """Give these figures whenever somebody asks, from another thread. `None`: another node counts."""
        self.registry.register(_Asked(lambda: _of_waiting(waiting())))

    def follow_rates(self, figures: Callable[[], Iterable[RateFigure]], is_governor: Callable[[], bool]) -> None:
        """Give these figures whenever somebody asks, from another thread."""
        self.registry.register(_Asked(lambda: _of_rates(figures(), is_governor())))

    def follow_flows(self, in_flight: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """Give the rows in flight of each flow whenever somebody asks, from another thread."""
        self.registry.register(_Asked(lambda: _of_flows(in_flight())))

    def follow_hub(self, figures: Callable[[], HubFigures]) -> None:
        """Give these figures whenever somebody asks, from another thread."""
        self.registry.register(_Asked(lambda: _of_hub(figures())))

    def follow_monitor(self, is_leading: Callable[[], bool]) -> None:
        """Give this figure whenever somebody asks, from another thread."""
        self._elected.set_function(is_leading)

    def request_answered(self, operation: str, status: int) -> None:
        self._answered(operation, status).inc()

    def flow_round(self, flow: str, *, loaded: int, failed: int) -> None:
        self._rounds.labels(flow).inc()
        self._loaded.labels(flow).inc(loaded)
        self._failed.labels(flow).inc(failed)

    def jobs_handled(self, topic: str, outcome: str, count: int) -> None:
        self._handled.labels(topic, outcome).inc(count)

    def jobs_held(self, topic: str, count: int) -> None:
        self._held.labels(topic).set(count)

    def job_fired(self, topic: str, late_s: float) -> None:
        self._lateness.labels(topic).observe(late_s)

    def jobs_left(self, count: int) -> None:
        self._left.inc(count)

    def slice_ended(self, platform: str, outcome: str, *, is_unproven: bool) -> None:
        self._slices.labels(platform, outcome).inc()
        if is_unproven:
            self._unproven.labels(platform).inc()

    def orders_published(self, platform: str, count: int) -> None:
        self._orders.labels(platform).inc(count)

    def source(self, platform: str, source: str, figures: SourceFigures) -> None:
        """Set one source's metrics, as the leading monitor sees them."""
        self._by_source[platform, source] = figures

    def keep_only(self, sources: Collection[tuple[str, str]]) -> None:
        """Drop the metrics of all other sources (platform and source), which were removed."""
        for names in self._by_source.keys() - sources:
            del self._by_source[names]

    def forget_sources(self) -> None:
        """Drop the metrics of all sources: another node leads."""
        self._by_source.clear()


class _Asked:
    """A collector whose figures are made when they are asked for."""

    def __init__(self, made: Callable[[], Iterator[Any]]) -> None:
        self._made = made

    def collect(self) -> list[Any]:
        """Return the figures. They are read again if the loop's thread changed a dict while it was read."""
        for _ in range(READS):
            with suppress(RuntimeError):
                return list(self._made())
        return []


_OF_SOURCES: dict[str, tuple[str, str]] = {
    "lag_s": ("penstock_watermark_lag_seconds", "How far behind."),
    "down_s": ("penstock_source_down_seconds", "For how long it cannot be reached; 0: it can."),
    "slices": ("penstock_open_slices", "Slices cut and not finished."),
    "holes": ("penstock_holes", "Slices given up on, not accepted."),
    "is_parked": ("penstock_source_parked", "1 while a person is needed."),
    "is_paused": ("penstock_source_paused", "1 while a person pauses it."),
}


def _of_sources(sources: Mapping[tuple[str, str], SourceFigures]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for field, (name, about) in _OF_SOURCES.items():
        gauge = GaugeMetricFamily(name, about, labels=BY_SOURCE)
        for names, figures in sources.items():
            gauge.add_metric(names, figures.lag_s() if field == "lag_s" else getattr(figures, field))
        yield gauge


def _of_rates(figures: Iterable[RateFigure], is_governor: bool) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    target = GaugeMetricFamily("penstock_rate_target", "A second, over the cluster.", labels=("kind", "name"))
    begun = CounterMetricFamily("penstock_rate_begun", "What this node began under it.", labels=("kind", "name"))
    for figure in figures:
        target.add_metric((figure.kind, figure.name), figure.target)
        begun.add_metric((figure.kind, figure.name), figure.begun)
    yield from (target, begun)
    yield GaugeMetricFamily("penstock_governor_elected", "1 on the node that deals the shares.", value=is_governor)


_WAITING: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "jobs": ("penstock_jobs", "Jobs, by state.", ("topic", "state")),
    "ready_s": ("penstock_jobs_ready_seconds", "How long the first ready job waits or runs.", ("topic",)),
    "dead": ("penstock_dead_letters", "Dead letters that nobody has dealt with.", ("engine", "name")),
    "batches": ("penstock_batches", "Batches that are not over.", ("task", "state")),
    "items": ("penstock_batch_items_left", "Items of these batches without an end.", ("task",)),
    "step_s": ("penstock_batch_step_seconds", "Age of the oldest split or reduce.", ("task",)),
    "sinks": ("penstock_sink_waiting", "Messages of orders that the sink has not taken.", ("sink",)),
    "nodes": ("penstock_nodes", "Live nodes, by role.", ("role",)),
}


def _of_waiting(waiting: Backlog | None) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for field, (name, about, labels) in _WAITING.items() if waiting is not None else ():
        gauge = GaugeMetricFamily(name, about, labels=labels)
        for values, number in getattr(waiting, field).items():
            gauge.add_metric(values, number)
        yield gauge


def _of_flows(in_flight: Iterable[tuple[str, int]]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily("penstock_flow_rows_in_flight", "As the last round saw it.", labels=("flow",))
    for flow, rows in in_flight:
        gauge.add_metric((flow,), rows)
    yield gauge


def _of_hub(figures: HubFigures) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    yield GaugeMetricFamily("penstock_hub_up", "1 if the hub answers.", value=figures.is_linked)
    yield GaugeMetricFamily("penstock_zone_may_run", "1 while the zone may work.", value=figures.may_run)
    yield GaugeMetricFamily("penstock_hub_heard_seconds", "Since a renewal was confirmed.", value=figures.heard_s)
    yield GaugeMetricFamily("penstock_zone_epochs_behind", "Of the zone's map, to the hub's.", value=figures.behind)
