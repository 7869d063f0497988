"""The rules of jobs: states and moves, what a new job must be, what becomes of a second one of the same id, whose turn
it is among priorities, and what is written down of an attempt. No I/O, no clock, no chance.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, get_args

from msgspec import Raw
from msgspec.structs import replace

from actors.model.setting_values import shown
from actors.model.topic_settings import DEFAULT, LANES, TopicSettings
from streams.job_messages import (
    LARGEST_BODY,
    LONGEST_DELAY_MS,
    LONGEST_ID,
    LONGEST_REASON,
    LONGEST_TTR_MS,
    MOST_HISTORY,
    SHORTEST_TTR_MS,
    Job,
    NewJob,
    OnSame,
    Outcome,
    Priority,
    State,
    is_json,
)
from streams.subjects import TOKEN

__all__ = [
    "BACKSTOP_MS",
    "FREE_TURN",
    "MOVES",
    "RESERVED_SLACK_MS",
    "STALE_AFTER_MS",
    "BadJob",
    "SamePolicy",
    "came_back",
    "given_back",
    "lane_order",
    "make_job",
    "noted",
    "noted_once",
    "on_same_id",
]

BACKSTOP_MS = 35
"""How much later than due the server's own schedule of a delayed job fires: late enough that a timer on time and the
server do not meet (ADR 14), early enough that a cluster without any timer is late by less than 300 ms: the server looks
every 250 ms, and takes some more to store what it found."""
RESERVED_SLACK_MS = 500
"""How much later than the TTR's end the server puts a reserved job back."""
STALE_AFTER_MS = 200
"""How long after the TTR's end a receipt still counts. In between lies what keeps a settling and the server's putting
back apart: the server does not look again before it stores what it has loaded."""

MOVES: Mapping[State | None, frozenset[State | None]] = {
    None: frozenset({"delayed", "ready"}),
    "delayed": frozenset({"delayed", "ready", None}),
    "ready": frozenset({"ready", "reserved", "delayed", "done", None}),
    "reserved": frozenset({"reserved", "ready", "delayed", "done", None}),
    "done": frozenset({"delayed", "ready", None}),
}
"""From each state to which. None: there is no such job; deleting leads there, and being forgotten."""

FREE_TURN = 8
"""Every so many turns begin with the lowest lane, so that a flood of urgent jobs leaves it an eighth."""

SamePolicy = OnSame | Literal["again"]
"""`again` is for a job sent round again: as keep, but one that is over without being finished does not count."""
MOST_ATTEMPTS = 1_000


class BadJob(ValueError):
    """A job that is refused: which field, its value, what is wrong with it, and what to write instead."""

    def __init__(self, field: str, value: object, what: str, hint: str) -> None:
        self.field, self.value, self.what, self.hint = field, value, what, hint
        super().__init__(f"{field} {shown(value)} {what}; {hint}")


# ---- a new job


def make_job(new: NewJob, settings: TopicSettings, *, now_ms: int, fresh_id: str) -> Job:
    """Return the job that is asked for; raise BadJob. `now_ms`: the server's clock. `fresh_id`: if it has no id."""
    if not isinstance(new.topic, str) or not TOKEN.fullmatch(new.topic):
        raise BadJob("topic", new.topic, "is not a topic", "use 1 to 64 of A-Z a-z 0-9 _ -")
    if new.topic == DEFAULT:
        raise BadJob("topic", new.topic, "is the name of what holds for all topics", "use another")
    due_ms = _due_ms(new, now_ms)
    return Job(
        topic=new.topic,
        id=_id(new.id, fresh_id),
        due_ms=due_ms,
        body=_body(new.body),
        added_ms=now_ms,
        ttr_ms=settings.ttr_ms
        if new.ttr_ms is None
        else _within("ttr_ms", new.ttr_ms, SHORTEST_TTR_MS, LONGEST_TTR_MS),
        most_attempts=settings.attempts
        if new.attempts is None
        else _within("attempts", new.attempts, 1, MOST_ATTEMPTS),
        priority=_priority(new.priority),
        expires_ms=_expires_ms(new, due_ms, now_ms),
    )


def _id(text: object, fresh_id: str) -> str:
    if not isinstance(text, str):
        raise BadJob("id", text, "is not a text", "write it in quotes, or leave it out for a fresh one")
    if not text:
        return fresh_id
    if len(text) > LONGEST_ID:
        raise BadJob("id", text, f"has {len(text)} characters", f"use 1 to {LONGEST_ID}")
    if not text.isprintable():
        raise BadJob("id", text, "holds characters that cannot be printed", "leave them out")
    return text


def _body(body: object) -> Raw:
    if not isinstance(body, Raw | bytes):
        raise BadJob("body", body, "is not encoded JSON", "give bytes of JSON")
    size = memoryview(body).nbytes
    if size > LARGEST_BODY:
        raise BadJob(
            "body", f"of {size} bytes", "is too large", f"at most {LARGEST_BODY}; store it and send where it is"
        )
    if not size:
        return Raw(b"null")
    if not is_json(bytes(body)):
        raise BadJob("body", bytes(body)[:40], "is not JSON in UTF-8", "send one JSON value")
    return body if isinstance(body, Raw) else Raw(body)


def _due_ms(new: NewJob, now_ms: int) -> int:
    delay_ms = _within("delay_ms", new.delay_ms, 0, LONGEST_DELAY_MS)
    if new.due_ms is None:
        return now_ms + delay_ms
    if delay_ms:
        raise BadJob("due_ms", new.due_ms, "stands beside delay_ms", "give one of them")
    return _within("due_ms", new.due_ms, 0, now_ms + LONGEST_DELAY_MS)


def _expires_ms(new: NewJob, due_ms: int, now_ms: int) -> int:
    if new.expires_ms is not None and new.expires_in_ms is not None:
        raise BadJob("expires_ms", new.expires_ms, "stands beside expires_in_ms", "give one of them")
    latest_ms = now_ms + 2 * LONGEST_DELAY_MS
    if new.expires_in_ms is not None:
        field, given = "expires_in_ms", new.expires_in_ms
        expires_ms = now_ms + _within(field, given, 1, 2 * LONGEST_DELAY_MS)
    elif new.expires_ms is not None:
        field, given = "expires_ms", new.expires_ms
        expires_ms = _within(field, given, 0, latest_ms)
        if not expires_ms:
            return 0
    else:
        return 0
    if expires_ms <= max(due_ms, now_ms):
        raise BadJob(field, given, "is over before the job is due", "let it expire later, or be due sooner")
    return expires_ms


def _priority(priority: object) -> Priority:
    if priority not in LANES:
        raise BadJob("priority", priority, "is unknown", f"use {', '.join(LANES)}")
    return priority


def _within(field: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadJob(field, value, "is not a whole number", "write digits without quotes, as 1500")
    if not low <= value <= high:
        raise BadJob(field, value, "is out of range", f"use {low} to {high}")
    return value


# ---- a second job of the same id


def on_same_id(policy: SamePolicy, state: State, outcome: Outcome = "finished") -> Literal["keep", "refuse", "replace"]:
    """Return what becomes of a job whose id is taken: keep the first (a success), refuse, or take its place.

    What somebody holds is never taken from under him, and what is finished stays finished as long as it is known."""
    if state == "done" and outcome == "deleted":
        return "replace"
    if policy == "error":
        return "refuse"
    if policy == "again":
        return "replace" if state == "done" and outcome != "finished" else "keep"
    if policy == "keep" or state == "done":
        return "keep"
    return "refuse" if state == "reserved" else "replace"


# ---- turns


def lane_order(turn: int, lanes: tuple[Priority, ...] = LANES) -> tuple[Priority, ...]:
    """Return in which order to look into a topic's lanes at this turn (from 0), the first served first."""
    ordered = tuple(lane for lane in LANES if lane in lanes)
    return ordered[::-1] if turn % FREE_TURN == FREE_TURN - 1 else ordered


# ---- what is written down of attempts


def noted(job: Job, *, at_ms: int, node: str, reason: str) -> Job:
    """Return the job, held by nobody, with a line on the attempt that `job.attempts` counts last."""
    on = f" on {'_'.join(node.split())}" if node.strip() else ""
    line = f"attempt {job.attempts} at {_moment(at_ms)}{on}: {reason[:LONGEST_REASON]}"
    return replace(job, holder="", until_ms=0, receipt="", history=(*job.history, line)[-MOST_HISTORY:])


def noted_once(job: Job, *, at_ms: int, node: str, reason: str) -> Job:
    """Return the job with a line on its last attempt, unless it has one."""
    if job.history and job.history[-1].startswith(f"attempt {job.attempts} at "):
        return job
    return noted(job, at_ms=at_ms, node=node, reason=reason)


def came_back(job: Job) -> Job:
    """Return a ready job as it is handed out: if its TTR ran out before, that is noted."""
    if not job.receipt:
        return job
    return noted(job, at_ms=job.until_ms, node=job.holder, reason="its TTR ran out")


def given_back(job: Job, *, counts: bool, at_ms: int, reason: str) -> Job:
    """Return a reserved job as its holder gives it back. `counts`: it was an attempt; else as if never handed out."""
    if counts or reason:
        job = noted(job, at_ms=at_ms, node=job.holder, reason=reason or "given back")
    else:
        job = replace(job, holder="", until_ms=0, receipt="")
    return job if counts else replace(job, attempts=max(0, job.attempts - 1))


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()[:19]}Z"


assert set(get_args(State)) == MOVES.keys() - {None}
