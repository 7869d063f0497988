"""Taking jobs out of their course: deleting one in whatever state, and letting a delayed one wait no longer.

A delete is a move like any other, to a record on `gone`, and the job's earlier messages are purged then. So of those
who move a job at the same time one is refused, in a cluster too, where a purge alone passes moves under way. The record
stays for longer than anybody repeats the add: whoever does hears that it was made, and the job does not come back. An
add of another takes the record's place.
"""

from collections.abc import Sequence

import anyio
from msgspec.structs import replace

from actors.jobs.reads import Found, JobReads, found_of
from actors.jobs.rules.job_rules import TRACE_MS, is_in_past, kept_s, marked, past_of, voided
from actors.jobs.stream import PAUSES_S, JobStream
from actors.runtime.failpoints import reach
from streams.errors import RevisionConflict, unknown_once
from streams.jobs.moves import Move
from streams.messages.jobs import (
    DELAYED_TOKENS,
    FREE_TOKEN,
    NO_MARK,
    RESERVED_TOKENS,
    JobDone,
    JobRecord,
    Past,
    State,
    encode_job,
)
from streams.reads.log import purge_subject, read_log
from streams.subjects import token_of

AT_ONCE = 500
DELETED_S = 3_600
"""How long it is known at least that a job was deleted. A server that is killed may bring back the job (ADR 35)."""


class JobRemovals:
    """Deletes and kicks. Safe for many callers at once."""

    def __init__(self, jobs: JobStream, reads: JobReads) -> None:
        self._jobs = jobs
        self._reads = reads

    async def delete(self, topic: str, job_id: str, *, nonce: str = "", trace_ms: int = TRACE_MS) -> State | None:
        """Delete the job, unless it is over. Return its state, or None if there was no job. The job is never offered
        after this returns. Its holder may go on, and settling it is refused. `nonce`: the same in each repeat of this
        delete. A repeat that arrives within `trace_ms` does nothing to a job that was added since.

        This takes up to a second if the server is about to fire the job. Raises OutcomeUnknown (perhaps done, repeat
        it), Disconnected and Refused (not done), and RevisionConflict if the job never stood still."""
        outcome = RevisionConflict("it keeps moving; delete it again", subject=job_id)
        was: State | None = None  # when a try of ours may have done it
        with unknown_once(lambda: was is not None, job_id, "perhaps deleted"):
            for pause_s in PAUSES_S:
                await anyio.sleep(pause_s)
                found = await self._reads.find_key(topic, token_of(job_id))
                if found and found.known and is_in_past(found.known, nonce):  # an earlier try of this delete did it
                    await self._purge(found, found.seq)  # for one who died over it
                    return was or "done"
                if found is None:
                    return was
                if found.state == "done":
                    await self._purge(found, found.seq)  # for one who died over it
                    return None if nonce else was
                if await self._reads.until_followed(found):
                    continue
                seq = await self._jobs.move(self._deletion(found, nonce, trace_ms))
                if isinstance(seq, int):
                    was = found.state
                    reach("job.delete")
                    await self._purge(found, seq)
                    return found.state
                if not isinstance(seq, RevisionConflict):
                    raise seq
                outcome, was = seq, found.state if seq.is_after_retry else was
            raise outcome

    async def kick_delayed(self, topic: str, job_id: str, mark: Past = NO_MARK) -> bool:
        """Make a delayed job ready now. Return False if there is none. `mark`: the same in each repeat of this kick,
        known until its time, which makes no later job ready. With one it takes up to a second if the server is about to
        fire the job. Raises as `delete`."""
        outcome = RevisionConflict("it keeps moving; kick it again", subject=job_id)
        is_doubtful = False  # a try of ours may have done it
        delayed: JobRecord | None = None
        with unknown_once(lambda: is_doubtful, job_id, "perhaps done"):
            for pause_s in PAUSES_S:
                await anyio.sleep(pause_s)
                found = await self._reads.find_key(topic, token_of(job_id))
                if found and found.known and is_in_past(found.known, mark[0]):
                    return True
                if found is None or found.state != "delayed" or found.job is None:
                    if is_doubtful:
                        break
                    # If it has become ready since, it was fired in that moment.
                    return bool(delayed and found and found.job and found.job.added_ms == delayed.added_ms)
                delayed = found.job
                if not mark[0] and self._reads.is_firing(found):
                    return True  # it is about to be ready, and nothing is to be known of this kick
                job = replace(found.job, due_ms=self._jobs.clock.now_ms(), past=marked(found.job.past, mark))
                seq = await self._jobs.move(self._made_ready(found, job))
                if isinstance(seq, int):
                    return True
                if not isinstance(seq, RevisionConflict):
                    raise seq
                outcome, is_doubtful = seq, is_doubtful or seq.is_after_retry
            raise outcome

    async def make_overdue_ready(self, late_ms: int) -> int:
        """Make all delayed and reserved jobs ready that the server should have fired so long ago. Return their number.
        Reads all of them. Raises NoStream, Disconnected."""
        made, until_ms = 0, self._jobs.clock.now_ms() - late_ms
        for token in (*DELAYED_TOKENS, *RESERVED_TOKENS):
            for stream, pattern in self._jobs.namespace.jobs_patterns(token, ">").items():
                moves: list[Move] = []
                async for entry in read_log(self._jobs.connection, stream, pattern):
                    found = found_of(entry)
                    if found.job is not None and found.fires_ms <= until_ms:
                        moves.append(self._made_ready(found, found.job))
                    if len(moves) == AT_ONCE:
                        made += await self._made(moves)
                        moves = []
                made += await self._made(moves)
        return made

    def _made_ready(self, found: Found, job: JobRecord) -> Move:
        now_ms = self._jobs.clock.now_ms()
        return self._jobs.placed(job, expected=found.seq, now_ms=now_ms, leaves=found.subject, fires_ms=found.fires_ms)

    async def _made(self, moves: Sequence[Move]) -> int:
        return sum(isinstance(outcome, int) for outcome in await self._jobs.move_many(moves))

    def _deletion(self, found: Found, nonce: str, trace_ms: int) -> Move:
        topic, key, now_ms = found.topic, found.key, self._jobs.clock.now_ms()
        past = marked(past_of(found.known, now_ms=now_ms) if found.known else (), (nonce, now_ms + trace_ms))
        past = voided(past, found.known, now_ms=now_ms)
        record = JobDone(
            topic=topic,
            id=found.id,
            finished_ms=now_ms,
            outcome="deleted",
            past=past,
            first_ms=found.job.first_ms if found.job else 0,
            added_ms=found.job.added_ms if found.job else 0,
        )
        return Move(
            self._jobs.subject(FREE_TOKEN, topic, key),
            encode_job(record),
            self._jobs.subject("*", topic, key),
            found.seq,
            leaves=found.schedule,
            ttl_s=max(DELETED_S, kept_s(past, now_ms=now_ms)),
            fires_ms=found.fires_ms,
        )

    async def _purge(self, found: Found, seq: int) -> None:
        """Remove the job's messages before a sequence."""
        thing = self._jobs.subject("*", found.topic, found.key)
        await purge_subject(self._jobs.connection, self._jobs.stream(found.topic), thing, before_seq=seq)
