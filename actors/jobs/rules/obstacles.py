"""Why a job is not running: the one thing in its way. Pure."""

import math
from collections.abc import Collection
from typing import Literal, NamedTuple

from msgspec import Struct

from actors.jobs.rules.job_answers import Listed
from actors.jobs.rules.topic_settings import TopicSettings
from actors.runtime.rules.texts import some_of, time_text

Obstacle = Literal[
    "over", "held", "at_work", "due", "retry", "expired", "paused", "nobody", "consumer", "slot", "rate", "turn"
]
MOST_NAMED = 3
LATE_MS = 2_000
"""A job that should have become ready so long ago is not about to be."""
NOBODY = "no live node has a handler of its topic; start one with `penstock work`, or reserve it"


class JobWhy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a job is not running. `code` is the kind of obstacle: `over` (the job has ended), `held` (a caller reserved
    it), `at_work` (a node has it: it runs it or runs it next), `due` (it is delayed), `retry` (an attempt failed),
    `expired`, `paused` (its topic is), `nobody` (no live node has a handler of the topic, or none in the zone to which
    it is bound), `consumer` (no node can make the one from which jobs of the topic are taken), `slot` (as many jobs of
    its key run as may), `rate` (the topic's limit) or `turn` (others are before it). `until_ms`: when that ends, by the
    server's clock, as far as is known."""

    topic: str
    id: str
    state: str
    code: Obstacle
    reason: str
    until_ms: int = 0


class Queue(NamedTuple):
    """The ready jobs of a topic and priority. `is_delivered`: the job in question was given to a node. `waiting`: how
    many were not. `ahead`: how many of them are handed out up to the job in question, at most. `held`: how many the
    nodes have. `full`: that all slots of the job's key are taken, in words, empty if one is free. `is_put_off`: the job
    found no slot, and is looked at later. `unmade`: why none of the nodes could make the consumer, empty if one
    could."""

    is_delivered: bool
    waiting: int
    full: str = ""
    is_put_off: bool = False
    held: int = 0
    unmade: str = ""
    ahead: int | None = None


def why(
    job: Listed, settings: TopicSettings, queue: Queue, nodes: Collection[str], now_ms: int, *, nobody: str = NOBODY
) -> JobWhy:
    """Return what is in the way of a job. `nodes`: the live ones that may run it. `nobody`: what to say if there are
    none. `queue` counts for a job that is ready."""
    code, reason, until_ms = _obstacle(job, settings, queue, sorted(nodes), now_ms, nobody)
    return JobWhy(topic=job.topic, id=job.id, state=job.state, code=code, reason=reason, until_ms=until_ms)


def _obstacle(
    job: Listed, settings: TopicSettings, queue: Queue, nodes: list[str], now_ms: int, nobody: str
) -> tuple[Obstacle, str, int]:
    match job.state:
        case "done":
            return "over", f"it is over: {job.outcome}", 0
        case "reserved":
            attempt = f"attempt {job.attempts} of {job.most_attempts}"
            over = _overdue(job.until_ms, now_ms, "its time to run was over")
            return "held", f"{job.holder or 'a caller'} holds it for {attempt}{over and f'; {over}'}", job.until_ms
        case "delayed" if (late := _overdue(job.due_ms, now_ms, "it was due")) and not queue.full:
            return "due", late, 0
        case "delayed" if queue.is_put_off:
            return "slot", queue.full or "its key had no free slot, and it is looked at again", job.due_ms
        case "delayed" if job.attempts:
            last = f": {job.history[-1]}" if job.history else ""
            return "retry", f"attempt {job.attempts} of {job.most_attempts} failed{last}", job.due_ms
        case "delayed":
            return "due", "it is not due yet", job.due_ms
    if 0 < job.expires_ms <= now_ms:
        return "expired", "it expired before it was begun, and is dropped at its turn", 0
    if settings.is_paused:
        still = "; a node that had it before may still run it" if queue.is_delivered else ""
        return "paused", f"its topic is paused; go on with `penstock jobs topic {job.topic} --resume`{still}", 0
    if not nodes:
        return "nobody", nobody, 0
    if queue.unmade:
        return "consumer", f"no node can make the consumer of its topic: {queue.unmade}", 0
    if queue.full:
        at_node = "; a node has it, and runs it in one of them or has it wait" if queue.is_delivered else ""
        return "slot", f"{queue.full}{at_node}", 0
    if queue.is_delivered and 0 < settings.rate < queue.held:
        until_ms = now_ms + math.ceil(1000 * queue.held / settings.rate)
        at_node = f"a node has it, and runs it or has it wait; the nodes have {queue.held}"
        return "rate", f"{at_node}, and {settings.rate:g} a second begin", until_ms
    if queue.is_delivered:
        return "at_work", f"a node has it, and runs it or runs it next ({some_of(nodes, MOST_NAMED)})", 0
    waiting = f"{queue.waiting} ready jobs of its topic and priority wait"
    if settings.rate:
        ahead = queue.waiting if queue.ahead is None else min(queue.waiting, queue.ahead)
        until_ms = now_ms + math.ceil(1000 * ahead / settings.rate)
        return "rate", f"{waiting}, and {settings.rate:g} a second are handed out", until_ms
    return "turn", f"{waiting}, and the places of the nodes are taken ({some_of(nodes, MOST_NAMED)})", 0


def _overdue(at_ms: int, now_ms: int, what: str) -> str:
    """Return that a moment has passed which should have made a job ready. Empty: it has not."""
    if not 0 < at_ms < now_ms - LATE_MS:
        return ""
    return f"{what} at {time_text(at_ms)}, and no timer has made it ready; see `penstock doctor`"
