"""The forms of jobs: the options of an add, as Python callers write them."""

from datetime import datetime
from typing import TypedDict

from actors.runtime.rules.setting_values import Duration
from streams.job_messages import OnSame, Priority

__all__ = ["JobOptions", "OutboxOptions"]


class OutboxOptions(TypedDict, total=False):
    """The options of a job that an outbox keeps: those of a `NewJob`, without its unit of milliseconds.

    Due in `delay`, or at `due` with its zone. `ttr`, `attempts`: by default those of the topic. `expires_in`: the job
    is given up if nobody began it by then."""

    id: str
    delay: Duration
    due: datetime | None
    ttr: Duration | None
    priority: Priority
    attempts: int | None
    expires_in: Duration | None


class JobOptions(OutboxOptions, total=False):
    """The options of an add. `on_same`: what happens if there is a job of this id. `nonce`: for a caller who may repeat
    this add after the call, in another process or on another day: with the same nonce it adds no second job."""

    on_same: OnSame
    nonce: str
