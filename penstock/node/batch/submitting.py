"""A batch submitted by a plain publish, as a call to the batch desk."""

from msgspec.structs import replace

from actors.batch.desk import BatchDesk
from actors.batch.submissions import Submit
from penstock.api.forms.reading import Malformed, read_ask
from penstock.api.replies import refusal_of
from streams.errors import MalformedMessage
from streams.messages.batch import NewBatch
from streams.messages.jobs import LONGEST_DELAY_MS

__all__ = ["submitter"]


class _Submitted(NewBatch, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the service takes it, but the task may stand in the subject alone."""

    task: str = ""


def submitter(desk: BatchDesk) -> Submit:
    """Return the function that makes an instance of a submission, or says why not."""

    async def submit(task: str, payload: bytes, own_id: str, stored_ms: int) -> str:
        try:
            ask = read_ask(payload, _Submitted)
            named = replace(ask, task=_task_of(task, ask), id=ask.id or own_id, nonce=ask.nonce or own_id)
            await desk.submit(_due(named, stored_ms))
        except MalformedMessage as error:
            return f"an instance of this id stands there, and is not readable: {error}"
        except Exception as error:  # the broker's trouble and faults of ours go on up
            code, _ = refusal_of(error)
            if code in ("", "unknown", "unavailable"):
                raise
            return "" if code == "state" else str(error)  # it was made by an earlier delivery, and deleted since
        return ""

    return submit


def _due(ask: NewBatch, stored_ms: int) -> NewBatch:
    """Return the submission with its moment in place of a delay that the desk takes."""
    is_delay = ask.due_ms is None and 0 < ask.delay_ms <= LONGEST_DELAY_MS
    return replace(ask, due_ms=stored_ms + ask.delay_ms, delay_ms=0) if is_delay else ask


def _task_of(task: str, ask: _Submitted) -> str:
    if ask.task and task and ask.task != task:
        raise Malformed(f"task {ask.task!a}: the subject says {task!a}; leave one of them out")
    if not ask.task and not task:
        raise Malformed("no task: publish to submit.batch.<task>, of A-Z a-z 0-9 _ -")
    return task or ask.task
