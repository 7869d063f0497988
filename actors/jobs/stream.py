"""Where jobs stand on the broker: subjects by state, moves between them, and the notice to the timers."""

import asyncio
import math
import secrets
from asyncio import Future
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from zlib import crc32

import anyio
from msgspec.structs import replace

from actors.jobs.rules.due_crowds import DueCrowds
from actors.jobs.rules.job_handling import lost_before
from actors.jobs.rules.job_rules import (
    BACKSTOP_MS,
    TRACE_MS,
    add_of,
    has_fired,
    left_early,
    may_be_fired_again,
    was_schedule,
)
from actors.runtime.supervisor import one_error
from streams.clock import Clock
from streams.errors import MalformedMessage, OutcomeUnknown, Repeated, RevisionConflict, StoreFull, StreamError
from streams.jobs.delayed import encode_crowds, encode_notice, read_crowds
from streams.jobs.firing import EXPECTED, SCHEDULER, SHOT
from streams.jobs.leader_terms import LeaderTerm
from streams.jobs.moves import Move, Mover
from streams.jobs.sure_reads import SureReads
from streams.link.connection import Connection
from streams.messages.jobs import (
    DELAYED_TOKENS,
    FREE_TOKEN,
    READY_TOKENS,
    RESERVED_TOKENS,
    JobDone,
    JobRecord,
    decode_done,
    decode_job,
    encode_job,
)
from streams.publish.outcomes import Receipt
from streams.publish.publisher import Publisher
from streams.pull.delivery import Delivery
from streams.reads.log import LogEntry, delete_entry, entry_at, last_entries, last_entry, next_entry
from streams.subjects import Namespace, token_of
from streams.topology.specs import job_ack_wait_s

PARTITIONS = 8
"""Of due times, so that several timers can share them."""
FEW_PREFIXES = 10_000
READ_S = 10.0
SURE_S = 5.0
AT_ONCE = 64
"""Jobs looked up with one request: with the largest bodies, a quarter of what the server lets wait for one client."""
SOON_MS = 20
"""What is ready and becomes ready anew is delayed for so long: its old message is gone by then, and its place free."""
PAUSES_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Before each look at a job that others are moving. In a cluster a move under way refuses others before it can be seen
(10164), so looking again at once would find the job as it was."""
NEAR_MS = 400
"""How close to the server's own firing a write by us may be followed by it all the same: it loads what is due, and does
not look again before it stores it. Wide, for the write takes its way, and the clock is known to some milliseconds."""
LOOK_S = 0.02
LOOKED_MS = 10_000
"""So long after a move was stored nobody looks any more whether to take it back."""
CLEAR_MS = 100
"""A move that is confirmed so long before the schedule fires was made before the server loaded it."""
MOST_TOLD = 10_000
"""Due times in one notice: far below the largest message."""

_OTHER = {one: other for pair in (DELAYED_TOKENS, RESERVED_TOKENS) for one, other in (pair, pair[::-1])}


def partition_of(topic: str, key: str) -> int:
    """Return which part of the due times a job belongs to."""
    return crc32(f"{topic}.{key}".encode()) % PARTITIONS


def names_of(subject: str) -> tuple[str, str]:
    """Return the topic and key of a job's subject."""
    _, _, _, topic, key = subject.split(".")
    return topic, key


class TakenBack(RevisionConflict):
    """The move was stored, and is removed again: the server had fired the schedule that it left."""


class JobStream:
    """The stream JOBS, or several. `clock` is the server's, as far as it is known."""

    def __init__(self, connection: Connection, publisher: Publisher, namespace: Namespace, clock: Clock) -> None:
        self.connection = connection
        self.publisher = publisher
        self.namespace = namespace
        self.clock = clock
        self._mover = Mover(connection, publisher, namespace.jobs_stream_of)
        self._own_name = secrets.token_hex(8)
        own = namespace.jobs_patterns("read", self._own_name)
        self._sure_reads = {name: SureReads(connection, publisher, name, subject) for name, subject in own.items()}
        self._terms = {name: LeaderTerm(connection, name) for name in own}
        self._prefixes: dict[tuple[str, str], str] = {}
        self._told: dict[int, list[tuple[int, int, str]]] = {}
        self._crowds = DueCrowds()
        self._hears_crowds = 0

    def stream(self, topic: str) -> str:
        """Return the name of the stream that has the jobs of a topic."""
        return self.namespace.jobs_stream(topic)

    def check(self, *topics: str) -> None:
        """Return if jobs of these topics, or of all if none is given, can be settled, deleted and moved. Raises as
        `StoreState.check`."""
        for name in map(self.stream, topics) if topics else self.namespace.jobs_streams():
            self.connection.store.check(name)

    def by_stream(self, patterns: Iterable[str]) -> dict[str, list[str]]:
        """Return the patterns by the name of their stream."""
        found: dict[str, list[str]] = {}
        for pattern in patterns:
            found.setdefault(self.namespace.jobs_stream_of(pattern), []).append(pattern)
        return found

    def subject(self, token: str, topic: str, key: str) -> str:
        """Return `Namespace.job`, or `job_in_any_state` for the token `*`, faster. `key` is a token."""
        prefix = self._prefixes.get((token, topic))
        if prefix is None:
            if len(self._prefixes) >= FEW_PREFIXES:
                self._prefixes.clear()
            prefix = self._prefixes[token, topic] = self.namespace.jobs_in(token, topic)[:-1]
        return prefix + key

    def other(self, subject: str) -> str:
        """Return the other subject of a delayed or reserved job."""
        prefix, jobs, token, topic, key = subject.split(".")
        return ".".join((prefix, jobs, _OTHER[token], topic, key))

    def refused(self, job: JobRecord) -> str:
        """Return the subject of the mark that an add was refused, or taken back. It is not one of the job's
        subjects."""
        return self._refused(job.topic, token_of(job.id), add_of(job.nonce))

    def _refused(self, topic: str, key: str, message_id: str) -> str:
        return self.namespace.subject(self.namespace.jobs_first(topic), "refused", topic, key, token_of(message_id))

    def ready(self, job: JobRecord, key: str) -> str:
        """Return the subject on which the job is handed out."""
        return self.subject(READY_TOKENS[job.priority], job.topic, key)

    def placed(
        self, job: JobRecord, *, expected: int, now_ms: int, leaves: str = "", fires_ms: int = 0, message_id: str = ""
    ) -> Move:
        """Return the move that makes the job wait until it is due, or ready at once if it is. `leaves`: the subject of
        the schedule that it was, which the server fires at `fires_ms`. A delayed job goes to the other subject of
        delayed jobs. `message_id`: of an add."""
        key = token_of(job.id)
        thing, ready = self.subject("*", job.topic, key), self.ready(job, key)
        job = left_early(job, fires_ms=fires_ms, now_ms=now_ms)
        spread_ms = 0 if job.due_ms <= now_ms else self._spread_ms(job.due_ms, now_ms)
        if spread_ms != job.spread_ms:
            job = replace(job, spread_ms=spread_ms)
        if job.due_ms <= now_ms:
            return Move(ready, encode_job(job), thing, expected, leaves, message_id=message_id, fires_ms=fires_ms)
        delayed = self.subject("delayed", job.topic, key)
        if leaves == delayed:
            delayed = self.other(delayed)
        lead_ms, payload = BACKSTOP_MS + spread_ms, encode_job(job)
        due_ms = job.due_ms + lead_ms
        return Move(delayed, payload, thing, expected, leaves, due_ms, ready, 0, message_id, fires_ms, lead_ms)

    def _spread_ms(self, due_ms: int, now_ms: int) -> int:
        """Return how much later than usual the server fires a job, and count it among those of its time."""
        spread_ms = self._crowds.place(due_ms, now_ms=now_ms)
        if self._crowds.has_news:
            self._tell_crowds()
        return spread_ms

    def _tell_crowds(self) -> None:
        """Tell the other programs that delay jobs, and listen to them from now on."""
        subject = self.namespace.due_crowds()
        with suppress(StreamError):  # each counts on by itself
            if not self._hears_crowds:
                self._hears_crowds = self.connection.listen(subject, self._heard_crowds)
            self.connection.send_core(subject, encode_crowds(self._own_name, self._crowds.news()))

    def _heard_crowds(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        with suppress(MalformedMessage):
            name, news = read_crowds(payload)
            if name != self._own_name:
                self._crowds.heard(news, now_ms=self.clock.now_ms())

    async def messages_of(
        self, names: Iterable[tuple[str, str]], *, is_sure: bool = False
    ) -> dict[tuple[str, str], list[LogEntry]]:
        """Return all messages of jobs by topic and key, oldest first. Jobs without any are left out. The answer may be
        a moment old, unless `is_sure`. Raises NoStream, Disconnected, and if `is_sure` as `last_ones`."""
        patterns = sorted({self.subject("*", topic, key) for topic, key in names})
        found: dict[tuple[str, str], list[LogEntry]] = {}
        for start in range(0, len(patterns), AT_ONCE):
            some = patterns[start : start + AT_ONCE]
            for entry in await self.last_ones(some) if is_sure else await self._some_of(some):
                found.setdefault(names_of(entry.subject), []).append(entry)
        return found

    async def _some_of(self, patterns: Sequence[str]) -> list[LogEntry]:
        found: list[LogEntry] = []
        for name, some in self.by_stream(patterns).items():
            found += (await last_entries(self.connection, name, some, timeout_s=READ_S)).values()
        return sorted(found)

    async def last_ones(self, patterns: Sequence[str]) -> list[LogEntry]:
        """Return the last message on each subject that matches, oldest first, as they are: whoever is told that there
        is none, or which one stands, acts on it. Of several streams each is read by itself. Raises as
        `Connection.api`."""
        if not self.connection.is_clustered:
            return await self._some_of(patterns)
        with suppress(StoreFull):  # then the leader's word has to do: who deletes or ends a job makes room
            found: list[LogEntry] = []
            for name, some in self.by_stream(patterns).items():
                found += (await self._sure_reads[name].last_entries(some, timeout_s=SURE_S)).values()
            return sorted(found)
        return await self._some_of(patterns)

    async def store_mark(self, topics: Iterable[str], timeout_s: float) -> None:
        """Have most of the servers store a message in the streams of these topics. Raises as `SureReads.mark`."""
        with one_error():
            async with anyio.create_task_group() as tasks:
                for name in set(map(self.stream, topics)):
                    tasks.start_soon(partial(self._sure_reads[name].mark, timeout_s=timeout_s))

    async def led_since_s(self, topics: Iterable[str], timeout_s: float) -> float:
        """Return since when the leaders of the streams of these topics lead. Raises as `LeaderTerm.ask`."""
        return max(
            [await self._terms[name].ask(timeout_s) for name in set(map(self.stream, topics))], default=-math.inf
        )

    async def last_one(self, pattern: str) -> LogEntry | None:
        """Return the last of `last_ones`, None if there is none."""
        if not self.connection.is_clustered:
            return await last_entry(self.connection, self.namespace.jobs_stream_of(pattern), pattern, timeout_s=SURE_S)
        return max(await self.last_ones([pattern]), default=None)

    async def move_many(self, moves: Sequence[Move], *, until_s: float = math.inf) -> list[int | StreamError]:
        """Do as `Mover.move_many`, and notify the timers of delayed jobs. If a notice gets lost, the server fires the
        job itself.

        If a move out of a schedule is confirmed when the server may have loaded that schedule, it is checked again. If
        the server fired it after all, the move is TakenBack. That takes half a second."""
        return await self._looked_after(moves, await self._mover.move_many(moves, until_s=until_s))

    def start(self, move: Move, *, until_s: float = math.inf) -> "Future[Receipt | StreamError] | None":
        """Do as `Mover.start`."""
        return self._mover.start(move, until_s=until_s)

    async def ended(
        self, move: Move, outcome: Receipt | StreamError, *, until_s: float = math.inf
    ) -> int | StreamError:
        """Return what `move` does for a move that was sent, by the outcome of its message."""
        (made,) = await self._looked_after([move], await self._mover.ended([move], [outcome], until_s=until_s))
        return made

    async def _looked_after(self, moves: Sequence[Move], outcomes: list[int | StreamError]) -> list[int | StreamError]:
        if not any(move.fires_ms or move.due_ms for move in moves):
            return outcomes
        await self._look_at_late_ones(moves, outcomes)
        for move, outcome in zip(moves, outcomes, strict=True):
            if move.due_ms and isinstance(outcome, int) and move.subject.split(".")[2] == "delayed":
                topic, key = names_of(move.subject)
                self.tell_due(topic, key, move.due_ms - move.lead_ms, outcome)
        return outcomes

    async def move(self, move: Move, *, until_s: float = math.inf) -> int | StreamError:
        """Make one move."""
        (outcome,) = await self.move_many((move,), until_s=until_s)
        return outcome

    async def _look_at_late_ones(self, moves: Sequence[Move], outcomes: list[int | StreamError]) -> None:
        """Replace the outcomes of moves that were confirmed late and have not stayed, all looked at beside one another.
        A move whose first answer was lost counts, too."""
        clear_ms = self.clock.now_ms() + CLEAR_MS

        async def look(at: int, move: Move, seq: int) -> None:
            stayed = await self._unless_fired(move, seq)
            if isinstance(stayed, StreamError):
                outcomes[at] = stayed

        late = [
            (at, move, seq)
            for at, (move, outcome) in enumerate(zip(moves, outcomes, strict=True))
            if move.fires_ms and move.fires_ms < clear_ms and (seq := _stored_seq(outcome)) > move.expected
        ]
        if late:
            async with anyio.create_task_group() as tasks:
                for at, move, seq in late:
                    tasks.start_soon(look, at, move, seq)

    async def _unless_fired(self, move: Move, seq: int) -> int | StreamError:
        """Wait until the server must have stored what it had loaded. Return the move's sequence if it still stands,
        else take it back."""
        left_s = NEAR_MS / 1000 + max(0.0, (move.fires_ms - self.clock.now_ms()) / 1000)
        stream = self._stream_of(move)
        try:
            if self.connection.is_clustered and await self._was_overtaken(move, seq):
                await self._take_back(move, seq)
                return TakenBack("its schedule was fired just before it was made", subject=move.subject)
            while (last := await last_entry(self.connection, stream, move.thing)) is not None and last.seq == seq:
                if left_s <= 0:
                    return seq
                await anyio.sleep(LOOK_S)
                left_s -= LOOK_S
            if not _has_fired(move, last) and not await self._is_below(move, seq):
                return seq
            if not await self._take_back(move, seq):
                if _is_anothers(move, last):
                    return OutcomeUnknown("the job before was fired in its place", subject=move.subject)
                return seq  # somebody has made sure of it (ADR 35), or the job is as ready as it was to be
        except StreamError as error:
            return OutcomeUnknown(f"not looked at again: {error}", subject=move.subject)
        return TakenBack("its schedule was fired before it was made", subject=move.subject)

    async def _is_below(self, move: Move, seq: int) -> bool:
        """Return whether a schedule that a move made is there, though it is not the job's last message any more. Moves
        take the schedule that they leave along, so the server must have fired what was there before."""
        return move.due_ms > 0 and await entry_at(self.connection, self._stream_of(move), seq) is not None

    async def _take_back(self, move: Move, seq: int) -> bool:
        """Remove the message of a move. Return False if it was gone. The server goes on to know the message id of an
        add, so another try of the add must find a mark: it would take the add for done and over."""
        if move.message_id:
            mark = self._refused(*names_of(move.subject), move.message_id)
            outcome = await self._mover.move_many((Move(mark, b"", mark, 0, ttl_s=TRACE_MS // 1000),))
            if isinstance(outcome[0], StreamError) and not isinstance(outcome[0], RevisionConflict):
                raise outcome[0]
        return await delete_entry(self.connection, self._stream_of(move), seq, erase=True)

    def _stream_of(self, move: Move) -> str:
        return self.namespace.jobs_stream_of(move.subject)

    def nonce_of_fired(self, delivery: Delivery) -> str:
        """Return the nonce of a job that the server has fired and that may be back. Empty: any other job."""
        if self.connection.is_clustered or not is_fired_by_server(delivery):
            return ""
        try:
            job = decode_job(delivery.payload)
        except MalformedMessage:
            return ""
        return job.nonce if self.may_be_back(job) else ""

    def may_be_back(self, job: JobRecord) -> bool:
        """Return whether the server may have been killed since the job was added, so that the job may be over and back
        (ADR 35). Three servers know what was removed."""
        known_since_ms = self.clock.now_ms() - 1000 * self.connection.memory_age_s
        return not self.connection.is_clustered and was_schedule(job) and job.added_ms < known_since_ms

    async def has_stayed(self, move: Move, seq: int, stored_ms: int) -> int | StreamError:
        """Return the sequence of a move that an earlier try left, if it stands for good. That try may still decide to
        take it back."""
        now_ms = self.clock.now_ms()
        if not move.fires_ms or move.fires_ms > now_ms + CLEAR_MS or stored_ms < now_ms - LOOKED_MS:
            return seq
        return await self._unless_fired(move, seq)

    async def _was_overtaken(self, move: Move, seq: int) -> bool:
        """Return whether something of the same job came between what was expected and the move. The leader of a cluster
        compares with what is stored, and not with a firing that is on its way to the other servers."""
        between = await next_entry(self.connection, self._stream_of(move), move.thing, start_seq=move.expected + 1)
        return between is not None and between.seq < seq

    def tell_due(self, topic: str, key: str, due_ms: int, seq: int) -> None:
        """Tell the timers `[due_ms, seq, "<topic>.<key>"]` of a delayed job when the turn of the loop is over, all of a
        partition together. What is reserved is not told: the server puts it back."""
        if not self._told:
            asyncio.get_running_loop().call_soon(self._tell)
        self._told.setdefault(partition_of(topic, key), []).append((due_ms, seq, f"{topic}.{key}"))

    def _tell(self) -> None:
        told, self._told = self._told, {}
        for partition, jobs in told.items():
            for start in range(0, len(jobs), MOST_TOLD):
                with suppress(StreamError):  # the jobs are stored, and the server has their due times
                    notice = encode_notice(jobs[start : start + MOST_TOLD])
                    self.connection.send_core(self.namespace.due(partition), notice)


def _stored_seq(outcome: int | StreamError) -> int:
    """Return where a move is stored, also if it was by a try before. 0: nowhere, as far as is known."""
    return outcome if isinstance(outcome, int) else outcome.seq if isinstance(outcome, Repeated) else 0


def _is_anothers(move: Move, last: LogEntry | None) -> bool:
    """Return whether a move made a job, and another one is there."""
    moved = _moved(move)
    return isinstance(moved, JobRecord) and last is not None and decode_job(last.payload).nonce != moved.nonce


def _moved(move: Move) -> JobRecord | JobDone:
    is_end = move.subject.split(".")[2] in ("done", FREE_TOKEN)
    return decode_done(move.payload) if is_end else decode_job(move.payload)


def _has_fired(move: Move, last: LogEntry | None) -> bool:
    moved = _moved(move)
    if last is None:
        return isinstance(moved, JobRecord) and moved.receipt != ""
    try:
        found = decode_job(last.payload)
    except MalformedMessage:
        return False
    return has_fired(moved, found, fires_ms=move.fires_ms)


def is_fired_by_server(delivery: Delivery) -> bool:
    """Return whether the server made this job ready by its schedule: timers and moves leave headers of their own."""
    has = delivery.has_header
    return has(SCHEDULER) and not has(EXPECTED) and not has(SHOT)


def used_up(job: JobRecord, delivery: Delivery, connection: Connection, clock: Clock, *, most: int = 0) -> int:
    """Return how many attempts of a delivered job are used up, this one not among them. What may not run twice counts
    each delivery. `most`: the handler's attempts, where it has its own."""
    if delivery.delivered == 1:
        return job.attempts
    if (most or job.most_attempts) == 1:
        return job.attempts + delivery.delivered - 1
    age_ms = clock.now_ms() - delivery.stored_ms
    return job.attempts + lost_before(delivery.delivered, age_ms, round(1000 * job_ack_wait_s(connection.is_clustered)))


def key_of(delivery: Delivery) -> str:
    """Return the key of the delivered job."""
    return delivery.subject[delivery.subject.rindex(".") + 1 :]


def is_doubtful(delivery: Delivery, connection: Connection, clock: Clock) -> bool:
    """Return whether another copy of this ready job may follow, or have come before, by the server's own firing.

    Three servers write the time at which a message was proposed, not the one from which it counts: there the time of
    its arrival is taken. And there a timer's copy may follow the server's, since its condition does not see what is on
    its way: so what the server fired is doubtful, too."""
    if not delivery.has_header(SHOT):
        return connection.is_clustered and is_fired_by_server(delivery)
    stored_ms = delivery.stored_ms
    if connection.is_clustered:
        stored_ms = max(stored_ms, clock.now_ms())
    try:
        return may_be_fired_again(decode_job(delivery.payload), stored_ms)
    except MalformedMessage:
        return False
