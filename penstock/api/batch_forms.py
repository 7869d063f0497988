"""What is asked of the batch service, and how it answers: JSON, strict, the same at every node and every door."""

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, structs

from actors.batch.tasks import TaskRecord
from actors.batch.views import View, Wanted
from penstock.api.forms.reading import Asked

__all__ = ["InstanceAsk", "ItemsAsk", "LimitAsk", "ListAsk", "RetryAsk", "SubmitAsk", "TaskList", "ViewList"]

NOTHING = Raw(b"null")


class SubmitAsk(Asked, frozen=True, kw_only=True):
    """Run `task` on `input`, any JSON; or on `file`, the name of an upload in the object store (`<id>/upload-…`), with
    `input` as its params. `name`: what its sender calls it; `sheet`: which of a workbook's sheets; `encoding`: of a
    csv, else UTF-8 or GB 18030. `callback`: the URL that is told of its first failure and its end, `none` for nobody,
    else the task's. The same again under the same `id` is one instance."""

    task: str
    input: Raw = NOTHING
    id: str = ""
    file: str = ""
    name: str = ""
    sheet: str = ""
    encoding: str = ""
    tenant: Annotated[str, Meta(max_length=64)] = ""
    priority: int = 0
    weight: int = 1
    callback: str = ""

    def of_submit(self) -> dict[str, Any]:
        """Return what the desk's `submit` takes beside the task and the id."""
        told = structs.asdict(self)
        del told["task"], told["id"]
        return {"given": told.pop("input"), **told}


class InstanceAsk(Asked, frozen=True, kw_only=True):
    """Of one instance: show, pause, resume or cancel it."""

    id: str


class RetryAsk(Asked, frozen=True, kw_only=True):
    """Run these items again, by index from 0; none: all that failed or were cancelled."""

    id: str
    items: tuple[int, ...] = ()


class ListAsk(Asked, frozen=True, kw_only=True):
    """Show instances, the newest first; those of a task, a state, a tenant."""

    task: str = ""
    state: str = ""
    tenant: str | None = None
    most: int = 100


class ItemsAsk(Asked, frozen=True, kw_only=True):
    """Show items of an instance, from `cursor` on, which an earlier page gave."""

    id: str
    status: Wanted = "all"
    cursor: str = ""
    most: int = 100


class LimitAsk(Asked, frozen=True, kw_only=True):
    """Change some limits of a task; null takes one back to what its code says."""

    task: str
    set: dict[str, object]


class ViewList(Struct, frozen=True):
    batches: list[View]


class TaskList(Struct, frozen=True):
    tasks: list[TaskRecord]
