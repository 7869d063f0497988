"""All that can be done to jobs on the broker, without any policy: what to do is decided by whoever calls.

A job is one message of JOBS, and every change is one conditional publish on its identity (streams/moves.py), so an id
is there once, whatever happens on the way. Here: adding, deleting, and making a delayed job ready at once; the rest is
in job_reads.py, job_reservations.py and job_deliveries.py, and hung up here under one name.

Adding the same again is harmless by the default policy. What replaces a delayed job keeps away from the server's own
firing of it: within a moment of that, it waits until it has passed, and decides by what it finds then.
"""

from collections.abc import Sequence
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from actors.failpoints import reach
from actors.job_deliveries import JobDeliveries, Retry
from actors.job_reads import BadCursor, Counts, Found, JobReads, Page
from actors.job_reservations import Handed, Reservation, Reservations, Settled, Stale
from actors.job_stream import PARTITIONS, PAUSES_S, JobStream, partition_of
from actors.model.job_rules import BACKSTOP_MS, RESERVED_SLACK_MS, SamePolicy, on_same_id
from streams.clock import Clock
from streams.connection import Connection
from streams.errors import RevisionConflict, StreamError
from streams.job_messages import Job, Outcome, State
from streams.log import delete_entry, purge_subject
from streams.moves import Move
from streams.publisher import Publisher
from streams.subjects import Namespace, token_of

__all__ = [
    "PARTITIONS",
    "BadCursor",
    "Clash",
    "Counts",
    "Found",
    "Handed",
    "JobStore",
    "Page",
    "Reservation",
    "Retry",
    "Settled",
    "Stale",
    "Stored",
    "partition_of",
]

NEAR_MS = 400
"""How close to the server's own firing a write by us may be followed by it all the same: it loads what is due, and does
not look again before it stores it. Wide, for the write takes its way, and the clock is known to some milliseconds."""


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


class JobStore:
    """Jobs on the broker. Safe for many callers at once; `clock` is the server's."""

    def __init__(self, connection: Connection, publisher: Publisher, namespace: Namespace, clock: Clock) -> None:
        self._jobs = jobs = JobStream(connection, publisher, namespace, clock)
        self._reads = reads = JobReads(jobs)
        deliveries = JobDeliveries(jobs)
        held = Reservations(jobs, reads, deliveries)

        self.find = reads.find
        self.find_key = reads.find_key
        self.find_many = reads.find_many
        self.find_in_all = reads.find_in_all
        self.count = reads.count
        self.list_jobs = reads.list_jobs

        self.reserve_many = held.reserve_many
        self.finish_many = held.finish_many
        self.touch_many = held.touch_many
        self.release_many = held.release_many
        self.bury_many = held.bury_many

        self.retry_deliveries = deliveries.retry_deliveries
        self.give_back = deliveries.give_back
        self.finish_deliveries = deliveries.finish_deliveries
        self.bury_deliveries = deliveries.bury_deliveries
        self.bury_malformed = deliveries.bury_malformed

    @property
    def clock(self) -> Clock:
        return self._jobs.clock

    # ---- adding

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
                found = found or await self._reads.find(job.topic, job.id)
                match on_same_id(policy, found.state, _outcome(found)) if found else "replace":
                    case "keep" if found:
                        return _kept(job, found)
                    case "refuse" if found:
                        return _clash(job, found)
                if found is None or not await self._passes(found):
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
        move = self._jobs.placed(job, expected=expected, now_ms=self._jobs.clock.now_ms(), leaves=leaves)
        outcome = await self._jobs.move(move)
        if isinstance(outcome, StreamError):
            return outcome
        reach("job.replace")
        if found and found.subject not in (move.subject, leaves):  # what was ready, or done, does not go by itself
            await delete_entry(self._jobs.connection, self._jobs.name, found.seq)
        return _stored(job, move, outcome)

    # ---- deleting, and not waiting any longer

    async def delete(self, topic: str, job_id: str) -> State | None:
        """Delete the job in whatever state; return that, None if there was none. It is never offered after this
        returns; who holds it may go on, and is refused when he settles it.

        Takes up to a second where the server is about to fire it. Raises OutcomeUnknown, Disconnected: do it again."""
        found = await self._reads.find(topic, job_id)
        purged = await self._purge(topic, job_id)
        if not purged and found is None:
            return None
        await self._purge(topic, job_id)  # what a cluster had taken before the first was done
        if found is not None and await self._passes(found):
            await self._purge(topic, job_id)
        return found.state if found is not None else "ready"

    async def kick_delayed(self, topic: str, job_id: str) -> bool:
        """Make a delayed job ready now; False if there is none."""
        for pause_s in PAUSES_S:
            await anyio.sleep(pause_s)
            found = await self._reads.find(topic, job_id)
            if found is None or found.state != "delayed" or found.job is None:
                return False
            now_ms = self._jobs.clock.now_ms()
            if found.job.due_ms <= now_ms or _fires_ms(found) - now_ms <= NEAR_MS:
                return True  # it is about to be ready
            job = replace(found.job, due_ms=now_ms)
            outcome = await self._jobs.move(
                self._jobs.placed(job, expected=found.seq, now_ms=now_ms, leaves=found.subject)
            )
            if isinstance(outcome, int):
                return True
            if not isinstance(outcome, RevisionConflict):
                raise outcome
        return False

    async def _purge(self, topic: str, job_id: str) -> int:
        return await purge_subject(
            self._jobs.connection, self._jobs.name, self._jobs.subject("*", topic, token_of(job_id))
        )

    async def _passes(self, found: Found) -> bool:
        """If the server is about to fire this job's schedule, wait until it has; return whether it was."""
        wait_ms = _fires_ms(found) - self._jobs.clock.now_ms()
        if not -NEAR_MS <= wait_ms <= NEAR_MS:
            return False
        await anyio.sleep((wait_ms + NEAR_MS) / 1000)
        return True


def _fires_ms(found: Found) -> int:
    """Return when the server fires the schedule that this job is; 0 if it is none."""
    if found.job is None:
        return 0
    if found.state == "delayed":
        return found.job.due_ms + BACKSTOP_MS
    return found.job.until_ms + RESERVED_SLACK_MS if found.state == "reserved" else 0


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
