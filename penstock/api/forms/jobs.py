"""The forms of jobs: what is asked of them at every door, and how it is answered. JSON, but for the options of Python
callers.

The message `NewJob` is what the service, a plain publish and the client add. HTTP checks ranges while it decodes, and
tells them in its OpenAPI document, so its forms have limits. Times are whole milliseconds. Moments are UTC since 1970,
by the server's clock. The answers that are the same at every door are in actors/jobs/rules/job_answers.py. The
original protocol has its own shapes, in http/queue_protocol.py.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from actors.jobs.rules.job_answers import (
    MOST_TOPICS,
    Code,
    HandedOut,
    JobReply,
    Listed,
    NotAdded,
    Reserved,
    TopicCounted,
    TopicView,
)
from actors.jobs.rules.obstacles import JobWhy
from actors.jobs.rules.topic_settings import MOST_ATTEMPTS
from actors.runtime.rules.setting_values import BadSetting, Duration
from actors.runtime.rules.spellings import decode_spelled
from penstock.api.forms.reading import Malformed, RequestForm, check_text, explained, read_ask
from streams.messages.jobs import (
    LONGEST_DELAY_MS,
    LONGEST_ID,
    LONGEST_REASON,
    LONGEST_TTR_MS,
    MOST_JOBS,
    SHORTEST_TTR_MS,
    NewJob,
    OnSame,
    Priority,
    State,
)
from streams.messages.slots import MOST_SLOTS, WhenFull
from streams.subjects import TOKEN

LONGEST_WAIT_MS = 30_000
LONGEST_RECEIPT = 512
LONGEST_URL_ID = 255
TOPIC_PATTERN = f"^{TOKEN.pattern}$"
RATE_PATTERN = f"^{TOKEN.pattern}(/{TOKEN.pattern})?$"
"""A rate of a source is named PLATFORM/SOURCE."""

Id = Annotated[str, Meta(max_length=LONGEST_ID, description="1 to 255 printable characters")]
Receipt = Annotated[str, Meta(min_length=1, max_length=LONGEST_RECEIPT)]
Receipts = Annotated[list[Receipt], Meta(min_length=1, max_length=MOST_JOBS)]
Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999, description="milliseconds UTC since 1970")]
Ttr = Annotated[int, Meta(ge=SHORTEST_TTR_MS, le=LONGEST_TTR_MS, description="time to run")]
Delay = Annotated[int, Meta(ge=0, le=LONGEST_DELAY_MS)]
Attempts = Annotated[int, Meta(ge=1, le=MOST_ATTEMPTS)]
Reason = Annotated[str, Meta(max_length=LONGEST_REASON)]
Most = Annotated[int, Meta(ge=1, le=MOST_JOBS)]

_BLANKS = b" \t\r\n"
_I = TypeVar("_I")
_job = msgspec.json.Decoder(NewJob)
_jobs = msgspec.json.Decoder(list[NewJob])
_items = msgspec.json.Decoder(list[Raw])


# ---- Python


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


# ---- the service: one alone, or several that are answered one by one


class ReserveAsk(RequestForm, frozen=True, kw_only=True):
    """Hand out up to `most` ready jobs. If there is none, wait `wait_ms` for one. `ttr_ms`: a TTR for each of them in
    place of its own."""

    topic: str
    most: int = 1
    wait_ms: int = 0
    ttr_ms: int | None = None
    holder: str = ""


class ReceiptsAsk(RequestForm, frozen=True, kw_only=True):
    """Of one reservation, or of several."""

    receipt: str = ""
    receipts: tuple[str, ...] = ()


class FinishAsk(ReceiptsAsk, frozen=True, kw_only=True):
    """End a job by its receipt. A caller that kept no receipt gives the `id` alone. Then `nonce` is the same in each
    repeat of this request, which ends no later job of this id."""

    id: str = ""
    nonce: str = ""


class TouchAsk(ReceiptsAsk, frozen=True, kw_only=True):
    """Still at it: held for `ttr_ms` more from now, if not told for as long as at first."""

    ttr_ms: int | None = None


class ReleaseAsk(ReceiptsAsk, frozen=True, kw_only=True):
    """Take it back: ready again in `delay_ms`, if that is not told after the topic's backoff. `counts`: the attempt is
    used up."""

    delay_ms: int | None = None
    reason: str = ""
    counts: bool = True


class BuryAsk(ReceiptsAsk, frozen=True, kw_only=True):
    """Set it aside among the dead letters."""

    reason: str = ""


class DeleteAsk(RequestForm, frozen=True, kw_only=True):
    """Remove the job of this id in any state. Without `topic`, remove it in all topics. `nonce`: the same in each
    repeat of this request."""

    id: str
    topic: str | None = None
    nonce: str = ""


class PeekAsk(RequestForm, frozen=True, kw_only=True):
    """Show the job of this id."""

    topic: str
    id: str


class WhyAsk(RequestForm, frozen=True, kw_only=True):
    """Tell why the job of this id is not running, without `topic` in each topic that has one."""

    id: str
    topic: str | None = None


class Whys(Struct, frozen=True, kw_only=True):
    jobs: list[JobWhy]


class KickAsk(RequestForm, frozen=True, kw_only=True):
    """Make a delayed job due now: the one of `id`, or up to `most`, those due first. `nonce`: the same in each repeat
    of a kick by `id`, which makes no later job due."""

    topic: str
    id: str | None = None
    most: int = 1
    nonce: str = ""


class ListAsk(RequestForm, frozen=True, kw_only=True):
    """Show a topic's jobs of a state, from `after` on, a cursor that an earlier page gave."""

    topic: str
    state: State = "delayed"
    after: str = ""
    limit: int = 100
    due_after_ms: int | None = None
    due_before_ms: int | None = None


class CountAsk(RequestForm, frozen=True, kw_only=True):
    """Count a topic's jobs by state. Without `topic`, those of several `topics`, or of a page of all, by name."""

    topic: str = ""
    topics: list[str] | None = None
    after: str = ""
    limit: int = MOST_TOPICS


class TopicsAsk(RequestForm, frozen=True, kw_only=True):
    """Show a page of topics by name. `after`: the `next` of the page before."""

    after: str = ""
    limit: int = MOST_TOPICS


class TopicAsk(RequestForm, frozen=True, kw_only=True):
    """Show a topic's settings, after changing those of `set` (null takes one back to the default)."""

    topic: str
    set: dict[str, object] = msgspec.field(default_factory=dict)


class Kicked(Struct, frozen=True):
    """How many jobs were made due."""

    kicked: int


class Answers(Struct, frozen=True):
    """An answer for each receipt, in the order of the call."""

    answers: list[JobReply]


class ReservedJobs(Struct, frozen=True):
    jobs: list[Reserved]


class TopicViews(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of topics by name. `next` is the `after` of the following page. The last page has none."""

    topics: list[TopicView]
    next: str = ""


def read_jobs(payload: bytes) -> tuple[list[NewJob | NotAdded], bool]:
    """Return the jobs to add, with an answer in the place of each that is malformed, and whether it was one alone.
    Raises Malformed if it is neither a job nor a list, or a list of more than 1,000."""
    check_text(payload)
    if payload.lstrip(_BLANKS)[:1] != b"[":
        return [read_ask(payload, NewJob)], True
    with suppress(msgspec.MsgspecError, RecursionError):  # then each is read alone, and answered for itself
        return list(_checked(_jobs.decode(payload))), False
    try:
        items = _checked(_items.decode(payload))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Malformed(explained(error)) from error
    return [_job_or_answer(at, item) for at, item in enumerate(items)], False


def _job_or_answer(at: int, item: Raw) -> NewJob | NotAdded:
    try:
        return decode_spelled(_job.decode, bytes(item))
    except (msgspec.MsgspecError, RecursionError, BadSetting) as error:
        return NotAdded(code="bad", reason=f"job {at} of the list: {explained(error)}")


def _checked(items: Sequence[_I]) -> Sequence[_I]:
    if len(items) > MOST_JOBS:
        raise Malformed(f"{len(items)} jobs in one call; at most {MOST_JOBS}")
    return items


# ---- HTTP


class JobToAdd(RequestForm, frozen=True, kw_only=True):
    """A job to add. For a field that is left out the topic's setting applies, and a missing id is made. The job is due
    in `delay_ms` or at `due_ms`. It is given up if nobody started it in `expires_in_ms` or by `expires_ms`. `on_same`:
    what happens if the topic has a job of this id."""

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


class ToReserve(RequestForm, frozen=True, kw_only=True):
    """How many ready jobs to hand out, and how long to wait for the first one."""

    most: Most = 1
    wait_ms: Annotated[int, Meta(ge=0, le=LONGEST_WAIT_MS)] = 0
    ttr_ms: Ttr | None = None


class ToFinish(RequestForm, frozen=True, kw_only=True):
    receipts: Receipts


class ToTouch(RequestForm, frozen=True, kw_only=True):
    """Hold the job for `ttr_ms` from now, without it for the job's own TTR."""

    receipts: Receipts
    ttr_ms: Ttr | None = None


class ToRelease(RequestForm, frozen=True, kw_only=True):
    """Give the job back. It is ready after `delay_ms`, without it after the topic's backoff. `counts`: the attempt is
    used up."""

    receipts: Receipts
    delay_ms: Delay | None = None
    reason: Reason = ""
    counts: bool = True


class ToBury(RequestForm, frozen=True, kw_only=True):
    receipts: Receipts
    reason: Reason = ""


class ListQuery(RequestForm, frozen=True, kw_only=True):
    """Which jobs of a topic: of one state, by due time, a page at a time (`after` is the `next` of the page before)."""

    state: State = "delayed"
    after: Annotated[str, Meta(max_length=1024)] = ""
    limit: Most = 100
    due_after_ms: Moment | None = None
    due_before_ms: Moment | None = None


class PushQuery(RequestForm, frozen=True, kw_only=True):
    """`most`: how many handed-out jobs may be unsettled at a time."""

    most: Most = 16
    ttr_ms: Ttr | None = None


class JobAdded(Struct, frozen=True, kw_only=True):
    """The job exists. `is_new`: this call made or replaced it. Otherwise an earlier one was kept."""

    topic: str
    id: str
    state: State
    due_ms: int
    is_new: bool


class ItemAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one job of a list. `status` 201: it was added. 200: there is one of this id, and it was kept. Any
    other: it was not added, and `code`, `detail` and `what` say why."""

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


class Reservation(HandedOut, frozen=True, kw_only=True):
    """A job handed out, held until `until_ms` by the server's clock: settle it by `receipt`. `attempt` counts from
    1."""


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


class JobShown(Listed, frozen=True, kw_only=True, omit_defaults=True):
    """A job as it is now. `attempts`: how many are used up. `history`: a line on each of them."""

    body: Raw = msgspec.field(default_factory=lambda: Raw(b"null"))


class JobsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page. `next` is the `after` of the following page. The last page has none."""

    jobs: list[JobShown]
    next: str = ""


class JobChanged(Struct, frozen=True, kw_only=True):
    """`deleted`, or `kicked`: due now."""

    topic: str
    id: str
    done: Literal["deleted", "kicked"]


_Duration = Annotated[str, Meta(pattern=r"^[0-9]", description="as in 500ms, 60s, 10m, 2h, 1d")]


class TopicChanges(RequestForm, frozen=True, kw_only=True):
    """Settings to change. null resets one to the default. The others stay. docs/settings.md explains each."""

    ttr: _Duration | UnsetType | None = UNSET
    attempts: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    backoff: _Duration | UnsetType | None = UNSET
    backoff_cap: _Duration | UnsetType | None = UNSET
    backoff_growth: Literal["linear", "exponential"] | UnsetType | None = UNSET
    remember: _Duration | UnsetType | None = UNSET
    rate: Annotated[float, Meta(ge=0)] | UnsetType | None = UNSET
    is_paused: bool | UnsetType | None = UNSET
    most_waiting: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET
    slots: Annotated[int, Meta(ge=0, le=MOST_SLOTS)] | UnsetType | None = UNSET
    slot_key: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET
    when_full: WhenFull | UnsetType | None = UNSET
    zone: Annotated[str, Meta(max_length=70)] | UnsetType | None = UNSET
    region_key: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET


class TopicsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of topics by name. `next` is the `after` of the following page. The last page has none."""

    topics: list[TopicCounted]
    next: str = ""


class TopicShown(TopicCounted, frozen=True, kw_only=True):
    """A topic's counts, and the settings in force. `is_used`: False if no job of the topic was ever added, and nothing
    is set."""

    settings: dict[str, Any]
    is_used: bool = True


class TopicsQuery(RequestForm, frozen=True, kw_only=True):
    after: Annotated[str, Meta(max_length=64)] = ""
    limit: Most = 100
