"""Ready jobs in the hands of a node: settled by a move that names the delivery's sequence, and an ack after it.

Handlers in a node hold a job by its delivery alone. Nothing is written before they end. So each move here has the
condition that the ready message is still the job. A job that was deleted, replaced or finished meanwhile stays so, and
its delivery is forgotten. After a crash between move and ack the job is delivered again, and the move is refused.

A list gets an answer for each item. True: done. False: the job had moved on. A StreamError: the broker did not take it,
and the delivery comes again after the ack wait.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, TypeVar

import anyio
from msgspec.structs import replace

from actors.jobs.dead_letters import Burial, malformed_dead_letter, write_dead_letters
from actors.jobs.reads import Found, found_of
from actors.jobs.rules.job_rules import (
    came_back,
    ended_otherwise,
    freed_ms,
    is_in_past,
    kept_s,
    noted,
    noted_once,
    past_of,
)
from actors.jobs.stream import NEAR_MS, SOON_MS, JobStream, names_of, used_up
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from streams.errors import (
    ConnectionLost,
    MalformedMessage,
    OutcomeUnknown,
    PermissionDenied,
    RevisionConflict,
    StreamError,
)
from streams.jobs.moves import Move
from streams.messages.fetch import encode
from streams.messages.ids import message_id
from streams.messages.jobs import FREE_TOKEN, JobDone, JobRecord, Outcome, decode_job, encode_job
from streams.pull.delivery import Delivery
from streams.reads.log import LogEntry, delete_entry, last_entry, next_entry
from streams.subjects import token_of

log = logging.getLogger(__name__)
T = TypeVar("T")

BURIED_S = 3_600
"""How long it stays known that a job was buried, expired, was dropped or cancelled."""
AGAIN_S = 3_600
"""How long an end is known at least that was stored anew."""
ASK_S = 1.0
"""Before a node asks again whether a dead letter, or the end of its job, is stored."""
Answer = bool | StreamError
Whose = Literal["ours", "another's", "nobody's", "unknown"]
"""`ours`: run it here. `another's`: another holder began it before. `nobody's`: it is over, or another message repeats
it. `unknown`: look again."""


class FailedAttempt(NamedTuple):
    """A failed attempt: the job with `attempts` as used up now, and when it is handed out again."""

    delivery: Delivery
    job: JobRecord
    delay_ms: int
    reason: str


class PutOff(NamedTuple):
    """A job that was not run, and when it is ready again."""

    delivery: Delivery
    job: JobRecord
    delay_ms: int


class JobDeliveries:
    """Settles deliveries of ready jobs."""

    def __init__(self, jobs: JobStream) -> None:
        self._jobs = jobs

    async def retry_deliveries(self, retries: Sequence[FailedAttempt], *, node: str = "") -> list[Answer]:
        """Have jobs handed out again after their delays, with a line of history each."""
        now_ms = self._jobs.clock.now_ms()
        moves: list[tuple[Delivery, Move]] = []
        for delivery, job, delay_ms, reason in retries:
            failed = noted(job, at_ms=now_ms, node=node, reason=reason)
            later = replace(failed, due_ms=now_ms + delay_ms, first_ms=job.first_ms or now_ms)
            moves.append((delivery, self._jobs.placed(later, expected=delivery.seq, now_ms=now_ms)))
        return await self._settle(moves, is_certain=True)

    async def whose(self, deliveries: Sequence[Delivery]) -> dict[Delivery, Whose]:
        """Return whose deliveries are that were held back. Raises as `Connection.api`."""
        messages = await self._messages_of(deliveries)
        over = await self._over_of(messages)
        return {
            one: "nobody's" if one in over else _whose(one, max(entries, default=None))
            for one, entries in messages.items()
        }

    def may_be_over(self, delivery: Delivery) -> bool:
        """Return whether the server may have fired this job again after its end."""
        return self._jobs.nonce_of_fired(delivery) != ""

    async def over_of(self, deliveries: Sequence[Delivery]) -> set[Delivery]:
        """Return those of which a crashed server fired the schedule though the job is over (ADR 35). Raises as
        `Connection.api`."""
        return await self._over_of(await self._messages_of([one for one in deliveries if self.may_be_over(one)]))

    async def _over_of(self, messages: Mapping[Delivery, Sequence[LogEntry]]) -> set[Delivery]:
        over: set[Delivery] = set()

        async def look(delivery: Delivery) -> None:
            with suppress(StreamError):  # a run too many is better than one too few
                if await self._is_over(delivery, messages[delivery]):
                    over.add(delivery)

        async with anyio.create_task_group() as looks:
            for delivery, entries in messages.items():
                if len(entries) > 1:
                    looks.start_soon(look, delivery)
        return over

    async def covered_of(self, deliveries: Sequence[Delivery]) -> set[Delivery]:
        """Return those on which a crashed server put an older job of the same id. Raises as `Connection.api`."""
        if self._jobs.connection.is_clustered:
            return set()
        messages = await self._messages_of(deliveries)
        return {one for one, entries in messages.items() if _is_covered(one, max(entries, default=None))}

    async def _messages_of(self, deliveries: Sequence[Delivery]) -> dict[Delivery, list[LogEntry]]:
        """Return the messages of each job's id, as they are, oldest first."""
        messages = await self._jobs.messages_of((names_of(one.subject) for one in deliveries), is_sure=True)
        return {one: messages.get(names_of(one.subject), []) for one in deliveries}

    async def _is_over(self, delivery: Delivery, messages: Sequence[LogEntry]) -> bool:
        nonce = self._jobs.nonce_of_fired(delivery)
        others = [found_of(entry) for entry in messages if entry.seq != delivery.seq]
        ends = [one for one in others if nonce and one.known is not None and is_in_past(one.known, nonce)]
        if not ends:
            return False
        end = max(ends, key=lambda one: (one.is_free, one.seq))
        if end.is_free and end.done is not None and len(others) == 1:  # else it would come before a living job
            return await self._keep_end(end, end.done, delivery)
        await anyio.sleep(2 * NEAR_MS / 1000)  # what was confirmed late is taken back by then
        return await last_entry(self._jobs.connection, self._jobs.stream(end.topic), end.subject) is not None

    async def _keep_end(self, end: Found, done: JobDone, fired: Delivery) -> bool:
        """Store the end of a job anew, so that whoever is about to take it back finds another one (ADR 30). Return
        False if he was first: then the firing is the job. If an add took the firing's place meanwhile, its job must
        stay the last message of the id, so the end goes again."""
        jobs, now_ms = self._jobs, self._jobs.clock.now_ms()
        ttl_s = max(AGAIN_S, kept_s(done.past, now_ms=now_ms))
        again = encode_job(replace(done, finished_ms=now_ms))
        seq = await jobs.move(Move(end.subject, again, end.subject, end.seq, ttl_s=ttl_s))
        if isinstance(seq, StreamError):
            if isinstance(seq, RevisionConflict):
                return False
            raise seq
        thing, stream = jobs.subject("*", *names_of(fired.subject)), jobs.stream(end.topic)
        added = await next_entry(jobs.connection, stream, thing, start_seq=fired.seq + 1)
        if added is not None and added.seq < seq:
            await delete_entry(jobs.connection, stream, seq, erase=True)
        return True

    async def give_back(self, unstarted: Iterable[tuple[Delivery, JobRecord]]) -> list[Answer]:
        """Give back jobs that were not started. They are stored anew, to be ready in a moment, so that a delivery
        counts as an attempt only where a holder vanished with it: those before this one."""
        return await self.put_off([PutOff(delivery, job, SOON_MS) for delivery, job in unstarted])

    async def put_off(self, unstarted: Iterable[PutOff]) -> list[Answer]:
        """Give back jobs that were not started, to be ready after their delays."""
        now_ms = self._jobs.clock.now_ms()
        moves: list[tuple[Delivery, Move]] = []
        for delivery, job, delay_ms in unstarted:
            used = used_up(job, delivery, self._jobs.connection, self._jobs.clock)
            again = replace(job, attempts=used, due_ms=now_ms + delay_ms)
            moves.append((delivery, self._jobs.placed(again, expected=delivery.seq, now_ms=now_ms)))
        return await self._settle(moves, is_certain=True)

    async def finish_deliveries(
        self, ended: Sequence[tuple[Delivery, JobRecord]], *, remember_s: int, is_needed: bool = True
    ) -> list[Answer]:
        """End jobs and write that down. With `remember_s` their ids stay taken for so many seconds. None: the record is
        there only for repeats of the add. A job that leaves no trace is ended by an ack alone."""
        ends = [(one, self._end(one, job, "finished", remember_s)) for one, job in ended]
        return await self._settle(ends, is_needed=is_needed)

    async def end_deliveries(
        self, ended: Sequence[tuple[Delivery, JobRecord]], outcome: Literal["dropped", "cancelled"]
    ) -> list[Answer]:
        """End jobs whose key had no free slot, and write that down. They leave no dead letters."""
        ends = [(one, self._end(one, job, outcome, BURIED_S)) for one, job in ended]
        return await self._settle(ends, is_certain=True)

    async def bury_deliveries(
        self,
        buried: Sequence[tuple[Delivery, JobRecord, str]],
        *,
        outcome: Literal["buried", "expired"] = "buried",
        node: str = "",
        until_known: bool = False,
    ) -> list[Answer]:
        """Make jobs dead letters, with their history. A letter of an expired job begins with that word. The letter is
        written first: the other way round a crash in between would lose the job. It is taken back if the job had come
        to another end. `until_known`: wait, however long it takes, until it is known what is stored."""
        jobs, at_ms = self._jobs, self._jobs.clock.now_ms()
        why = "expired: " if outcome == "expired" else ""
        burials = [
            Burial(noted_once(came_back(job), at_ms=at_ms, node=node, reason=why + reason), delivery.seq, why + reason)
            for delivery, job, reason in buried
        ]

        async def write(some: Sequence[Burial]) -> Sequence[int | StreamError]:
            try:
                return await write_dead_letters(jobs.connection, jobs.publisher, jobs.namespace, some)
            except StreamError as error:
                return [error for _ in some]

        letters = await (_known(write, burials) if until_known else write(burials))
        answers: list[Answer] = [letter if isinstance(letter, StreamError) else False for letter in letters]
        reach("job.letter")
        written = [at for at, answer in enumerate(answers) if answer is False]
        ends = [(buried[at][0], self._end(buried[at][0], buried[at][1], outcome, BURIED_S)) for at in written]
        moved = await self._moved(ends, is_certain=True, until_known=until_known)
        for at, made in zip(written, moved, strict=True):
            answers[at] = _answer_of(made)
            letter = letters[at]
            if isinstance(made, StreamError) and isinstance(letter, int):
                await self.take_back(buried[at][1], letter, until_known=until_known)
        for (delivery, _, _), answer in zip(buried, answers, strict=True):
            if isinstance(answer, StreamError):
                delivery.forget()
        return answers

    async def take_back(self, job: JobRecord, letter_seq: int, *, until_known: bool = False) -> None:
        """Remove the dead letter of a job that was finished, deleted or replaced meanwhile. Sent again, it would run
        the job once more. `until_known`: try until it is known."""
        jobs = self._jobs
        while True:
            try:
                last = await jobs.last_one(jobs.subject("*", job.topic, token_of(job.id)))
                known = found_of(last).known if last is not None else None
                if known is not None and ended_otherwise(job, known):
                    await delete_entry(jobs.connection, jobs.namespace.stream("DEAD"), letter_seq)
                return
            except (ConnectionLost, PermissionDenied):
                raise
            except StreamError as error:
                log.warning("jobs.letter_stays", extra=fields(topic=job.topic, id=job.id, error=str(error)))
                if not until_known:
                    return
            await anyio.sleep(ASK_S)

    async def bury_malformed(self, delivery: Delivery, error: MalformedMessage) -> None:
        """Make a message that is no job a dead letter, and drop it."""
        topic, key = names_of(delivery.subject)
        letter = malformed_dead_letter(topic, key, delivery.payload, str(error), stored_ms=delivery.stored_ms)
        log.warning("jobs.malformed", extra=fields(subject=delivery.subject, seq=delivery.seq, error=str(error)))
        try:
            await self._jobs.publisher.publish(
                self._jobs.namespace.dead(letter.engine, letter.name, letter.id),
                encode(letter),
                message_id=message_id("dead", letter.engine, topic, key, str(delivery.seq)),
            )
            await delivery.term("no job")
        except StreamError:
            delivery.forget()  # it comes again

    def _end(self, delivery: Delivery, job: JobRecord, outcome: Outcome, remember_s: int) -> Move:
        topic, key = names_of(delivery.subject)
        now_ms = self._jobs.clock.now_ms()
        past = past_of(job, now_ms=now_ms, remember_s=remember_s)
        ttl_s = kept_s(past, now_ms=now_ms, remember_s=remember_s)
        free_ms = freed_ms(now_ms=now_ms, remember_s=remember_s, ttl_s=ttl_s)
        done = JobDone(
            topic=topic,
            id=job.id,
            finished_ms=now_ms,
            outcome=outcome,
            past=past,
            free_ms=free_ms,
            first_ms=job.first_ms,
            added_ms=job.added_ms,
        )
        subject = self._jobs.subject("done" if remember_s else FREE_TOKEN, topic, key)
        return Move(subject, encode_job(done), self._jobs.subject("*", topic, key), delivery.seq, ttl_s=ttl_s)

    async def _settle(
        self, moves: Sequence[tuple[Delivery, Move]], *, is_certain: bool = False, is_needed: bool = True
    ) -> list[Answer]:
        """Make the moves and ack what has moved, as `_moved`."""
        return [_answer_of(outcome) for outcome in await self._moved(moves, is_certain=is_certain, is_needed=is_needed)]

    async def _moved(
        self,
        moves: Sequence[tuple[Delivery, Move]],
        *,
        is_certain: bool = False,
        is_needed: bool = True,
        until_known: bool = False,
    ) -> list[int | StreamError]:
        """Make the moves and ack what has moved. `is_certain`: wait for the server's word on each ack, because a
        delivery that came again would be run again."""
        make, made = self._jobs.move_many, [move for _, move in moves]
        outcomes = await (_known(make, made) if until_known else make(made))
        reach("job.move")
        async with anyio.create_task_group() as tasks:
            for (delivery, _), outcome in zip(moves, outcomes, strict=True):
                if is_needed and isinstance(outcome, StreamError) and not isinstance(outcome, RevisionConflict):
                    delivery.forget()
                elif is_certain:
                    tasks.start_soon(_ack_surely, delivery)
                else:
                    await _ack(delivery)
        return outcomes


def _answer_of(outcome: int | StreamError) -> Answer:
    return True if isinstance(outcome, int) else False if isinstance(outcome, RevisionConflict) else outcome


async def _known(
    act: Callable[[Sequence[T]], Awaitable[Sequence[int | StreamError]]], things: Sequence[T]
) -> list[int | StreamError]:
    """Return the outcomes of an act that may be repeated. Repeat it for those whose outcome is not known: they may be
    stored, or may be yet."""
    outcomes = list(await act(things))
    while unknown := [at for at, outcome in enumerate(outcomes) if isinstance(outcome, OutcomeUnknown)]:
        await anyio.sleep(ASK_S)
        for at, outcome in zip(unknown, await act([things[at] for at in unknown]), strict=True):
            if isinstance(outcome, int | RevisionConflict | ConnectionLost | PermissionDenied):
                outcomes[at] = outcome
    return outcomes


async def _ack(delivery: Delivery) -> None:
    with suppress(StreamError):  # then it is delivered again
        await delivery.ack()


async def _ack_surely(delivery: Delivery) -> None:
    try:
        await delivery.ack_sync()
    except StreamError:
        await _ack(delivery)


def _whose(delivery: Delivery, last: LogEntry | None) -> Whose:
    if last is not None and (last.seq, last.stored_ms) == (delivery.seq, delivery.stored_ms):
        return "ours"
    return "unknown" if _is_covered(delivery, last) else "nobody's"


def _is_covered(delivery: Delivery, last: LogEntry | None) -> bool:
    """Return whether a job that was added before lies on top of a delivered one: what a crashed server fired again.
    The delivered one goes on once that is out of its way."""
    job = found_of(last).job if last is not None else None
    try:
        return job is not None and job.added_ms < decode_job(delivery.payload).added_ms
    except MalformedMessage:
        return False
