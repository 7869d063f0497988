"""The forms of batches: what is asked of them at every door, and how it is answered.

The message `NewBatch` is what the service, a plain publish and the client submit.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, TypedDict

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from actors.batch.rules.callbacks import LONGEST_URL
from actors.batch.rules.row_looks import SHOWN
from actors.batch.rules.sheet_lines import SheetKind
from actors.batch.tasks import TaskRecord
from actors.batch.views import MOST_ROWS, Beat, ItemShown, View, Wanted
from actors.runtime.rules.setting_values import Duration
from penstock.api.forms.jobs import Delay, Most
from penstock.api.forms.reading import RequestForm, picked
from streams.messages.batch import AfterState, Counts, NewBatch
from streams.messages.jobs import MOST_JOBS
from streams.messages.slots import MOST_SLOTS, WhenFull

Text = Annotated[str, Meta(max_length=255)]
Number = Annotated[int, Meta(ge=0, le=1_000_000)]
Rate = Annotated[float, Meta(ge=0, le=1_000_000)]


class SubmitOptions(TypedDict, total=False):
    """The options of a submission, for Python callers: those of a `NewBatch`, without its input and its file."""

    id: str
    sheet: str
    encoding: str
    tenant: str
    priority: int
    weight: int
    callback: str
    delay: Duration
    due: datetime | None
    after: str
    after_state: AfterState


# ---- the service


class InstanceAsk(RequestForm, frozen=True, kw_only=True):
    """Of one instance: show it."""

    id: str


class ChangeAsk(InstanceAsk, frozen=True, kw_only=True):
    """Of one instance: start, pause, resume, cancel or delete it. `created_ms`: of the one that is meant, since a later
    one of its id is another. Without it, whichever has the id. `nonce`: the same in each try of one call, which is done
    once."""

    created_ms: Annotated[int, Meta(ge=0)] = 0
    nonce: Annotated[str, Meta(max_length=64)] = ""


class BatchWhyAsk(RequestForm, frozen=True, kw_only=True):
    """Why an instance is not running, or its item of this index, from 0, or of this row of its sheet."""

    id: str
    item: Annotated[int, Meta(ge=0)] | None = None
    row: Annotated[int, Meta(ge=1)] | None = None


class CheckAsk(NewBatch, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Look at a submission without making it: how the task's code reads these `rows`, each its number and its cells, as
    `[2, {"sku": "T-100"}]`. `shown`: how many of them to return as the code gets them. `stores_file`: the caller is
    about to store the file, and looks only whether the submission can be made and the store has room."""

    rows: tuple[msgspec.Raw, ...] = ()
    shown: int = SHOWN
    stores_file: bool = False


class RetryAsk(ChangeAsk, frozen=True, kw_only=True):
    """Run these items again, by index from 0, or those of these rows of its sheet. Without any, run all that failed or
    were cancelled."""

    items: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


class InstancesAsk(RequestForm, frozen=True, kw_only=True):
    """Show instances, the newest first. A task, a state or a tenant narrows the list. `after`: the `next` of the page
    before."""

    task: str = ""
    state: str = ""
    tenant: str | None = None
    most: int = 100
    after: str = ""


class TasksAsk(RequestForm, frozen=True, kw_only=True):
    """Show a page of tasks by name. `after`: the `next` of the page before."""

    after: str = ""
    most: int = 1_000


class ItemsAsk(RequestForm, frozen=True, kw_only=True):
    """Show items of an instance, from `cursor` on, which an earlier page gave."""

    id: str
    status: Wanted = "all"
    cursor: str = ""
    most: int = 100


class SheetAsk(RequestForm, frozen=True, kw_only=True):
    """The head of the sheet of an instance that is over. `items` gives its lines. With a status: of these items alone,
    to be handed in again."""

    id: str
    status: Wanted = "all"


class LimitAsk(RequestForm, frozen=True, kw_only=True):
    """Change some limits of a task. null resets one to the value in its code."""

    task: str
    set: dict[str, object]


class ViewList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page. The last one has no `next`."""

    batches: list[View]
    next: str = ""


class TaskList(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page by name. The last one has no `next`."""

    tasks: list[TaskRecord]
    next: str = ""


# ---- HTTP


class SubmitQuery(RequestForm, frozen=True, kw_only=True):
    """`id`: of your own, under which the same again is one instance. `callback`: the URL that is told of its first
    failure and its end, `none` for nobody, else the task's. Of a file: its `name`, which of a workbook's sheets, the
    `encoding` of a csv (else its Content-Type's charset, UTF-8 or GB 18030), and `params`, JSON for the task's code. It
    begins in `delay_ms` or at `due_ms`, and not before the batch `after` has ended as `after_state` says."""

    id: Annotated[str, Meta(max_length=64)] = ""
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    name: Text = ""
    sheet: Text = ""
    encoding: Text = ""
    params: Annotated[str, Meta(max_length=2048)] = ""
    callback: Annotated[str, Meta(max_length=LONGEST_URL)] = ""
    delay_ms: Delay = 0
    due_ms: Annotated[int, Meta(ge=0)] | None = None
    after: Annotated[str, Meta(max_length=64)] = ""
    after_state: AfterState = "done"


class BatchesQuery(RequestForm, frozen=True, kw_only=True):
    """`after`: the `next` of the page before."""

    after: Annotated[str, Meta(max_length=100)] = ""
    task: Annotated[str, Meta(max_length=64)] = ""
    state: Annotated[str, Meta(max_length=20)] = ""
    limit: Most = 100


class ItemsQuery(RequestForm, frozen=True, kw_only=True):
    """`cursor`: the `next` of the page before."""

    status: Wanted = "all"
    cursor: Annotated[str, Meta(max_length=40)] = ""
    limit: Most = 100


class ResultQuery(RequestForm, frozen=True, kw_only=True):
    name: Text = ""


class SheetQuery(RequestForm, frozen=True, kw_only=True):
    """`status`: only items that ended so, in a sheet to be put right and handed in again."""

    status: Wanted = "all"
    kind: SheetKind = "xlsx"


class WhyQuery(RequestForm, frozen=True, kw_only=True):
    """`item`: only this one, by index from 0. `row`: only the item of this row of the sheet."""

    item: Annotated[int, Meta(ge=0)] | None = None
    row: Annotated[int, Meta(ge=1)] | None = None


class ToRetry(RequestForm, frozen=True, kw_only=True):
    """Which items, by index from 0, or which rows of the sheet. Without any: all that failed or were cancelled."""

    items: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MOST_JOBS)] = msgspec.field(default_factory=list)
    rows: Annotated[list[Annotated[int, Meta(ge=1)]], Meta(max_length=MOST_ROWS)] = msgspec.field(default_factory=list)


class TaskChanges(RequestForm, frozen=True, kw_only=True):
    """Limits over the whole cluster. 0: no limit. null resets one to the value in the code. Rates are per second.
    `slots`: items at once under each key. `slot_key`: where the key is in an item, as a dotted path. `zone`: where its
    code runs, as east or shard:7, empty for anywhere."""

    main_concurrency: Number | UnsetType | None = UNSET
    main_rate: Rate | UnsetType | None = UNSET
    item_rate: Rate | UnsetType | None = UNSET
    item_concurrency: Number | UnsetType | None = UNSET
    slots: Annotated[int, Meta(ge=0, le=MOST_SLOTS)] | UnsetType | None = UNSET
    slot_key: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET
    when_full: WhenFull | UnsetType | None = UNSET
    zone: Annotated[str, Meta(max_length=70)] | UnsetType | None = UNSET
    region_key: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET


class BatchCall(Struct, frozen=True, kw_only=True):
    """What the callback is told. `event`: `first_failure`, `done`, `failed` or `cancelled`, of one pass. `state`:
    `owed`, `waiting` for the next try, `taken`, or `given_up`. `info`: why the last try was not taken."""

    event: str
    pass_no: int
    at_ms: int
    state: str
    tries: int
    info: str


class BatchShown(Struct, frozen=True, kw_only=True):
    """An instance as it is now. `items`: null before all are known. `step`: how far a split or a reduce is. `waits`:
    for what, if its time has not come, another one has to end first, or no live node can work on it. It begins at
    `due_ms` at the earliest, and after the end of `after`. `files`: of the result. `result`: what the task's own code
    returned at the end. `callback`: without its query."""

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
    due_ms: int
    after: str
    after_state: str


class BatchesShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page, the newest first. `next` is the `after` of the following page. The last page has none."""

    batches: list[BatchShown]
    next: str = ""


class ItemsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page. It may be short, or empty, and still have a `next`."""

    items: list[ItemShown]
    next: str = ""


class TaskShown(Struct, frozen=True, kw_only=True):
    """`app`: the module that declared it."""

    task: str
    app: str
    main_concurrency: int
    main_rate: float
    item_rate: float
    item_concurrency: int
    slots: int
    slot_key: str
    when_full: WhenFull
    zone: str
    region_key: str
    attempts: int
    is_idempotent: bool
    is_streaming: bool


class TasksQuery(RequestForm, frozen=True, kw_only=True):
    """`after`: the `next` of the page before."""

    after: Annotated[str, Meta(max_length=64)] = ""
    limit: Most = MOST_JOBS


class TasksShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page by name. `next` is the `after` of the following page. The last page has none."""

    tasks: list[TaskShown]
    next: str = ""


def batch_shown(view: View, outer: Callable[[str], str], said: Callable[[str], str]) -> BatchShown:
    """Return an instance as its owner sees it, who knows instances by their `outer` ids. `said`: those in a text."""
    calls = [picked(BatchCall, moment, event=moment.name) for moment in view.calls]
    return picked(
        BatchShown,
        view,
        id=outer(view.instance_id),
        files=view.files(),
        calls=calls,
        after=outer(view.after),
        waits=said(view.waits),
        reason=said(view.reason),
    )


def task_shown(task: TaskRecord) -> TaskShown:
    return picked(TaskShown, task, **asdict(task.limits))
