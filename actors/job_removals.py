"""Taking jobs out of their course: deleting one in whatever state, and letting a delayed one wait no longer.

A delete is a move like any other, to a record that says so (`deleted`), and the job's messages up to that one are
purged then. So of those who move a job at the same time one is refused, in a cluster too, where a purge alone passes
moves under way; and who adds the id anew takes the record's place, and his job is not touched. After a crash in between
the record lapses within a minute.
"""

import anyio
from msgspec.structs import replace

from actors.failpoints import reach
from actors.job_reads import Found, JobReads
from actors.job_stream import PAUSES_S, JobStream
from streams.errors import RevisionConflict
from streams.job_messages import JobDone, State, encode_job
from streams.log import purge_subject
from streams.moves import Move
from streams.subjects import token_of

__all__ = ["JobRemovals"]

DELETED_S = 60
"""Longer than anybody takes from the record to the purge."""


class JobRemovals:
    """Deletes and kicks. Safe for many callers at once."""

    def __init__(self, jobs: JobStream, reads: JobReads) -> None:
        self._jobs = jobs
        self._reads = reads

    async def delete(self, topic: str, job_id: str) -> State | None:
        """Delete the job in whatever state; return that, None if there was none. It is never offered after this
        returns; who holds it may go on, and is refused when he settles it.

        Takes up to a second where the server is about to fire it. Raises OutcomeUnknown, Disconnected: do it again;
        RevisionConflict if it never stood still."""
        outcome = RevisionConflict("it keeps moving; delete it again", subject=job_id)
        for pause_s in PAUSES_S:
            await anyio.sleep(pause_s)
            found = await self._reads.find_key(topic, token_of(job_id))
            if found is None:
                return None
            if found.is_deleted:  # by somebody who may have died over it
                await self._purge(found, found.seq)
                return None
            seq = await self._jobs.move(self._deletion(found))
            if isinstance(seq, int):
                reach("job.delete")
                await self._purge(found, seq)
                await self._purge_what_fired(found)
                return found.state
            if not isinstance(seq, RevisionConflict):
                raise seq
            outcome = seq
        raise outcome

    async def kick_delayed(self, topic: str, job_id: str) -> bool:
        """Make a delayed job ready now; False if there is none. Raises as `delete`."""
        outcome = RevisionConflict("it keeps moving; kick it again", subject=job_id)
        for pause_s in PAUSES_S:
            await anyio.sleep(pause_s)
            found = await self._reads.find_key(topic, token_of(job_id))
            if found is None or found.state != "delayed" or found.job is None:
                return False
            if self._reads.is_firing(found):
                return True  # it is about to be ready
            now_ms = self._jobs.clock.now_ms()
            job = replace(found.job, due_ms=now_ms)
            move = self._jobs.placed(job, expected=found.seq, now_ms=now_ms, leaves=found.subject)
            seq = await self._jobs.move(move)
            if isinstance(seq, int):
                return True
            if not isinstance(seq, RevisionConflict):
                raise seq
            outcome = seq
        raise outcome

    def _deletion(self, found: Found) -> Move:
        topic, key = found.topic, found.key
        record = JobDone(topic=topic, id=found.id, finished_ms=self._jobs.clock.now_ms(), outcome="deleted")
        leaves = found.subject if found.state in ("delayed", "reserved") else ""
        thing = self._jobs.subject("*", topic, key)
        return Move(
            self._jobs.subject("done", topic, key), encode_job(record), thing, found.seq, leaves=leaves, ttl_s=DELETED_S
        )

    async def _purge(self, found: Found, seq: int) -> None:
        """Remove the job's messages up to a sequence."""
        thing = self._jobs.subject("*", found.topic, found.key)
        await purge_subject(self._jobs.connection, self._jobs.name, thing, before_seq=seq + 1)

    async def _purge_what_fired(self, deleted: Found) -> None:
        """If the server was about to fire the job, wait until it has, and remove what it made of it."""
        if not await self._reads.until_fired(deleted):
            return
        found = await self._reads.find_key(deleted.topic, deleted.key)
        if found and found.job and deleted.job and found.job.added_ms == deleted.job.added_ms:  # not one added since
            await self._purge(found, found.seq)
