"""An engine's desk as a service on NATS: `nats req penstock.api.jobs.add '{"topic": "mail", "body": {"to": 7}}'`.

In: JSON on `<namespace>.api.<engine>.<endpoint>`. The endpoints are those of the table of operations. Out: JSON, and
errors by the protocol of NATS micro services, `{"error": {"code", "reason", "field"}}`. State: none, so every node
answers every request. While the broker is unavailable the answer is 503, certainly not done, or 504, perhaps done:
repeat it under the same id.
"""

from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any, NamedTuple

import anyio
from anyio.abc import TaskStatus

from actors.runtime.rules.traceparents import traceparent_of
from actors.runtime.tracing import traces
from penstock.api.forms.reading import read_ask
from penstock.api.operations import OPERATIONS
from penstock.api.replies import encode, guarded
from penstock.api.service.calls import DeskEndpoint, Engine, Question
from streams import micro
from streams.link.connection import Connection
from streams.link.frames import Message

__all__ = ["SERVICES", "DeskService"]


class _Facts(NamedTuple):
    """A service's name and description, how many requests an endpoint has in hand at a time, and the order in which the
    endpoints are listed."""

    name: str
    about: str
    most: int
    order: str


SERVICES: dict[Engine, _Facts] = {
    "jobs": _Facts(
        "penstock-jobs",
        "delayed jobs: add, reserve, finish and the rest, in JSON",
        512,
        "add reserve finish touch release bury kick delete peek list count topics topic why",
    ),
    "batch": _Facts(
        "penstock-batch",
        "batches: submit, look, steer, in JSON",
        256,
        "submit show list items pause resume cancel retry tasks limit why delete sheet check start",
    ),
    "schedules": _Facts(
        "penstock-schedules",
        "schedules of jobs: add, look, pause, trigger, in JSON",
        64,
        "add list show pause resume trigger backfill remove",
    ),
    "flow": _Facts("penstock-flow", "flows: look, set, steer, in JSON", 256, "list show set pause resume run why"),
    "rates": _Facts("penstock-rates", "rates: look, set, in JSON", 256, "list show set"),
    "sources": _Facts(
        "penstock-sources", "sources: why they are not read, and look now, in JSON", 64, "list export import why look"
    ),
    "zones": _Facts(
        "penstock-zones",
        "zones and the shard map: look, plan, change, in JSON",
        64,
        "list show shards drain restore routing plan apply history report",
    ),
}


class DeskService:
    """One node's instance of an engine's service. It answers until the node stops. Then `end_waits` ends the long
    polls."""

    def __init__(
        self,
        engine: Engine,
        desk: Any,
        connection: Connection,
        stop: anyio.Event,
        end_waits: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._desk = desk
        self._connection = connection
        self._stop = stop
        self._end_waits = end_waits

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Answer until the node's stop is set and all requests in hand are answered."""
        facts, namespace = SERVICES[self._engine], self._connection.namespace
        rows = [row.endpoint for row in OPERATIONS if row.endpoint is not None and row.endpoint.engine == self._engine]
        rows.sort(key=lambda row: facts.order.split().index(row.name))
        service = micro.Service(
            self._connection,
            name=facts.name,
            version=version("penstock"),
            about=facts.about,
            endpoints=[
                self._served(row, facts) for row in sorted(rows, key=lambda row: facts.order.split().index(row.name))
            ],
            metadata={"namespace": namespace.name},
            who=namespace.api(self._engine, micro.WHO),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end)
            await service.serve(self._stop, task_status=task_status)

    async def _end(self) -> None:
        await self._stop.wait()
        self._end_waits()

    def _served(self, row: DeskEndpoint, facts: _Facts) -> micro.Endpoint:
        """Return the endpoint. Each has its own limit, so that handing out work never holds up calls that end work."""

        async def answer(request: Message) -> bytes:
            ask = None if row.form is None else read_ask(request.payload, row.form)
            parent = traceparent_of(request.headers) if traces.is_on else ""
            with traces.span(f"{self._engine} {row.name}", "server", {}, parent=parent) if parent else nullcontext():
                return encode(await row.answer(self._desk, ask, Question(request, self._connection.max_payload)))

        subject = self._connection.namespace.api(self._engine, row.name)
        return micro.Endpoint(row.name, subject, guarded(answer), most=row.most or facts.most, is_undone=row.is_undone)
