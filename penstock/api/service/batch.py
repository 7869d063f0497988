"""Batches over NATS. A client that may call this service is trusted with every tenant's batches. Other clients use the
gateway. A client first puts a file into the object store (with `nats object`), and then names it. A client that may not
write there sends it over HTTP."""

from collections.abc import Awaitable, Callable

from actors.batch.desk import BatchDesk
from actors.batch.rules.meant import Meant
from actors.batch.rules.obstacles import BatchWhy
from actors.batch.rules.sheet_lines import SheetHead
from actors.batch.tasks import TaskRecord
from actors.batch.views import ItemPage, View
from penstock.api.forms.batch import (
    BatchWhyAsk,
    ChangeAsk,
    CheckAsk,
    InstanceAsk,
    InstancesAsk,
    ItemsAsk,
    LimitAsk,
    RetryAsk,
    SheetAsk,
    TaskList,
    TasksAsk,
    ViewList,
)
from penstock.api.service.calls import Question
from streams.messages.batch import NewBatch, RowsSeen


async def submit(desk: BatchDesk, new: NewBatch, _question: Question) -> View:
    return await desk.submit(new)


async def check(desk: BatchDesk, ask: CheckAsk, _question: Question) -> RowsSeen:
    if ask.stores_file:
        desk.new.check_upload(ask)
        return RowsSeen(unchecked="the file is not stored yet")
    return await desk.new.look(ask, ask.rows, shown=ask.shown)


async def show(desk: BatchDesk, ask: InstanceAsk, _question: Question) -> View:
    return await desk.show(ask.id)


def change(
    act: Callable[[BatchDesk, str, Meant], Awaitable[View]],
) -> Callable[[BatchDesk, ChangeAsk, Question], Awaitable[View]]:
    """Return the endpoint that changes an instance by `act`, and returns its new view."""
    return lambda desk, ask, _question: act(desk, ask.id, _meant(ask))


def _meant(ask: ChangeAsk) -> Meant:
    return Meant(ask.created_ms, ask.nonce)


async def why(desk: BatchDesk, ask: BatchWhyAsk, _question: Question) -> BatchWhy:
    return await desk.why(ask.id, ask.item, row=ask.row)


async def list_batches(desk: BatchDesk, ask: InstancesAsk, question: Question) -> ViewList:
    views, after = await desk.all(
        task=ask.task,
        state=ask.state,
        tenant=ask.tenant,
        most=ask.most,
        after=ask.after,
        most_bytes=question.page_bytes,
    )
    return ViewList(batches=views, next=after)


async def items(desk: BatchDesk, ask: ItemsAsk, _question: Question) -> ItemPage:
    return await desk.items.page(ask.id, status=ask.status, cursor=ask.cursor, most=ask.most)


async def sheet(desk: BatchDesk, ask: SheetAsk, _question: Question) -> SheetHead:
    return await desk.items.sheet(ask.id, status=ask.status)


async def retry(desk: BatchDesk, ask: RetryAsk, _question: Question) -> View:
    return await desk.retry(ask.id, ask.items, rows=ask.rows, meant=_meant(ask))


async def tasks(desk: BatchDesk, ask: TasksAsk, question: Question) -> TaskList:
    tasks, after = desk.tasks(after=ask.after, most=ask.most, most_bytes=question.page_bytes)
    return TaskList(tasks=tasks, next=after)


async def limit(desk: BatchDesk, ask: LimitAsk, _question: Question) -> TaskRecord:
    return await desk.limit(ask.task, ask.set)
