"""Dead letters of jobs: written when a job is given up, and sent again when a person requests it.

The body is the whole job, so that everything comes back: id, body, TTR, priority, history. **Dead letter first, then
settle**: in the other order a crash in between would lose the job. The caller settles, conditionally. A crash in
between leaves the dead letter and the job. The job comes again and is buried again, and the dead letter that exists
counts.

Sent again means: the same id, **a new epoch** (`added_ms`, attempts from 0), due now, and a line of history with the
dead letter's sequence. The dead letter is removed once the job is stored. After a crash in between, the job under the
id carries that line, so the dead letter goes without a second job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.job_rules import KEPT_MS, named_nonce
from streams.errors import MalformedMessage, StreamError
from streams.link.connection import Connection
from streams.messages.fetch import DeadLetter, Try, dead_body, dead_payload, decode_dead_letter, encode
from streams.messages.ids import message_id
from streams.messages.jobs import MOST_HISTORY, JobRecord, decode_job, encode_job
from streams.publish.outcomes import Receipt
from streams.publish.publisher import Outgoing, Publisher
from streams.reads.log import entry_at, last_entries
from streams.subjects import Namespace, token_of

ENGINE = "jobs"
LONGEST_REASON = 2_000
MOST_LOOKED_UP = 1_000
"""The server replies for 1,024 subjects at once."""
_LINE = re.compile(r"attempt (\d+) at (\S+?)(?: on (\S+))?: (.*)", re.S)


class Burial(NamedTuple):
    """A job to be given up. `seq`: of the message that holds it, so that burying it twice makes one dead letter."""

    job: JobRecord
    seq: int
    reason: str


def job_dead_letter(job: JobRecord, reason: str) -> DeadLetter:
    """Return the dead letter of a job, without its reservation."""
    kept = replace(job, holder="", until_ms=0, receipt="")
    return DeadLetter(
        engine=ENGINE,
        name=job.topic,
        id=token_of(job.id),
        reason=reason[:LONGEST_REASON],
        attempts=job.attempts,
        first_ms=job.added_ms,
        body=Raw(encode_job(kept)),
        history=tuple(map(_try, job.history)),
    )


def malformed_dead_letter(topic: str, key: str, payload: bytes, reason: str, *, stored_ms: int) -> DeadLetter:
    """Return the dead letter of a message of JOBS that is no job."""
    body, is_base64 = dead_body(payload)
    return DeadLetter(
        engine=ENGINE,
        name=topic,
        id=key,
        reason=reason[:LONGEST_REASON],
        attempts=0,
        first_ms=stored_ms,
        body=body,
        is_base64=is_base64,
    )


def job_of(letter: DeadLetter) -> JobRecord:
    """Return the job of a dead letter. Raises MalformedMessage."""
    return decode_job(dead_payload(letter))


def job_again(job: JobRecord, *, letter_seq: int, now_ms: int) -> JobRecord:
    """Return the job as it is sent again: due now, attempts from 0, without an expiry. The dead letter identifies this
    add."""
    line = f"{_again(letter_seq)} at {_moment(now_ms)}"
    return replace(
        job,
        due_ms=now_ms,
        added_ms=now_ms,
        attempts=0,
        expires_ms=0,
        holder="",
        until_ms=0,
        receipt="",
        history=(*job.history, line)[-MOST_HISTORY:],
        nonce=named_nonce(job.topic, job.id, f"letter {letter_seq} {job.added_ms}"),
        trace_s=KEPT_MS // 1000,
    )


async def write_dead_letters(
    connection: Connection, publisher: Publisher, namespace: Namespace, burials: Sequence[Burial]
) -> list[int | StreamError]:
    """Store a dead letter for each. Return its sequence, or the reason why it is not known to be stored. Then the job
    must not be settled. A dead letter that an earlier try has stored is not stored again, unless it was dropped since.
    Raises as `last_entries`, and nothing was sent."""
    letters = [job_dead_letter(burial.job, burial.reason) for burial in burials]
    subjects = [namespace.dead(letter.engine, letter.name, letter.id) for letter in letters]
    known = await _ends(connection, namespace, subjects)
    answers: list[int | StreamError] = [
        known.get((subject, *_epoch(burial.job)), 0) for subject, burial in zip(subjects, burials, strict=True)
    ]
    earlier, dropped = [at for at, answer in enumerate(answers) if answer != 0], dict[int, int]()
    while True:
        missing = [at for at, answer in enumerate(answers) if answer == 0]
        outgoing = [
            Outgoing(subjects[at], encode(letters[at]), _message_id(letters[at], burials[at].seq, dropped.get(at)))
            for at in missing
        ]
        for at, answer in zip(missing, await publisher.try_many(outgoing) if outgoing else (), strict=True):
            answers[at] = answer if isinstance(answer, StreamError) else answer.seq
            earlier += [at] if isinstance(answer, Receipt) and answer.is_duplicate else []
        for at in earlier:
            seq, answers[at] = answers[at], await _if_there(connection, namespace, answers[at])
            if answers[at] == 0 and isinstance(seq, int):
                dropped[at] = seq
        if 0 not in answers:
            return answers
        earlier = []


async def _if_there(connection: Connection, namespace: Namespace, seq: int | StreamError) -> int | StreamError:
    """Return the sequence of a dead letter that an earlier try has stored, 0 if it is gone, the error if that is not
    known."""
    try:
        is_gone = isinstance(seq, int) and await entry_at(connection, namespace.stream("DEAD"), seq) is None
    except StreamError as error:
        return error
    return 0 if is_gone else seq


def _message_id(letter: DeadLetter, seq: int, dropped_seq: int | None) -> str:
    """Return the id of the message. A job that failed again after it was sent again has another dead letter, and so
    has one whose earlier letter was dropped before it ended."""
    again = () if dropped_seq is None else (str(dropped_seq),)
    return message_id("dead", ENGINE, letter.name, letter.id, str(seq), *again)


def _epoch(job: JobRecord) -> tuple[int, int]:
    """Return what identifies one end of a job."""
    return job.added_ms, job.attempts


async def _ends(
    connection: Connection, namespace: Namespace, subjects: Sequence[str]
) -> dict[tuple[str, int, int], int]:
    """Return the sequence of the last dead letter of each subject, by the subject and the end that it is about."""
    found: dict[tuple[str, int, int], int] = {}
    unique = list(dict.fromkeys(subjects))
    for start in range(0, len(unique), MOST_LOOKED_UP):
        part = unique[start : start + MOST_LOOKED_UP]
        for subject, entry in (await last_entries(connection, namespace.stream("DEAD"), part)).items():
            try:
                found[subject, *_epoch(job_of(decode_dead_letter(entry.payload)))] = entry.seq
            except MalformedMessage:
                continue  # a letter about something else
    return found


def _again(letter_seq: int) -> str:
    return f"sent round again from dead letter {letter_seq}"


def _try(line: str) -> Try:
    """Return a line of a job's history as a dead letter has it. A line of another form stays whole."""
    found = _LINE.fullmatch(line)
    if found is None:
        return Try(attempt=0, at_ms=0, reason=line)
    attempt, moment, node, reason = found.groups()
    try:
        at_ms = int(datetime.fromisoformat(moment).timestamp() * 1000)
    except (ValueError, OverflowError):
        return Try(attempt=0, at_ms=0, reason=line)
    return Try(attempt=int(attempt), at_ms=at_ms, node=node or "", reason=reason)


def _moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
