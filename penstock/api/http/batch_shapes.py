"""What is asked of batches over HTTP, and what is answered."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from actors.batch.callback_transport import LONGEST_URL
from actors.batch.rules.record import Moment
from actors.batch.tasks import TaskRecord
from actors.batch.views import Beat, ItemView, View, Wanted
from penstock.api.forms.reading import Asked
from streams.batch_messages import Counts, Status
from streams.job_messages import MOST_JOBS

__all__ = [
    "BatchShown",
    "BatchesQuery",
    "BatchesShown",
    "ItemShown",
    "ItemsQuery",
    "ItemsShown",
    "ResultQuery",
    "SubmitQuery",
    "TaskChanges",
    "TaskShown",
    "TasksShown",
    "ToRetry",
    "batch_shown",
    "item_shown",
    "task_shown",
]

Text = Annotated[str, Meta(max_length=255)]
Limit = Annotated[int, Meta(ge=1, le=MOST_JOBS)]
Number = Annotated[int, Meta(ge=0, le=1_000_000)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]


class SubmitQuery(Asked, frozen=True, kw_only=True):
    """`id`: of your own, under which the same again is one instance. `callback`: the URL that is told of its first
    failure and its end, `none` for nobody, else the task's. Of a file: its `name`, which of a workbook's sheets, the
    `encoding` of a csv (else its Content-Type's charset, UTF-8 or GB 18030), and `params`, JSON for the task's code."""

    id: Annotated[str, Meta(max_length=64)] = ""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    name: Text = ""
    sheet: Text = ""
    encoding: Text = ""
    params: Annotated[str, Meta(max_length=2048)] = ""
    callback: Annotated[str, Meta(max_length=LONGEST_URL)] = ""


class BatchesQuery(Asked, frozen=True, kw_only=True):
    task: Annotated[str, Meta(max_length=64)] = ""
    state: Annotated[str, Meta(max_length=20)] = ""
    limit: Limit = 100


class ItemsQuery(Asked, frozen=True, kw_only=True):
    """`cursor`: the `next` of the page before."""

    status: Wanted = "all"
    cursor: Annotated[str, Meta(max_length=40)] = ""
    limit: Limit = 100


class ResultQuery(Asked, frozen=True, kw_only=True):
    name: Text = ""


class ToRetry(Asked, frozen=True, kw_only=True):
    """Which items, by index from 0; none: all that failed or were cancelled."""

    items: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MOST_JOBS)] = msgspec.field(default_factory=list)


class TaskChanges(Asked, frozen=True, kw_only=True):
    """Limits over the whole cluster, 0: none; null takes one back to what the code says. Rates are per second."""

    main_concurrency: Number | UnsetType | None = UNSET
    main_rate: Rate | UnsetType | None = UNSET
    item_rate: Rate | UnsetType | None = UNSET
    item_concurrency: Number | UnsetType | None = UNSET


class BatchCall(Struct, frozen=True, kw_only=True):
    """What the callback is told: `event` is `first_failure`, `done`, `failed` or `cancelled`, of which pass. `state`:
    `owed`, `waiting` for the next try, `taken`, or `given_up`; `info`: why the last try was not taken."""

    event: str
    pass_no: int
    at_ms: int
    state: str
    tries: int
    info: str


class BatchShown(Struct, frozen=True, kw_only=True):
    """An instance as it stands. `items`: null before all are known; `step`: how far a split or a reduce is; `waits`:
    for whom, if nobody who is there can work on it; `files`: of the result; `result`: what the task's own code said at
    the end; `callback`: without its query."""

    id: str
    task: str
    state: str
    items: int | None
    counts: Counts
    created_ms: int
    started_ms: int
    ended_ms: int
    priority: int
    passes: int
    reason: str
    reasons: tuple[str, ...]
    step: Beat | None
    waits: str
    files: list[str]
    result: Any
    callback: str
    calls: list[BatchCall]


class BatchesShown(Struct, frozen=True, kw_only=True):
    """The newest first."""

    batches: list[BatchShown]


class ItemShown(Struct, frozen=True, kw_only=True):
    """An item; `status` null: it has not ended. `info`: what its code returned, or why it failed."""

    index: int
    item: Any
    status: Status | None
    info: Any


class ItemsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page. It may be short, or empty, and still have a `next`."""

    items: list[ItemShown]
    next: str = ""


class TaskShown(Struct, frozen=True, kw_only=True):
    task: str
    main_concurrency: int
    main_rate: float
    item_rate: float
    item_concurrency: int
    attempts: int
    is_idempotent: bool
    is_streaming: bool


class TasksShown(Struct, frozen=True, kw_only=True):
    tasks: list[TaskShown]


def batch_shown(view: View, batch_id: str) -> BatchShown:
    """Return an instance as its owner sees it, who knows it by this id."""
    return BatchShown(
        id=batch_id,
        task=view.task,
        state=view.state,
        items=view.items,
        counts=view.counts,
        created_ms=view.created_ms,
        started_ms=view.started_ms,
        ended_ms=view.ended_ms,
        priority=view.priority,
        passes=view.passes,
        reason=view.reason,
        reasons=view.reasons,
        step=view.step,
        waits=view.waits,
        files=view.files(),
        result=view.result,
        callback=view.callback,
        calls=[_called(each) for each in view.calls],
    )


def _called(moment: Moment) -> BatchCall:
    return BatchCall(
        event=moment.name,
        pass_no=moment.pass_no,
        at_ms=moment.at_ms,
        state=moment.state,
        tries=moment.tries,
        info=moment.info,
    )


def item_shown(item: ItemView) -> ItemShown:
    return ItemShown(index=item.index, item=item.item, status=item.status, info=item.info)


def task_shown(task: TaskRecord) -> TaskShown:
    limits = task.limits
    return TaskShown(
        task=task.task,
        main_concurrency=limits.main_concurrency,
        main_rate=limits.main_rate,
        item_rate=limits.item_rate,
        item_concurrency=limits.item_concurrency,
        attempts=task.attempts,
        is_idempotent=task.is_idempotent,
        is_streaming=task.is_streaming,
    )
