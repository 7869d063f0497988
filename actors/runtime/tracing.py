"""Traces by OpenTelemetry: spans of jobs, batches and orders, joined from process to process by a `traceparent`.

It travels in the header of this name, of requests and of messages with orders. A job and a batch keep it in their
records, since one request brings many jobs, and a job moves from message to message (ADR 63).

Off until `follow_provider` finds that the program has a provider of tracers. Until then nothing of OpenTelemetry is
imported, and each place that could make a span costs one look at `is_on`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

from actors.runtime.rules.traceparents import HEADER

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, Tracer

Kind = Literal["producer", "consumer", "server"]
LONGEST_FACT = 255
_NOTHING: AbstractContextManager[None] = nullcontext()


class Traces:
    """The spans of a process. `is_on`: somebody takes them."""

    __slots__ = ("_tracer", "is_on")

    def __init__(self) -> None:
        self.is_on = False
        self._tracer: Tracer | None = None

    def follow_provider(self) -> None:
        """Make spans from here on if the program has set a provider of tracers, and else none."""
        api = sys.modules.get("opentelemetry.trace")
        provider = None if api is None else api.get_tracer_provider()
        is_set = api is not None and not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider)
        self._tracer = api.get_tracer("penstock", version("penstock")) if api is not None and is_set else None
        self.is_on = is_set

    def span(
        self,
        name: str,
        kind: Kind,
        facts: Mapping[str, object],
        *,
        parent: str | None = None,
        links: Iterable[str] = (),
    ) -> AbstractContextManager[Span | None]:
        """Make a span of the block, which is the current one in it. An exception that leaves the block is its error.
        `parent`: a `traceparent`, empty to begin a trace. None: the current span. `links`: of related ones."""
        return self._span(name, kind, facts, parent, links) if self.is_on else _NOTHING

    @contextmanager
    def _span(
        self, name: str, kind: Kind, facts: Mapping[str, object], parent: str | None, links: Iterable[str]
    ) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind

        assert self._tracer is not None
        with self._tracer.start_as_current_span(
            name,
            context=None if parent is None else _context_of(parent),
            kind=SpanKind[kind.upper()],
            attributes={f"penstock.{key}": _short(value) for key, value in facts.items()},
            links=[link for text in links if (link := _link_to(text)) is not None],
        ) as span:
            yield span

    @contextmanager
    def spans(self, name: str, kind: Kind, facts: Mapping[str, object], parents: Iterable[str]) -> Iterator[None]:
        """Make a span of the block in the trace of each parent, for work that is done for all of them at once."""
        with ExitStack() as stack:
            for parent in dict.fromkeys(filter(None, parents)):
                stack.enter_context(self.span(name, kind, facts, parent=parent))
            yield

    def current(self) -> str:
        """Return the `traceparent` of the current span. Empty: there is none."""
        carrier: dict[str, str] = {}
        if self.is_on:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            TraceContextTextMapPropagator().inject(carrier)
        return carrier.get(HEADER, "")

    def headers(self) -> dict[str, str]:
        """Return the header that names the current span. Empty: there is no span."""
        current = self.current() if self.is_on else ""
        return {HEADER: current} if current else {}


traces = Traces()
"""Of this process."""


def fail(span: Span | None, error: BaseException) -> None:
    """Make an exception that stays in the span's block its error."""
    if span is not None:
        from opentelemetry.trace import Status, StatusCode

        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"[:LONGEST_FACT]))


def _context_of(parent: str) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({HEADER: parent}, Context())


def _link_to(parent: str) -> Link | None:
    from opentelemetry.trace import Link, get_current_span

    context = get_current_span(_context_of(parent)).get_span_context()
    return Link(context) if context.is_valid else None


def _short(value: object) -> str | int:
    return value if isinstance(value, int) else str(value)[:LONGEST_FACT]
