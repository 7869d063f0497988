"""What travels over HTTP: bodies, queries and answers, as JSON. Unknown fields are errors in what is asked: a misspelt
`delay_ms` must not make a job due at once. Times are whole milliseconds; moments are UTC since 1970, by the server.

The original protocol has its own shapes, in `queue_protocol.py`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from actors.jobs.rules.job_answers import Code
from streams.job_messages import LONGEST_DELAY_MS, LONGEST_ID, LONGEST_TTR_MS, SHORTEST_TTR_MS, OnSame, Priority, State
from streams.subjects import TOKEN

MOST = 1_000
"""Jobs or receipts in one call."""
LONGEST_WAIT_MS = 30_000
LONGEST_RECEIPT = 512
LONGEST_URL_ID = 255
TOPIC_PATTERN = f"^{TOKEN.pattern}$"

Id = Annotated[str, Meta(max_length=LONGEST_ID, description="1 to 255 printable characters")]
Receipt = Annotated[str, Meta(min_length=1, max_length=LONGEST_RECEIPT)]
Receipts = Annotated[list[Receipt], Meta(min_length=1, max_length=MOST)]
Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999, description="milliseconds UTC since 1970")]
Ttr = Annotated[int, Meta(ge=SHORTEST_TTR_MS, le=LONGEST_TTR_MS, description="time to run")]
Delay = Annotated[int, Meta(ge=0, le=LONGEST_DELAY_MS)]
Attempts = Annotated[int, Meta(ge=1, le=1_000)]
Reason = Annotated[str, Meta(max_length=200)]


class Asked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes from outside."""


class JobToAdd(Asked, frozen=True, kw_only=True):
    """A job as it is asked for; what is left out is the topic's setting, and an id that is left out is made. Due in
    `delay_ms` or at `due_ms`. Given up if nobody started it in `expires_in_ms` or by `expires_ms`. `on_same`: what
    becomes of it if the topic has a job of this id."""

    id: Id = ""
    body: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))
    delay_ms: Delay = 0
    due_ms: Moment | None = None
    ttr_ms: Ttr | None = None
    priority: Priority = "normal"
    attempts: Attempts | None = None
    expires_ms: Moment | None = None
    expires_in_ms: Annotated[int, Meta(ge=1, le=2 * LONGEST_DELAY_MS)] | None = None
    on_same: OnSame = "keep"


class ToReserve(Asked, frozen=True, kw_only=True):
    """How many ready jobs to hand out, and how long to wait for the first one."""

    most: Annotated[int, Meta(ge=1, le=MOST)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=LONGEST_WAIT_MS)] = 0
    ttr_ms: Ttr | None = None


class ToFinish(Asked, frozen=True, kw_only=True):
    receipts: Receipts


class ToTouch(Asked, frozen=True, kw_only=True):
    """`ttr_ms` from now; left out: as long as the job had at first."""

    receipts: Receipts
    ttr_ms: Ttr | None = None


class ToRelease(Asked, frozen=True, kw_only=True):
    """Back after `delay_ms`; left out: after the topic's backoff. `counts`: the attempt is used up."""

    receipts: Receipts
    delay_ms: Delay | None = None
    reason: Reason = ""
    counts: bool = True


class ToBury(Asked, frozen=True, kw_only=True):
    receipts: Receipts
    reason: Reason = ""


class ListQuery(Asked, frozen=True, kw_only=True):
    """Which jobs of a topic: of one state, by due time, a page at a time (`after` is the `next` of the page before)."""

    state: State = "delayed"
    after: Annotated[str, Meta(max_length=1024)] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 100
    due_after_ms: Moment | None = None
    due_before_ms: Moment | None = None


class PushQuery(Asked, frozen=True, kw_only=True):
    """`most`: how many handed-out jobs may be unsettled at a time."""

    most: Annotated[int, Meta(ge=1, le=MOST)] = 16
    ttr_ms: Ttr | None = None


class NoQuery(Asked, frozen=True, kw_only=True):
    pass


class JobAdded(Struct, frozen=True, kw_only=True):
    """The job is there. `is_new`: this call made or replaced it; else the one that was there first stands."""

    topic: str
    id: str
    state: State
    due_ms: int
    is_new: bool


class ItemAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one job of a list. `status` 201: it was added; 200: one of this id was there, it stands; anything
    else: it was not added, `code`, `detail` and `what` say why."""

    status: int
    topic: str = ""
    id: str = ""
    state: State | UnsetType = UNSET
    due_ms: int = 0
    code: str = ""
    detail: str = ""
    what: str = ""

    @property
    def is_there(self) -> bool:
        return self.status < 300


class JobsAdded(Struct, frozen=True, kw_only=True):
    """An answer for each job of the list, in its order. `added` counts those that are there now."""

    added: int
    answers: list[ItemAnswer]


class Reservation(Struct, frozen=True, kw_only=True):
    """A job handed out, held until `until_ms` by the server's clock: settle it by `receipt`. `attempt` counts from
    1."""

    topic: str
    id: str
    receipt: str
    body: Raw
    attempt: int
    most_attempts: int
    ttr_ms: int
    until_ms: int
    added_ms: int
    due_ms: int
    priority: Priority


class Reservations(Struct, frozen=True, kw_only=True):
    jobs: list[Reservation]


class Settled(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one receipt: `ok`, `stale` (it holds nothing any more), `bad`, `unavailable` (not done) or
    `unknown` (perhaps done: ask again). `until_ms`: held until then, after a touch."""

    receipt: str
    code: Code
    reason: str = ""
    until_ms: int = 0


class AllSettled(Struct, frozen=True, kw_only=True):
    """An answer for each receipt, in the order of the call. `ok` counts those that were settled."""

    ok: int
    answers: list[Settled]


class JobShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as it stands. `attempts` are those used up; `history` tells of them."""

    topic: str
    id: str
    state: State
    due_ms: int = 0
    added_ms: int = 0
    ttr_ms: int = 0
    attempts: int = 0
    most_attempts: int = 0
    priority: Priority = "normal"
    expires_ms: int = 0
    holder: str = ""
    until_ms: int = 0
    finished_ms: int = 0
    outcome: str = ""
    history: tuple[str, ...] = ()
    body: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))


class JobsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page; `next` is the `after` of the following one, missing on the last."""

    jobs: list[JobShown]
    next: str = ""


class JobChanged(Struct, frozen=True, kw_only=True):
    """`deleted`, or `kicked`: due now."""

    topic: str
    id: str
    done: Literal["deleted", "kicked"]


class Health(Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"
