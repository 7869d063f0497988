"""Looks at jobs without touching them: one by its id, a topic's by state, how many there are.

One job is read as it is now (streams/jobs/sure_reads.py). Lists and counts may come from a server that is a moment
behind. A job can be on two subjects for a moment (reserved, and its ready copy not yet acknowledged): the later message
is the job.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import anyio

from actors.jobs.rules.cursors import BadCursor
from actors.jobs.rules.job_rules import fires_of, is_in_past, may_be_fired_again
from actors.jobs.stream import NEAR_MS, READ_S, JobStream, names_of
from actors.runtime.pieces import in_pieces
from streams.errors import MalformedMessage
from streams.messages.jobs import (
    DELAYED_TOKENS,
    FREE_TOKEN,
    READY_TOKENS,
    RESERVED_TOKENS,
    JobDone,
    JobRecord,
    State,
    decode_done,
    decode_job,
)
from streams.reads.crowds import Crowds
from streams.reads.log import Extent, LogEntry, count_each, extent_of, next_entry, subjects_of
from streams.subjects import token_of

OVERDUE_MS = 30_000
"""Even a server that has a million jobs to fire at once is not so late."""
MOST_BYTES = 4 * 1024 * 1024
MOST_SCANNED = 5_000
"""Jobs that one page reads. If few pass the filter, the page is short, and its cursor goes on."""
FEW_IN_ALL = 50_000
"""Messages of the stream up to which one answer with all their subjects (50 ms, 2.5 MB) counts many topics."""
TOPICS_AT_ONCE = 256
_CURSOR = re.compile(r"([0-2])\.([0-9]{1,19})", re.ASCII)


class Found(NamedTuple):
    """A job as it stands. `job` is set until the job is over, `done` after. Both are None if the message is no job.
    `is_free`: the job is over and its id is free, so for users there is no such job."""

    state: State
    topic: str
    key: str
    seq: int
    stored_ms: int
    subject: str
    job: JobRecord | None = None
    done: JobDone | None = None
    is_free: bool = False

    @property
    def id(self) -> str:
        return self.job.id if self.job else self.done.id if self.done else self.key

    @property
    def known(self) -> JobRecord | JobDone | None:
        """The job, or the record of one that is over. None if the message is neither."""
        return self.job or self.done

    @property
    def schedule(self) -> str:
        """The subject of the schedule that this job is. Empty: it is none."""
        return self.subject if self.state in ("delayed", "reserved") else ""

    @property
    def fires_ms(self) -> int:
        """When the server fires the schedule that this job is. 0: it is none."""
        return fires_of(self.job) if self.job is not None and self.schedule else 0


class TopicCounts(NamedTuple):
    """How many jobs of a topic are in each state. `done`: those that are still known."""

    delayed: int
    ready: int
    reserved: int
    done: int


NO_JOBS = TopicCounts(0, 0, 0, 0)


class JobPage(NamedTuple):
    """Jobs in the order in which they came into their state. `cursor`: where to go on, empty at the end."""

    found: list[Found]
    cursor: str


class JobReads:
    """Reads of the stream JOBS, or of several. What is read of several streams is not of one moment."""

    def __init__(self, jobs: JobStream) -> None:
        self._jobs = jobs
        self._crowds = {name: Crowds(jobs.connection, name) for name in jobs.namespace.jobs_streams()}
        self._tallied = Counter[tuple[str, State]]()
        self._tallied_at: list[Extent] = []

    async def find(self, topic: str, job_id: str) -> Found | None:
        """Return the job of this id as it is now, None if there is none. Raises as `Connection.api`."""
        found = await self.find_key(topic, token_of(job_id))
        return None if found is None or found.is_free else found

    async def find_key(self, topic: str, key: str) -> Found | None:
        """Return the job by its key, or what is known of one that is over."""
        entry = await self._jobs.last_one(self._jobs.subject("*", topic, key))
        return self._found_of(entry) if entry else None

    async def find_many(
        self, keys: Sequence[tuple[str, str]], *, is_sure: bool = False
    ) -> dict[tuple[str, str], Found]:
        """Return jobs by topic and key, with the records of those that are over. Unknown ones are left out. The answer
        may be a moment old, unless `is_sure`. Raises as `JobStream.messages_of`."""
        messages = await self._jobs.messages_of(keys, is_sure=is_sure)
        return {names: self._found_of(entries[-1]) for names, entries in messages.items()}

    async def find_everywhere(self, key: str) -> list[Found]:
        """Return the jobs of every topic by their key, also what is known of those that are over."""
        patterns = self._jobs.namespace.jobs_patterns("*", "*", key)
        entries = await self._jobs.last_ones([*patterns.values()])
        latest = {names_of(entry.subject): entry for entry in entries}
        return [self._found_of(entry) for entry in latest.values()]

    def _found_of(self, entry: LogEntry) -> Found:
        """Return what the message is now: a record that is kept for repeats may have set its id free meanwhile."""
        found = found_of(entry)
        is_freed = found.done is not None and 0 < found.done.free_ms <= self._jobs.clock.now_ms()
        return found._replace(is_free=True) if is_freed else found

    def is_firing(self, found: Found) -> bool:
        """Return whether the server is about to fire this job's schedule, or may just have."""
        return abs(found.fires_ms - self._jobs.clock.now_ms()) <= NEAR_MS

    def is_overdue(self, found: Found) -> bool:
        """Return whether the server should have fired this job's schedule long ago. After its start it needs time."""
        has_had_time = self._jobs.connection.memory_age_s * 1000 > OVERDUE_MS
        return has_had_time and 0 < found.fires_ms < self._jobs.clock.now_ms() - OVERDUE_MS

    async def is_over(self, found: Found) -> bool:
        """Return whether a crashed server made this job ready, though a record says that it is over (ADR 35). Raises as
        `Connection.api`."""
        jobs, job = self._jobs, found.job
        if job is None or found.state != "ready" or not jobs.may_be_back(job):
            return False
        messages = await jobs.messages_of([(found.topic, found.key)])
        known = (found_of(entry).known for entries in messages.values() for entry in entries if entry.seq < found.seq)
        return any(one is not None and is_in_past(one, job.nonce) for one in known)

    async def until_followed(self, found: Found) -> bool:
        """If a ready job is a timer's late copy, the server's own firing may follow: wait until it must have come.
        Return whether the job is such a copy."""
        job, now_ms = found.job, self._jobs.clock.now_ms()
        if found.state != "ready" or job is None or found.stored_ms < now_ms - 2 * NEAR_MS:
            return False
        if not may_be_fired_again(job, found.stored_ms):
            return False
        await anyio.sleep(2 * NEAR_MS / 1000)
        return True

    async def until_fired(self, found: Found) -> bool:
        """If the server is about to fire this job's schedule, or may do so once more, wait until it must have fired.
        Return whether that was so."""
        if await self.until_followed(found):
            return True
        if not self.is_firing(found):
            return False
        await anyio.sleep((found.fires_ms - self._jobs.clock.now_ms() + NEAR_MS) / 1000)
        return True

    async def count(self, topic: str) -> TopicCounts:
        """Return how many jobs of a topic there are. Eight requests at once, whatever the numbers. The server looks at
        each job of the topic."""
        [counts] = await self._count_by_state([topic])
        return counts

    async def count_many(self, topics: Sequence[str]) -> list[TopicCounts]:
        """Return how many jobs each topic has. One request if there are few jobs in all, else one for each topic and
        eight more for those with several jobs."""
        jobs = self._jobs
        if len(topics) > 1:
            extents = [await extent_of(jobs.connection, name) for name in jobs.namespace.jobs_streams()]
            if sum(extent.messages for extent in extents) <= FEW_IN_ALL:
                if self._tallied_at != extents:  # else this is the next page of what was just counted
                    self._tallied, self._tallied_at = await self._tally(), extents
                tallied = self._tallied
                return [TopicCounts(**{state: tallied[topic, state] for state in _TOKENS}) for topic in topics]
        counts: dict[str, TopicCounts] = {}
        for start in range(0, len(topics), TOPICS_AT_ONCE):
            some = topics[start : start + TOPICS_AT_ONCE]
            totals = await self._count_each([jobs.subject("*", topic, "*") for topic in some])
            used = [topic for topic, total in zip(some, totals, strict=True) if total]
            counts |= zip(used, await self._count_by_state(used), strict=True)
        return [counts.get(topic, NO_JOBS) for topic in topics]

    async def _tally(self) -> "Counter[tuple[str, State]]":
        """Count all subjects, by topic and state."""
        jobs, tallied = self._jobs, Counter[tuple[str, State]]()
        for stream, pattern in jobs.namespace.jobs_patterns("*", "*", "*").items():
            async for subject in in_pieces(await subjects_of(jobs.connection, stream, pattern)):
                _, _, token, topic, _ = subject.split(".")
                if token in _STATES and token != FREE_TOKEN:
                    tallied[topic, _STATES[token]] += 1
        return tallied

    async def _count_by_state(self, topics: Sequence[str]) -> list[TopicCounts]:
        places = [(state, token) for state, tokens in _TOKENS.items() for token in tokens]
        counted = iter(
            await self._count_each([self._jobs.subject(token, topic, "*") for topic in topics for _, token in places])
        )
        found: list[TopicCounts] = []
        for _ in topics:
            numbers = dict.fromkeys(_TOKENS, 0)
            for state, _ in places:
                numbers[state] += next(counted)
            found.append(TopicCounts(**numbers))
        return found

    async def _count_each(self, patterns: Sequence[str]) -> list[int]:
        counted: dict[str, int] = {}
        for stream, some in self._jobs.by_stream(patterns).items():
            counts = await count_each(self._jobs.connection, stream, some, timeout_s=READ_S)
            counted |= zip(some, counts, strict=True)
        return [counted[pattern] for pattern in patterns]

    async def ready_since_ms(self, topic: str) -> int:
        """Return since when the first ready job of a topic waits or runs. 0: there is none."""
        subjects = [self._jobs.subject(token, topic, "*") for token in READY_TOKENS.values()]
        stream = self._jobs.stream(topic)
        firsts = [await next_entry(self._jobs.connection, stream, subject) for subject in subjects]
        return min((first.stored_ms for first in firsts if first is not None), default=0)

    async def list_jobs(
        self,
        topic: str,
        state: State,
        *,
        cursor: str = "",
        most: int = 100,
        due_from_ms: int = 0,
        due_before_ms: int = 0,
        most_bytes: int = MOST_BYTES,
    ) -> JobPage:
        """Return jobs of a topic in a state, a page at a time. With limits, only the jobs due in `[due_from_ms,
        due_before_ms)` (0: no end) among those that are not over. A page ends early at `most_bytes`, but has at least
        one job. Raises BadCursor."""
        tokens, crowds = _TOKENS[state], self._crowds[self._jobs.stream(topic)]
        at, seq = _read_cursor(cursor, len(tokens))
        page: list[Found] = []
        scanned, left_bytes = 0, most_bytes
        while at < len(tokens) and len(page) < most and scanned < MOST_SCANNED and left_bytes > 0:
            pattern, left = self._jobs.subject(tokens[at], topic, "*"), most - len(page)
            entries, seq, is_end = await crowds.page(pattern, seq, left, left_bytes, timeout_s=READ_S)
            scanned += len(entries)
            left_bytes -= sum(len(entry.payload) for entry in entries)
            page += (one for one in map(found_of, entries) if _is_due_within(one, due_from_ms, due_before_ms))
            at, seq = (at + 1, 1) if is_end else (at, seq)
        return JobPage(page, f"{at}.{seq}" if at < len(tokens) else "")


_TOKENS: dict[State, tuple[str, ...]] = {
    "delayed": DELAYED_TOKENS,
    "ready": tuple(READY_TOKENS.values()),
    "reserved": RESERVED_TOKENS,
    "done": ("done",),
}


def found_of(entry: LogEntry) -> Found:
    """Return the job that a message of JOBS is."""
    _, _, token, topic, key = entry.subject.split(".")
    state = _STATES[token]
    found = Found(state, topic, key, entry.seq, entry.stored_ms, entry.subject, is_free=token == FREE_TOKEN)
    try:
        if state == "done":
            return found._replace(done=decode_done(entry.payload))
        return found._replace(job=decode_job(entry.payload))
    except MalformedMessage:
        return found


_STATES: dict[str, State] = {token: state for state, tokens in _TOKENS.items() for token in tokens}
_STATES[FREE_TOKEN] = "done"


def _is_due_within(found: Found, from_ms: int, before_ms: int) -> bool:
    if found.job is None:
        return not from_ms and not before_ms
    return found.job.due_ms >= from_ms and (not before_ms or found.job.due_ms < before_ms)


def _read_cursor(cursor: str, lanes: int) -> tuple[int, int]:
    if not cursor:
        return 0, 1
    read = _CURSOR.fullmatch(cursor)
    if read is None or int(read[1]) >= lanes or int(read[2]) > 2**63 - 1:
        raise BadCursor(f"cursor {cursor[:80]!a}: not one that a page gave; begin without")
    return int(read[1]), max(1, int(read[2]))
