"""Has the node make traces, where the standard variables of OpenTelemetry, or the user's own code, ask for it."""

import os
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from actors.runtime.tracing import traces
from penstock.errors import UsageError

__all__ = ["begin_traces"]

EXPORTER, OFF = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXTRA = "it needs the extra `traces`: pip install 'penstock[traces]'"


def begin_traces(environment: Mapping[str, str]) -> None:
    """Make traces from here on, with the provider that the user's code has set, or else with one for the exporters that
    `OTEL_TRACES_EXPORTER` names. The SDK itself reads the other variables. Raises UsageError if what that needs is not
    installed."""
    traces.follow_provider()
    names = [name for part in environment.get(EXPORTER, "").split(",") if (name := part.strip()) not in ("", "none")]
    if traces.is_on or not names or environment.get(OFF, "").strip().lower() == "true":
        return
    try:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import set_tracer_provider
    except ImportError:
        raise UsageError(f"{EXPORTER}={','.join(names)}: {EXTRA}") from None
    os.environ.setdefault("OTEL_SERVICE_NAME", "penstock")
    provider = TracerProvider()  # at the end of the process it sends what it still has
    for name in names:
        provider.add_span_processor(BatchSpanProcessor(_exporter(name, environment)()))
    set_tracer_provider(provider)
    traces.follow_provider()


def _exporter(name: str, environment: Mapping[str, str]) -> Callable[[], Any]:
    """Return the class of an exporter. Each package of exporters says by an entry point which ones it has."""
    if name == "otlp":
        protocol = next(filter(None, map(environment.get, PROTOCOLS)), "http/protobuf")
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        hint = f"; install opentelemetry-exporter-{name.replace('_', '-')}" if name.startswith("otlp") else ""
        raise UsageError(f"{EXPORTER}: no installed package has an exporter {name!r}{hint}")
    loaded: Callable[[], Any] = found[0].load()
    return loaded
