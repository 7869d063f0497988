"""Adding jobs: one conditional publish each, sent without waiting for one another.

Adding the same again is harmless by the default policy. What replaces a delayed job keeps away from the server's own
firing of it: within a moment of that, it waits until it has passed, and decides by what it finds then.
"""

from collections.abc import Sequence
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from actors.failpoints import reach
from actors.job_reads import Found, JobReads
from actors.job_stream import PAUSES_S, SOON_MS, JobStream
from actors.model.job_rules import SamePolicy, on_same_id
from streams.errors import RevisionConflict, StreamError
from streams.job_messages import Job, Outcome, State
from streams.log import delete_entry
from streams.moves import Move
from streams.subjects import token_of

__all__ = ["Clash", "JobAdds", "Stored"]


class Stored(NamedTuple):
    """The job is there. `is_new`: we put it there; else the one that was there first stands, in `state`, and `is_same`
    says whether its body is the same (None: it is over, and its body not known any more)."""

    id: str
    key: str
    state: State
    seq: int
    due_ms: int
    is_new: bool = True
    is_same: bool | None = True


class Clash(NamedTuple):
    """The job was refused, because there is one of its id, in `state`."""

    id: str
    key: str
    state: State
    due_ms: int
    is_same: bool | None


class JobAdds:
    """Adds jobs. Safe for many callers at once."""

    def __init__(self, jobs: JobStream, reads: JobReads) -> None:
        self._jobs = jobs
        self._reads = reads

    async def add_many(self, adds: Sequence[tuple[Job, SamePolicy]]) -> list[Stored | Clash | StreamError]:
        """Store jobs, sent without waiting for one another; return for each what became of it, in the same order.

        A StreamError: not stored, except OutcomeUnknown, which may be; adding it again tells."""
        now_ms = self._jobs.clock.now_ms()
        moves = [self._jobs.placed(job, expected=0, now_ms=now_ms) for job, _ in adds]
        outcomes = await self._jobs.move_many(moves)
        reach("job.add")
        answers: list[Stored | Clash | StreamError] = [
            _stored(job, move, outcome) if isinstance(outcome, int) else outcome
            for (job, _), move, outcome in zip(adds, moves, outcomes, strict=True)
        ]
        taken = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, RevisionConflict)]
        if taken:
            first = await self._first_ones([adds[at][0] for at in taken])
            for at in taken:
                job, policy = adds[at]
                answers[at] = await self._second_one(job, policy, first.get((job.topic, token_of(job.id))))
        return answers

    async def _first_ones(self, jobs: Sequence[Job]) -> dict[tuple[str, str], Found]:
        try:
            return await self._reads.find_many([(job.topic, token_of(job.id)) for job in jobs])
        except StreamError:
            return {}  # then each is asked for alone

    async def _second_one(self, job: Job, policy: SamePolicy, found: Found | None) -> Stored | Clash | StreamError:
        """Decide on a job whose id is taken. It may be free, or taken by another, by the time that we act."""
        answer: Stored | StreamError | None = None
        for pause_s in PAUSES_S:
            await anyio.sleep(pause_s)
            try:
                found = found or await self._reads.find_key(job.topic, token_of(job.id))
                match on_same_id(policy, found.state, _outcome(found)) if found else "replace":
                    case "keep" if found:
                        return _kept(job, found)
                    case "refuse" if found:
                        return _clash(job, found)
                if found is None or not await self._reads.until_fired(found):
                    answer = await self._take_place(job, found)
                    if not isinstance(answer, RevisionConflict):
                        return answer
            except StreamError as error:
                return error
            found = None
        return answer or RevisionConflict("its id keeps changing hands; add it again", subject=job.id)

    async def _take_place(self, job: Job, found: Found | None) -> Stored | StreamError:
        """Store a job in place of another, if that is still as it was found."""
        expected, leaves = (found.seq, found.subject if found.state == "delayed" else "") if found else (0, "")
        now_ms = self._jobs.clock.now_ms()
        if found and found.state == "ready":
            job = replace(job, due_ms=max(job.due_ms, now_ms + SOON_MS))
        move = self._jobs.placed(job, expected=expected, now_ms=now_ms, leaves=leaves)
        outcome = await self._jobs.move(move)
        if isinstance(outcome, StreamError):
            return outcome
        reach("job.replace")
        if leaves and move.due_ms:
            return _stored(job, move, await self._where_timers_look(job, move, outcome))
        if found and not leaves:  # what was ready, or done, does not go by itself
            await delete_entry(self._jobs.connection, self._jobs.name, found.seq)
        return _stored(job, move, outcome)

    async def _where_timers_look(self, job: Job, move: Move, seq: int) -> int:
        """Have a job that took the place of a delayed one on `delayed` again, where it could not go at once; return its
        sequence. It is stored already: if this fails, the server fires it in time, or somebody has moved it on."""
        now_ms = self._jobs.clock.now_ms()
        if move.subject == self._jobs.subject("delayed", job.topic, token_of(job.id)) or job.due_ms <= now_ms:
            return seq
        outcome = await self._jobs.move(self._jobs.placed(job, expected=seq, now_ms=now_ms, leaves=move.subject))
        return outcome if isinstance(outcome, int) else seq


def _outcome(found: Found) -> Outcome:
    return found.done.outcome if found.done else "finished"


def _stored(job: Job, move: Move, seq: int) -> Stored:
    key = move.subject[move.subject.rindex(".") + 1 :]
    return Stored(job.id, key, "delayed" if move.due_ms else "ready", seq, job.due_ms)


def _is_same(job: Job, found: Found) -> bool | None:
    return None if found.job is None else bytes(found.job.body) == bytes(job.body)


def _kept(job: Job, found: Found) -> Stored:
    due_ms = found.job.due_ms if found.job else 0
    return Stored(job.id, found.key, found.state, found.seq, due_ms, is_new=False, is_same=_is_same(job, found))


def _clash(job: Job, found: Found) -> Clash:
    return Clash(job.id, found.key, found.state, found.job.due_ms if found.job else 0, _is_same(job, found))
