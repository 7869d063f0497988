"""The rules of jobs: states and moves, what a new job must be, what becomes of a second one of the same id, whose turn
it is among priorities, and what is written down of an attempt. No I/O, no clock, no chance.
"""

import base64
import hashlib
from binascii import b2a_base64
from datetime import UTC, datetime
from typing import Literal

from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.topic_settings import DEFAULT, LANES, MOST_ATTEMPTS, TopicSettings
from actors.runtime.rules.setting_values import shown
from actors.runtime.rules.traceparents import is_traceparent
from streams.messages.jobs import (
    LARGEST_BODY,
    LONGEST_DELAY_MS,
    LONGEST_ID,
    LONGEST_NONCE,
    LONGEST_REASON,
    LONGEST_TTR_MS,
    MACHINE_MADE,
    MOST_HISTORY,
    SHORTEST_TTR_MS,
    JobDone,
    JobRecord,
    NewJob,
    OnSame,
    Outcome,
    Past,
    Priority,
    State,
    is_json,
)
from streams.subjects import TOKEN

BACKSTOP_MS = 35
"""How much later than due the server's own schedule of a delayed job fires: late enough that a timer on time and the
server do not meet (ADR 14), early enough that a cluster without any timer is late by less than 300 ms: the server looks
every 250 ms, and takes some more to store what it found."""
RESERVED_SLACK_MS = 500
"""How much later than the TTR's end the server puts a reserved job back."""
STALE_AFTER_MS = 200
"""How long after the TTR's end a receipt still counts. In between lies what keeps a settling and the server's putting
back apart: the server does not look again before it stores what it has loaded."""

TRACE_MS = 120_000
"""How long after its end an add is known at least: longer than any repeat takes that nobody asked for."""
FORGOTTEN_MS = 180_000
"""How long after a schedule's own time the end of its job is known. A single server that is killed may fire again what
it removed in the last two minutes (ADR 35). The rest is for handing that out."""
KEPT_MS = 86_400_000
"""How long after its end an add, or a delete, is known that its caller may repeat on purpose: the promise of a day."""
VOID_MS = 3_600_000
"""How long it is known that a held job was deleted or replaced, so that no dead letter of it is sent again."""
MOST_PAST = 16
"""Adds and deletes of one id that are known as over. With more in a day the oldest ones go."""

FREE_TURN = 8
"""Every so many turns begin with the lowest lane, so that a flood of urgent jobs leaves it an eighth."""


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class BadJob(ValueError):
    """A job that is refused: which field, its value, what is wrong with it, and what to write instead."""

    def __init__(self, field: str, value: object, what: str, hint: str) -> None:
        self.field, self.value, self.what, self.hint = field, value, what, hint
        super().__init__(f"{field} {shown(value)} {what}; {hint}")


class ExpiredJob(BadJob):
    """A job that is over before it is due. A repeat of its add may come so late, and the job be there: `job` is the
    one that was requested."""

    def __init__(self, job: JobRecord, field: str, value: object) -> None:
        self.job = job
        super().__init__(field, value, "is over before the job is due", "let it expire later, or be due sooner")


# ---- a new job


def make_job(
    new: NewJob,
    settings: TopicSettings,
    *,
    now_ms: int,
    fresh_id: str,
    fresh_nonce: str = "",
    trace_s: int = KEPT_MS // 1000,
) -> JobRecord:
    """Return the requested job. Raises BadJob, ExpiredJob. `now_ms`: the server's clock. `fresh_id`: if it has no id.
    `fresh_nonce`: if it has no nonce. `trace_s`: how long after its end an add with a nonce of its caller's own is
    known."""
    if not isinstance(new.topic, str) or not TOKEN.fullmatch(new.topic):
        raise BadJob("topic", new.topic, "is not a topic", "use 1 to 64 of A-Z a-z 0-9 _ -")
    if new.topic == DEFAULT:
        raise BadJob("topic", new.topic, "is the name of what holds for all topics", "use another")
    is_at_once = new.due_ms is None and type(new.delay_ms) is int and not new.delay_ms  # most are
    due_ms = now_ms if is_at_once else _due_ms(new, now_ms)
    never_expires = new.expires_ms is None and new.expires_in_ms is None
    job = JobRecord(
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
        expires_ms=0 if never_expires else _expires_ms(new, now_ms),
        nonce=nonce_of(new, fresh_nonce),
        trace_s=trace_s if is_callers_own(new.nonce) else 0,
        traceparent=new.traceparent if new.traceparent and is_traceparent(new.traceparent) else "",
    )
    if 0 < job.expires_ms <= max(due_ms, now_ms):
        field = "expires_ms" if new.expires_in_ms is None else "expires_in_ms"
        raise ExpiredJob(job, field, getattr(new, field))
    return job


def nonce_of(new: NewJob, fresh_nonce: str) -> str:
    """Return the nonce under which the add is known. A caller's own nonce counts within the job's topic and id: one key
    may stand for several jobs, and nobody's key meets an add of another's. A mark of the body follows it, which shows
    that a key is used again for another body."""
    given: object = new.nonce
    if not isinstance(given, str) or len(given) > LONGEST_NONCE or not given.isprintable() or " " in given:
        raise BadJob("nonce", given, "is no nonce", f"use 1 to {LONGEST_NONCE} printable characters without blanks")
    if not given:
        return fresh_nonce
    name = named_nonce(new.topic, new.id, given)
    if given.startswith(MACHINE_MADE):
        return name
    mark = hashlib.blake2b(bytes(new.body), digest_size=6).digest()
    return name + MACHINE_MADE + base64.urlsafe_b64encode(mark).decode()


def add_of(nonce: str) -> str:
    """Return the part of a nonce that is the same for every body."""
    return nonce.rpartition(MACHINE_MADE)[0] or nonce


def is_callers_own(nonce: str) -> bool:
    """Return whether a caller made this nonce, who may repeat the call on purpose."""
    return nonce != "" and not nonce.startswith(MACHINE_MADE)


def named_nonce(*parts: str) -> str:
    """Return a nonce made of facts: the same for the same parts."""
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=12).digest()
    return b2a_base64(digest, newline=False).translate(_URL_SAFE).decode()


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
    plain = bytes(body)
    size = len(plain)
    if size > LARGEST_BODY:
        raise BadJob(
            "body", f"of {size} bytes", "is too large", f"at most {LARGEST_BODY}; store it and send where it is"
        )
    if not size:
        return Raw(b"null")
    if not is_json(plain):
        raise BadJob("body", plain[:40], "is not JSON in UTF-8", "send one JSON value")
    return body if isinstance(body, Raw) else Raw(body)


def _due_ms(new: NewJob, now_ms: int) -> int:
    delay_ms = _within("delay_ms", new.delay_ms, 0, LONGEST_DELAY_MS)
    if new.due_ms is None:
        return now_ms + delay_ms
    if delay_ms:
        raise BadJob("due_ms", new.due_ms, "stands beside delay_ms", "give one of them")
    return _within("due_ms", new.due_ms, 0, now_ms + LONGEST_DELAY_MS)


def _expires_ms(new: NewJob, now_ms: int) -> int:
    if new.expires_ms is not None and new.expires_in_ms is not None:
        raise BadJob("expires_ms", new.expires_ms, "stands beside expires_in_ms", "give one of them")
    latest_ms = now_ms + 2 * LONGEST_DELAY_MS
    if new.expires_in_ms is not None:
        return now_ms + _within("expires_in_ms", new.expires_in_ms, 1, 2 * LONGEST_DELAY_MS)
    return 0 if new.expires_ms is None else _within("expires_ms", new.expires_ms, 0, latest_ms)


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


def on_same_id(
    policy: OnSame, state: State, outcome: Outcome = "finished"
) -> Literal["keep", "refuse", "over", "replace"]:
    """Return what becomes of a job whose id is taken: keep the first (a success), refuse, refuse because its topic
    remembers that it is over, or take its place. `replace` replaces whatever is there, also under its holder's
    hands."""
    if policy == "replace":
        return "replace"
    if state == "done":
        return "over" if outcome == "finished" else "replace"
    return "refuse" if policy == "error" else "keep"


# ---- which add it was


def past_of(job: JobRecord | JobDone, *, now_ms: int, remember_s: int = 0) -> tuple[Past, ...]:
    """Return the adds of this id that are over when something takes the job's place, or ends it, the latest first.
    `remember_s`: for so long its id stays taken. Else the end outlives the job's schedule, which may come back."""
    own: tuple[Past, ...] = ()
    if isinstance(job, JobRecord) and job.nonce:
        until_ms = now_ms + max(TRACE_MS, job.trace_s * 1000)
        if was_schedule(job) and not remember_s:
            until_ms = max(until_ms, max(fires_of(job), job.latest_ms) + FORGOTTEN_MS)
        own = ((job.nonce, until_ms),)
    known = (one for one in job.past if one[1] > now_ms and one[0] != (own[0][0] if own else ""))
    return (*own, *known)[:MOST_PAST]


def marked(past: tuple[Past, ...], mark: Past) -> tuple[Past, ...]:
    """Return what is over, with the mark of a delete, a finish or a kick. An empty mark changes nothing."""
    return (mark, *past)[:MOST_PAST] if mark[0] else past


def is_same_add(job: JobRecord, found: JobRecord | JobDone) -> bool:
    """Return whether `found` is what an earlier try of the same add made, or what has come of it since."""
    return has_made(job.nonce, found) or is_in_past(found, job.nonce)


def has_made(nonce: str, found: JobRecord | JobDone) -> bool:
    """Return whether the job that is there was made under this nonce."""
    return isinstance(found, JobRecord) and nonce != "" and add_of(found.nonce) == add_of(nonce)


def is_in_past(found: JobRecord | JobDone, nonce: str) -> bool:
    """Return whether what had this nonce, an add or a mark, is over."""
    return nonce != "" and any(add_of(each) == add_of(nonce) for each, _ in found.past)


def ended_otherwise(job: JobRecord, found: JobRecord | JobDone) -> bool:
    """Return whether a job is over without having been given up, by what is found under its id."""
    is_given_up = isinstance(found, JobDone) and found.outcome in ("buried", "expired")
    return is_in_past(found, job.nonce) and not is_given_up


def voided(past: tuple[Past, ...], found: JobRecord | JobDone | None, *, now_ms: int) -> tuple[Past, ...]:
    """Return what is over, with a mark of the job that is deleted or replaced, if somebody holds it: a dead letter of
    it, which a bury without an answer may have left, is void."""
    if isinstance(found, JobRecord) and found.receipt:
        return marked(past, (_void(found.added_ms), now_ms + VOID_MS))
    return past


def is_void(letter: JobRecord, found: JobRecord | JobDone) -> bool:
    """Return whether the job of a dead letter came to another end. `found`: what is known of the last job of its id.
    Whoever wrote the letter did not learn that it was stored, and so has not taken it back."""
    if is_in_past(found, _void(letter.added_ms)):
        return True
    if isinstance(found, JobRecord) or found.outcome in ("buried", "expired"):
        return False
    if found.added_ms:
        return letter.added_ms == found.added_ms
    # Who finishes by the receipt alone has not read the job, and knows only its nonce.
    return found.receipt != "" and found.past != () and letter.nonce == found.past[0][0]


def _void(added_ms: int) -> str:
    return named_nonce("void", str(added_ms))


def had_another_body(found: JobRecord | JobDone, nonce: str) -> bool:
    """Return whether the add that had this nonce, and is over, had another body."""
    return any(add_of(each) == add_of(nonce) and each != nonce for each, _ in found.past)


def leaves_trace(job: JobRecord, *, now_ms: int) -> bool:
    """Return whether the end of this job must be written down, though its topic remembers none: its add, or an earlier
    one of its id, may be repeated on purpose, or somebody who held it before may yet settle it, or it comes so late
    that the server does not know the add any more."""
    is_late = 0 < job.late_s * 1000 < now_ms - job.added_ms
    return is_late or job.trace_s > 0 or job.past != () or job.receipt != ""


def was_schedule(job: JobRecord) -> bool:
    """Return whether the job has ever been a schedule at the server: delayed, tried again, or reserved."""
    return job.due_ms > job.added_ms or job.receipt != ""


def kept_s(past: tuple[Past, ...], *, now_ms: int, remember_s: int = 0) -> int:
    """Return for how many seconds the end of a job is known. `remember_s`: for so long its id stays taken."""
    until_ms = max((until_ms for _, until_ms in past), default=now_ms + TRACE_MS)
    trace_s = -(-(until_ms - now_ms) // 1000)
    return remember_s if remember_s and trace_s * 1000 <= TRACE_MS else max(1, remember_s, trace_s)


def freed_ms(*, now_ms: int, remember_s: int, ttl_s: int) -> int:
    """Return when the id of a job that ends now is free. 0: with its record, which is known for `ttl_s`."""
    return now_ms + remember_s * 1000 if 0 < remember_s < ttl_s else 0


def fires_of(job: JobRecord) -> int:
    """Return when the server fires the schedule that a delayed or reserved job is. A job that came back because its TTR
    ran out, and was delayed then, has a receipt, too."""
    fires_ms = _due_fires_ms(job)
    return max(fires_ms, job.until_ms + RESERVED_SLACK_MS) if job.receipt else fires_ms


def _due_fires_ms(job: JobRecord) -> int:
    """Return when the server fires the schedule of a job that waits for its due time."""
    return job.due_ms + BACKSTOP_MS + job.spread_ms


def left_early(job: JobRecord, *, fires_ms: int, now_ms: int) -> JobRecord:
    """Return the job as it leaves a schedule that fires at `fires_ms`, 0 for none. That one may come back (ADR 35)."""
    return replace(job, latest_ms=fires_ms) if fires_ms > max(now_ms, job.latest_ms) else job


def may_be_fired_again(job: JobRecord, stored_ms: int) -> bool:
    """Return whether the server may fire a job's schedule although a timer has. `stored_ms`: when it stored the timer's
    copy. Before the schedule's own time it cannot have loaded it (ADR 14)."""
    return stored_ms >= _due_fires_ms(job)


def has_fired(moved: JobRecord | JobDone, found: JobRecord, *, fires_ms: int) -> bool:
    """Return whether the server fired a job's schedule although the job was moved on from it, judging by what was found
    after the move. `fires_ms`: of that schedule."""
    if isinstance(moved, JobRecord) and _standing(found) == _standing(moved):
        return False  # what we moved it to, a step further
    if fires_of(found) == fires_ms or any(nonce == found.nonce for nonce, _ in moved.past):
        return True  # what the move ended, or took the place of, is there again
    is_same = isinstance(moved, JobRecord) and found.nonce == moved.nonce
    return is_same and moved.receipt != "" and found.receipt != moved.receipt


def _standing(job: JobRecord) -> tuple[str, int, str, int]:
    return job.nonce, job.due_ms, job.receipt, job.until_ms


# ---- turns


def lane_order(turn: int, lanes: tuple[Priority, ...] = LANES) -> tuple[Priority, ...]:
    """Return in which order to look into a topic's lanes at this turn (from 0), the first served first."""
    ordered = tuple(lane for lane in LANES if lane in lanes)
    return ordered[::-1] if turn % FREE_TURN == FREE_TURN - 1 else ordered


# ---- what is written down of attempts


def noted(job: JobRecord, *, at_ms: int, node: str, reason: str) -> JobRecord:
    """Return the job, held by nobody, with a line on the attempt that `job.attempts` counts last."""
    on = f" on {'_'.join(node.split())}" if node.strip() else ""
    line = f"attempt {job.attempts} at {_moment(at_ms)}{on}: {reason[:LONGEST_REASON]}"
    return replace(job, holder="", until_ms=0, receipt="", put_off=0, history=(*job.history, line)[-MOST_HISTORY:])


def noted_once(job: JobRecord, *, at_ms: int, node: str, reason: str) -> JobRecord:
    """Return the job with a line on its last attempt, unless it has one."""
    if job.history and job.history[-1].startswith(f"attempt {job.attempts} at "):
        return job
    return noted(job, at_ms=at_ms, node=node, reason=reason)


def came_back(job: JobRecord) -> JobRecord:
    """Return a ready job as it is handed out: if its TTR ran out before, that is noted."""
    if not job.receipt:
        return job
    return noted(job, at_ms=job.until_ms, node=job.holder, reason="its TTR ran out")


def given_back(job: JobRecord, *, counts: bool, at_ms: int, reason: str) -> JobRecord:
    """Return a reserved job as its holder gives it back. `counts`: it was an attempt. False: as if never handed out."""
    if counts or reason:
        job = noted(job, at_ms=at_ms, node=job.holder, reason=reason or "given back")
    else:
        job = replace(job, holder="", until_ms=0, receipt="")
    return job if counts else replace(job, attempts=max(0, job.attempts - 1))


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()[:19]}Z"
