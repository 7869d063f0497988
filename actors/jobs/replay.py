"""Sends dead letters of jobs again: the same id, a new epoch, due now (actors/jobs/dead_letters.py).

In: dead letters, named or of a topic. Out: jobs of JOBS, and a reason for each dead letter that stays. State: none.
Under repeats: a dead letter is removed once its job is stored. After a crash in between, the add is known by the dead
letter, which is removed without a second job. If another job has that id, the dead letter stays. Whoever drops a dead
letter at the same moment hears of it (actors/runtime/resending.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from actors.jobs.adds import Clash, Stored
from actors.jobs.dead_letters import ENGINE, job_again, job_of
from actors.jobs.reads import Found
from actors.jobs.rules.job_rules import is_void, marked
from actors.jobs.store import JobStore
from actors.runtime.resending import Resending
from streams.buckets.bucket import Bucket
from streams.clock import Clock
from streams.errors import MalformedMessage, OutcomeUnknown, StreamError, unknown_once
from streams.link.connection import Connection
from streams.messages.fetch import decode_dead_letter
from streams.messages.jobs import NO_MARK, JobRecord, Past
from streams.reads.log import LogEntry, delete_entries, extent_of, last_entry, read_log, still_there
from streams.subjects import token_of

PAGE = 256


class ReplayedJob(NamedTuple):
    """The result of one dead letter. With `is_done` it is gone from the stream. `is_own`: this call removed it, and
    not another that sent it at the same time. `error`: why its job is not stored, or not known to be."""

    seq: int
    id: str
    is_done: bool
    what: str
    error: StreamError | None = None
    is_own: bool = True

    @property
    def is_in_doubt(self) -> bool:
        """Whether the job is stored, or may be, and this call has not removed the dead letter."""
        return not self.is_own if self.is_done else isinstance(self.error, OutcomeUnknown)


class JobReplay:
    """Sends dead letters again. `clock` is the server's. `leases`: the bucket LEASES."""

    def __init__(self, connection: Connection, store: JobStore, clock: Clock, leases: Bucket[bytes]) -> None:
        self._connection = connection
        self._namespace = connection.namespace
        self._stream = connection.namespace.stream("DEAD")
        self._store = store
        self._clock = clock
        self._resending = Resending(leases)

    async def kick(self, topic: str, most: int) -> int:
        """Send up to `most` of a topic's dead letters again, the oldest first. Return how many.
        Those written meanwhile are left alone. Raises as `send_again`, MalformedSubject."""
        kicked, page = 0, list[LogEntry]()
        pattern = self._namespace.pattern("dead", ENGINE, topic, "*")
        last_seq = (await extent_of(self._connection, self._stream)).last_seq
        with unknown_once(lambda: kicked > 0, topic):
            async for entry in read_log(self._connection, self._stream, pattern):
                if entry.seq > last_seq or kicked == most:
                    break
                page.append(entry)
                if len(page) == min(PAGE, most - kicked):
                    kicked += sum(again.is_own for again in await self._kick(page))
                    page = []
            kicked += sum(again.is_own for again in await self._kick(page[: most - kicked]))
        return kicked

    async def kick_one(self, topic: str, job_id: str, mark: Past = NO_MARK) -> bool:
        """Send the last dead letter of a job again. Return False if there is none, or another job has its id. Each who
        kicks one job at the same time gets True. `mark`: of this kick, which the job keeps. Raises as `kick`."""
        subject = self._namespace.dead(ENGINE, topic, token_of(job_id))
        entry = await last_entry(self._connection, self._stream, subject)
        return entry is not None and len(await self._kick([entry], mark)) > 0

    async def _kick(self, entries: Sequence[LogEntry], mark: Past = NO_MARK) -> list[ReplayedJob]:
        """Send those dead letters again that are still there. Return those that are sent. Raises the error of one whose
        job could not be stored, OutcomeUnknown if others are sent."""
        if not entries:
            return []
        key = await self._resending.begin(entry.seq for entry in entries)
        replayed = await self.send_again(await still_there(self._connection, self._stream, entries), mark)
        await self._resending.end(key, [again.seq for again in replayed if again.is_in_doubt])
        kicked = [again for again in replayed if again.is_done]
        errors = [again.error for again in replayed if again.error is not None]
        if errors:
            with unknown_once(lambda: len(kicked) > 0, self._stream):
                raise next((error for error in errors if isinstance(error, OutcomeUnknown)), errors[0])
        return kicked

    async def send_again(self, entries: Sequence[LogEntry], mark: Past = NO_MARK) -> list[ReplayedJob]:
        """Store the job of each dead letter anew, then remove the dead letter. The ones that cannot be sent stay, with
        the reason. One whose job was finished, deleted or replaced all the same is removed alone. The caller has
        written them down (`Resending`), and looked since whether they are there.
        Raises Disconnected, OutcomeUnknown, NoStream. A repeat is harmless."""
        now_ms, replayed = self._clock.now_ms(), dict[int, ReplayedJob]()
        dead, jobs = dict[int, JobRecord](), dict[tuple[str, str], tuple[int, JobRecord]]()
        for entry in entries:
            try:
                dead[entry.seq] = job_of(decode_dead_letter(entry.payload))
            except MalformedMessage as error:
                replayed[entry.seq] = ReplayedJob(
                    entry.seq, entry.subject.rpartition(".")[2], False, f"holds no job: {error}"
                )
        keys = [(job.topic, token_of(job.id)) for job in dead.values()]
        known = await self._store.find_many(keys, is_sure=True) if keys else {}
        for (seq, job), key in zip(dead.items(), keys, strict=True):
            anew = job_again(job, letter_seq=seq, now_ms=now_ms)
            if key in jobs:
                why = f"job {job.id} of {job.topic}: an earlier dead letter of that id goes first"
                replayed[seq] = ReplayedJob(seq, job.id, False, why)
            elif key in known and (left := await self._by_what_is_there(seq, job, anew, known[key])) is not None:
                replayed[seq] = left
            else:
                jobs[key] = seq, replace(anew, past=marked(anew.past, mark))
        answers = await self._store.add_many([(job, "keep") for _, job in jobs.values()]) if jobs else []
        for (seq, job), answer in zip(jobs.values(), answers, strict=True):
            replayed[seq] = self._judge(seq, job, answer)
        done = [again.seq for again in replayed.values() if again.is_done]
        with unknown_once(lambda: True, self._stream):
            were_there = await delete_entries(self._connection, self._stream, done)
        for seq, is_own in zip(done, were_there, strict=True):
            replayed[seq] = replayed[seq]._replace(is_own=is_own)
        return [replayed[entry.seq] for entry in entries]

    async def _by_what_is_there(self, seq: int, job: JobRecord, anew: JobRecord, found: Found) -> ReplayedJob | None:
        """Return the result of a dead letter whose job is not added, because of what is found under its id. None: it is
        to be added. An add that is refused could not be tried again for a while."""
        if found.known is not None and is_void(job, found.known):
            return ReplayedJob(seq, job.id, True, f"job {job.id} of {job.topic} was finished, deleted or replaced")
        other = await self._store.kept_out(anew, found)
        return None if other is None else self._judge(seq, job, other)

    def _judge(self, seq: int, job: JobRecord, answer: Stored | Clash | StreamError) -> ReplayedJob:
        """Return whether the dead letter may be removed: its job is stored, now or by an earlier try."""
        name = f"job {job.id} of {job.topic}"
        match answer:
            case Stored(is_new=True, state="done"):
                return ReplayedJob(seq, job.id, True, f"{name} was sent again before, and is over")
            case Stored(is_new=True):
                return ReplayedJob(seq, job.id, True, f"{name} is ready again")
            case Stored() | Clash(state="delayed" | "ready" | "reserved"):
                what = f"another one of that id is {answer.state}; finish or delete it first"
            case Clash():
                what = "its topic remembers that one of that id is over (its setting `remember`); send it after that"
            case OutcomeUnknown():
                return ReplayedJob(seq, job.id, False, f"it is not known whether {name} is stored: {answer}", answer)
            case _:
                return ReplayedJob(seq, job.id, False, f"{name} is not stored: {answer}", answer)
        return ReplayedJob(seq, job.id, False, f"{name}: {what}")
