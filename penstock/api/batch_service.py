"""The batch desk as a service on NATS: `nats req penstock.api.batch.submit '{"task": "mail", "input": {"to": 7}}'`.

In: JSON on `<namespace>.api.batch.<endpoint>`, forms in forms/batch.py. Out: JSON; errors by the protocol of NATS micro
services, `{"error": {"code", "reason", "field"}}`. State: none, so every node answers every question.
Whoever may ask here is trusted with every tenant's batches; who is not, comes through the gateway.
A file is put into the object store first (`nats object` does), and then named; whoever may not write there sends it
over HTTP. While the broker takes nothing the answer is 503, certainly not done, or 504, perhaps done: submit again
under the same id.
"""

from collections.abc import Awaitable, Callable
from importlib.metadata import version

import anyio
from anyio.abc import TaskStatus

from actors.batch.desk import BatchDesk
from actors.batch.views import View
from penstock.api.forms.batch import (
    InstanceAsk,
    ItemsAsk,
    LimitAsk,
    ListAsk,
    RetryAsk,
    TaskList,
    ViewList,
)
from penstock.api.forms.reading import Asked, read_ask
from penstock.api.replies import encode, guarded
from streams.batch_messages import NewBatch
from streams.connection import Connection
from streams.micro import WHO, Endpoint, Service

__all__ = ["BatchService"]

NAME = "penstock-batch"
MOST = 256


class BatchService:
    """One node's instance. It answers until the node stops."""

    def __init__(self, desk: BatchDesk, connection: Connection, stop: anyio.Event) -> None:
        self._desk = desk
        self._connection = connection
        self._stop = stop

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Answer until the node's stop is set and what is in hand is answered."""
        service = Service(
            self._connection,
            name=NAME,
            version=version("penstock"),
            about="batches: submit, look, steer, in JSON",
            endpoints=self._endpoints(),
            metadata={"namespace": self._connection.namespace.name},
            who=self._connection.namespace.api("batch", WHO),
        )
        await service.serve(self._stop, task_status=task_status)

    def _endpoints(self) -> list[Endpoint]:
        desk = self._desk
        answers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "submit": self._submit,
            "show": _of_instance(desk.show),
            "list": self._list,
            "items": self._items,
            "pause": _of_instance(desk.pause),
            "resume": _of_instance(desk.resume),
            "cancel": _of_instance(desk.cancel),
            "retry": self._retry,
            "tasks": self._tasks,
            "limit": self._limit,
        }
        subject = self._connection.namespace.api
        return [Endpoint(name, subject("batch", name), guarded(answer), most=MOST) for name, answer in answers.items()]

    async def _submit(self, payload: bytes) -> bytes:
        return encode(await self._desk.submit(read_ask(payload, NewBatch)))

    async def _list(self, payload: bytes) -> bytes:
        ask = read_ask(payload, ListAsk)
        views = await self._desk.all(task=ask.task, state=ask.state, tenant=ask.tenant, most=ask.most)
        return encode(ViewList(views))

    async def _items(self, payload: bytes) -> bytes:
        ask = read_ask(payload, ItemsAsk)
        page = await self._desk.items(ask.id, status=ask.status, cursor=ask.cursor, most=ask.most)
        return encode(page)

    async def _retry(self, payload: bytes) -> bytes:
        ask = read_ask(payload, RetryAsk)
        return encode(await self._desk.retry(ask.id, ask.items))

    async def _tasks(self, payload: bytes) -> bytes:
        read_ask(payload, Asked)
        return encode(TaskList(self._desk.tasks()))

    async def _limit(self, payload: bytes) -> bytes:
        ask = read_ask(payload, LimitAsk)
        return encode(await self._desk.limit(ask.task, ask.set))


def _of_instance(act: Callable[[str], Awaitable[View]]) -> Callable[[bytes], Awaitable[bytes]]:
    """Return the endpoint of what takes an instance's id, and tells how the instance stands then."""

    async def answer(payload: bytes) -> bytes:
        return encode(await act(read_ask(payload, InstanceAsk).id))

    return answer
