"""Adding jobs: one conditional publish each, sent without waiting for one another.

One add by one caller is one job, whoever repeats it. An add is known by its nonce, in the job, in what is written down
of its end, and as the message's id in the server's memory (ADR 29). Where none of them can tell, the outcome is
unknown.

What replaces a delayed job keeps away from the server's own firing of it: within a moment of that, it waits until it
has passed, and decides by what it finds then.
"""

import math
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import anyio
from msgspec import Struct
from msgspec.structs import replace

from actors.jobs.reads import Found, JobReads
from actors.jobs.rules.job_rules import (
    MOST_PAST,
    TRACE_MS,
    add_of,
    had_another_body,
    has_made,
    is_in_past,
    is_same_add,
    on_same_id,
    past_of,
    voided,
)
from actors.jobs.stream import LOOKED_MS, NEAR_MS, PAUSES_S, SOON_MS, JobStream, TakenBack
from actors.runtime.failpoints import reach
from actors.runtime.supervisor import one_error
from streams.clock import monotonic_s
from streams.errors import OutcomeUnknown, Repeated, RevisionConflict, StreamError
from streams.jobs.moves import Move
from streams.messages.jobs import READY_TOKENS, FirstTry, JobRecord, OnSame, Outcome, State
from streams.publish.outcomes import Receipt
from streams.reads.log import delete_entries, purge_subject
from streams.subjects import token_of

LONGEST_AGE_S = 35.0
"""An add that was first tried at most so long ago is known by the server's memory of message ids. An older one is known
by its job alone."""
LATE_S = 20
"""What ends later than so many seconds after its add leaves a trace, if it may be added again by what was read before
its end. The server knows the add for 60 s, and what was read is added within `LONGEST_AGE_S`."""
ASK_S = 2.0
ELECTION_S = 3.0
"""Where there are several servers, no other one leads so soon after the leader has answered."""

AT_ONCE = 32
"""Jobs whose ids are taken, and that are decided on at the same time."""
FIRST = FirstTry()


class Stored(Struct, frozen=True, gc=False):
    """The job is there, or was and is over by now (`state` is done). `is_new`: this add stored it, now or by an
    earlier try. False: the earlier job stands, and `is_same` says whether its body is the same. `due_ms`: of the job
    that is there, which a first try may have added before this one. 0: it is over. `has_replaced`: another job was
    replaced, and a node may hold a copy of it."""

    id: str
    key: str
    state: State
    seq: int
    due_ms: int
    is_new: bool = True
    is_same: bool | None = True
    has_replaced: bool = False


class Clash(NamedTuple):
    """The job was refused, because its id has a job, in `state`. If that is done, the topic remembers it."""

    id: str
    key: str
    state: State
    due_ms: int
    is_same: bool | None


_Decide = Callable[[], Awaitable[Stored | Clash | StreamError]]


class JobAdds:
    """Adds jobs. Safe for many callers at once."""

    def __init__(self, jobs: JobStream, reads: JobReads) -> None:
        self._jobs = jobs
        self._reads = reads

    async def add_many(
        self, adds: Sequence[tuple[JobRecord, OnSame]], *, until_s: float = math.inf, first: FirstTry = FIRST
    ) -> list[Stored | Clash | StreamError]:
        """Store jobs, sent without waiting for one another. Return an outcome for each, in the same order.

        Nothing is sent after `until_s` of the monotonic clock. `first`: when the caller tried this first.
        A StreamError: the job is not stored. OutcomeUnknown: it may be, and an add under the same nonce finds out."""
        if not self._is_remembered(first):
            second = [
                (job, partial(self._second_one, job, policy, None, until_s, is_new=job.trace_s > 0))
                for job, policy in adds
            ]
            return await _by_id(second)
        now_ms = self._jobs.clock.now_ms()
        moves = [self._jobs.placed(job, expected=0, now_ms=now_ms, message_id=add_of(job.nonce)) for job, _ in adds]
        outcomes = await self._jobs.move_many(moves, until_s=until_s)
        return await self._added(adds, moves, outcomes, until_s)

    def start(self, job: JobRecord, *, until_s: float) -> "tuple[Move, Future[Receipt | StreamError]] | None":
        """Send a job that is tried for the first time. Return the move and the future of its outcome, for `added` if
        that is a receipt of a message that is new, else for `ended`. None: it cannot be sent now."""
        move = self._jobs.placed(job, expected=0, now_ms=job.added_ms, message_id=add_of(job.nonce))
        sent = self._jobs.start(move, until_s=until_s)
        return None if sent is None else (move, sent)

    def added(self, job: JobRecord, receipt: Receipt) -> State:
        """Return the state of a job whose message was stored as a new one."""
        reach("job.add")
        if job.due_ms <= job.added_ms:
            return "ready"
        self._jobs.tell_due(job.topic, token_of(job.id), job.due_ms, receipt.seq)
        return "delayed"

    async def ended(
        self, job: JobRecord, policy: OnSame, move: Move, outcome: Receipt | StreamError, *, until_s: float
    ) -> Stored | Clash | StreamError:
        """Return what `add_many` does for a job that was sent, by the outcome of its move's message."""
        made = await self._jobs.ended(move, outcome, until_s=until_s)
        (answer,) = await self._added([(job, policy)], [move], [made], until_s)
        return answer

    async def _added(
        self,
        adds: Sequence[tuple[JobRecord, OnSame]],
        moves: Sequence[Move],
        outcomes: Sequence[int | StreamError],
        until_s: float,
    ) -> list[Stored | Clash | StreamError]:
        reach("job.add")
        answers: list[Stored | Clash | StreamError]
        answers = [
            _stored(job, move, outcome) if isinstance(outcome, int) else outcome
            for (job, _), move, outcome in zip(adds, moves, outcomes, strict=True)
        ]
        taken = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, RevisionConflict)]
        if taken:
            there = await self._first_ones([adds[at][0] for at in taken])
            second = []
            for at in taken:
                job, policy = adds[at]
                found, first_seq = there.get((job.topic, token_of(job.id))), _first_seq(outcomes[at])
                second.append((job, partial(self._second_one, job, policy, found, until_s, first_seq=first_seq)))
            for at, answer in zip(taken, await _by_id(second), strict=True):
                answers[at] = answer
        return answers

    async def kept_out(self, job: JobRecord, found: Found) -> Stored | Clash | None:
        """Return what an add with `keep` would return because of what is found under its id, None if nothing keeps it
        out. An add that is refused cannot be tried again under its nonce for a while: this sends nothing. Raises as
        `JobReads.is_over`."""
        if found.known is None or is_same_add(job, found.known) or await self._reads.is_over(found):
            return None
        return _refusal(job, "keep", found)

    async def add_absent(
        self, jobs: Sequence[JobRecord], *, until_s: float, first: FirstTry
    ) -> list[bool | StreamError]:
        """Store those jobs whose id has none. Return for each whether this call stored it. False: a job of its id is
        there, or one that was added under the same nonce ended since `first`. Every such job has `late_s` (LATE_S).

        Nothing is stored if the server may have forgotten since `first` what it had stored: OutcomeUnknown."""
        first_s, topics = monotonic_s() - first.age_s, {job.topic for job in jobs}
        try:
            is_remembered = self._is_remembered(first) and await self._jobs.led_since_s(topics, ASK_S) <= first_s
        except StreamError as error:
            return [error for _ in jobs]
        if not is_remembered:
            why = (
                f"more than {LONGEST_AGE_S:g} s have passed, or the server was started, or leads, since then; not added"
            )
            return [OutcomeUnknown(why, subject=job.id) for job in jobs]
        if self._jobs.connection.is_clustered:
            until_s = min(until_s, monotonic_s() + ELECTION_S)
        now_ms = self._jobs.clock.now_ms()
        moves = [self._jobs.placed(job, expected=0, now_ms=now_ms, message_id=add_of(job.nonce)) for job in jobs]
        outcomes = await self._jobs.move_many(moves, until_s=until_s)
        return [
            outcome
            if isinstance(outcome, StreamError) and not isinstance(outcome, RevisionConflict)
            else isinstance(outcome, int)
            for outcome in outcomes
        ]

    def _is_remembered(self, first: FirstTry) -> bool:
        """Return whether the server still knows the message id of a first try, if that was stored."""
        connection = self._jobs.connection
        is_same = first.memory == connection.memory or first.age_s <= connection.memory_age_s
        return first.age_s <= LONGEST_AGE_S and is_same

    async def _first_ones(self, jobs: Sequence[JobRecord]) -> dict[tuple[str, str], Found]:
        if self._jobs.connection.is_clustered:
            return {}  # the server that is asked may be a moment behind
        try:
            return await self._reads.find_many([(job.topic, token_of(job.id)) for job in jobs])
        except StreamError:
            return {}  # then each is asked for alone

    async def _second_one(
        self,
        job: JobRecord,
        policy: OnSame,
        found: Found | None,
        until_s: float,
        *,
        is_new: bool = True,
        first_seq: int = 0,
    ) -> Stored | Clash | StreamError:
        """Decide on a job whose id is taken. It may be free, or taken by another, by the time that we act. `is_new`:
        no earlier try of it can have been stored and forgotten. `first_seq`: where an earlier try was stored, 0: none
        was."""
        answer: Stored | StreamError | None = None
        has_waited, taken_back = False, 0
        for pause_s in PAUSES_S:
            await anyio.sleep(pause_s)
            try:
                found = found or await self._reads.find_key(job.topic, token_of(job.id))
                if found and found.job and has_made(job.nonce, found.job):
                    if found.job.past and not has_waited:  # it took a place, and that try may look whether it keeps it
                        has_waited = True
                        if found.stored_ms > self._jobs.clock.now_ms() - LOOKED_MS:
                            await anyio.sleep(2 * NEAR_MS / 1000)
                            found = None
                            continue
                    return await self._made_before(job, found)
                is_known = bool(found and found.known and is_in_past(found.known, job.nonce))
                if first_seq and not is_known and await self._is_closed(job):
                    why = "another try of this add was refused, or taken back, meanwhile"
                    return OutcomeUnknown(why, subject=job.id)
                if first_seq or is_known:
                    return await self._ended_before(job, policy, found, first_seq)
                if not is_new:
                    return OutcomeUnknown("the server was started anew since it was tried first", subject=job.id)
                is_back = found is not None and await self._reads.is_over(found)
                if not is_back and (refusal := _refusal(job, policy, found)) is not None:
                    if found and isinstance(refusal, Stored) and await self._make_ready(found):
                        found = None
                        continue
                    first_seq = await self._close(job, until_s) if job.trace_s else 0
                    if not first_seq:
                        return refusal
                    found = None
                    continue
                if found is None or not await self._reads.until_fired(found):
                    answer = await self._take_place(job, found, until_s, taken_back)
                    taken_back += isinstance(answer, TakenBack)
                    if not isinstance(answer, RevisionConflict):
                        return answer
                    first_seq = _first_seq(answer)
            except StreamError as error:
                is_certain = answer is None and is_new and not first_seq
                return error if is_certain else OutcomeUnknown(str(error), subject=job.id)
            found = None
        if isinstance(answer, RevisionConflict) and not answer.is_after_retry:
            return answer
        return OutcomeUnknown("its id keeps changing hands", subject=job.id)

    async def _made_before(self, job: JobRecord, found: Found) -> Stored:
        """Return the answer to a repeat of the add that made the job that is there."""
        if has_replaced := found.known is not None and found.known.past != ():
            await self._remove_ready(job, found.seq)
        is_same = _is_same(job, found) is not False
        return replace(_kept(job, found), is_new=True, is_same=is_same, has_replaced=has_replaced)

    async def _ended_before(self, job: JobRecord, policy: OnSame, found: Found | None, first_seq: int) -> Stored:
        """Return the answer to a repeat of the add whose job has ended."""
        is_same = not (found and found.known and had_another_body(found.known, job.nonce))
        if has_replaced := policy == "replace":
            await self._remove_ready(job, first_seq or (found.seq if found else 0))
        return Stored(job.id, token_of(job.id), "done", 0, 0, is_same=is_same, has_replaced=has_replaced)

    async def _remove_ready(self, job: JobRecord, before_seq: int) -> None:
        """Remove what the earlier try of an add that took a job's place left to be handed out, if it died over that."""
        stream = self._jobs.stream(job.topic)
        for token in READY_TOKENS.values():
            subject = self._jobs.subject(token, job.topic, token_of(job.id))
            await purge_subject(self._jobs.connection, stream, subject, before_seq=before_seq)

    async def _close(self, job: JobRecord, until_s: float) -> int:
        """Have the server know the nonce of an add that is refused, so that no other try of it, still on its way, makes
        the job when its id is free. Return where one has made it, 0 if none has."""
        subject = self._jobs.refused(job)
        move = Move(subject, b"", subject, 0, ttl_s=TRACE_MS // 1000, message_id=add_of(job.nonce))
        outcome = await self._jobs.move(move, until_s=until_s)
        if isinstance(outcome, StreamError) and not isinstance(outcome, RevisionConflict):
            raise outcome
        first_seq = _first_seq(outcome)
        return 0 if not first_seq or await self._is_closed(job) else first_seq

    async def _is_closed(self, job: JobRecord) -> bool:
        return await self._jobs.last_one(self._jobs.refused(job)) is not None

    async def _take_place(
        self, job: JobRecord, found: Found | None, until_s: float, taken_back: int
    ) -> Stored | StreamError:
        """Store a job in place of another, if that is still as it was found. `taken_back`: how often this try was
        stored and taken back. The server knows the message id of each."""
        now_ms = self._jobs.clock.now_ms()
        if found is not None and found.known is not None:
            past = dict((*job.past, *voided(past_of(found.known, now_ms=now_ms), found.known, now_ms=now_ms)))
            job = replace(job, past=tuple(past.items())[:MOST_PAST])
        is_ready = found is not None and found.state == "ready"
        if is_ready:
            job = replace(job, due_ms=max(job.due_ms, now_ms + SOON_MS))
        move = self._jobs.placed(
            job,
            expected=found.seq if found else 0,
            now_ms=now_ms,
            leaves=found.schedule if found else "",
            fires_ms=found.fires_ms if found else 0,
            message_id=add_of(job.nonce) + (f"-{taken_back}" if taken_back else ""),
        )
        seq = await self._jobs.move(move, until_s=until_s)
        if isinstance(seq, StreamError):
            return seq
        reach("job.replace")
        if found is not None and found.state == "delayed" and move.due_ms:
            seq = await self._where_timers_look(job, move, seq)
        is_end = found is not None and found.subject == self._jobs.subject("done", job.topic, found.key)
        if found is not None and (is_ready or is_end):
            try:  # what was ready, or is remembered, does not go by itself
                # A record of an end that came back would keep the new job from running (ADR 35).
                stream = self._jobs.stream(job.topic)
                await delete_entries(self._jobs.connection, stream, [found.seq], erase=is_end)
            except StreamError as error:
                return OutcomeUnknown(f"stored, but the one before is still there: {error}", subject=job.id)
        return replace(_stored(job, move, seq), has_replaced=found is not None and found.job is not None)

    async def _make_ready(self, found: Found) -> bool:
        """Make a job ready that the server did not fire in time, and will not (ADR 35), since who hears that it is kept
        relies on its run. Return whether it has moved."""
        if found.job is None or not self._reads.is_overdue(found):
            return False
        now_ms = self._jobs.clock.now_ms()
        move = self._jobs.placed(
            found.job, expected=found.seq, now_ms=now_ms, leaves=found.subject, fires_ms=found.fires_ms
        )
        return isinstance(await self._jobs.move(move), int | RevisionConflict)

    async def _where_timers_look(self, job: JobRecord, move: Move, seq: int) -> int:
        """Move a job that replaced a delayed one to `delayed`, where it could not go at once. Return its sequence. The
        job is stored already: if this fails, the server fires it in time, or another node has moved it on."""
        now_ms = self._jobs.clock.now_ms()
        if move.subject == self._jobs.subject("delayed", job.topic, token_of(job.id)) or job.due_ms <= now_ms:
            return seq
        again = self._jobs.placed(job, expected=seq, now_ms=now_ms, leaves=move.subject, fires_ms=move.due_ms)
        outcome = await self._jobs.move(again)
        return outcome if isinstance(outcome, int) else seq


async def _by_id(decisions: Sequence[tuple[JobRecord, _Decide]]) -> list[Stored | Clash | StreamError]:
    """Decide on jobs, those of one id one after the other, and no id waits for others. Return the answers in order."""
    places: dict[tuple[str, str], list[int]] = {}
    for at, (job, _) in enumerate(decisions):
        places.setdefault((job.topic, job.id), []).append(at)
    answers: dict[int, Stored | Clash | StreamError] = {}
    limiter = anyio.Semaphore(AT_ONCE)

    async def decide(some: Sequence[int]) -> None:
        async with limiter:
            for at in some:
                answers[at] = await decisions[at][1]()

    with one_error():
        async with anyio.create_task_group() as tasks:
            for some in places.values():
                tasks.start_soon(decide, some)
    return [answers[at] for at in range(len(decisions))]


def _refusal(job: JobRecord, policy: OnSame, found: Found | None) -> Stored | Clash | None:
    """Return what is answered where the job of this id stands, None where it may be replaced or there is none."""
    if found is None or found.is_free:
        return None
    match on_same_id(policy, found.state, _outcome(found)):
        case "keep":
            return _kept(job, found)
        case "refuse" | "over":
            return _clash(job, found)
        case _:
            return None


def _first_seq(outcome: int | StreamError | Stored) -> int:
    """Return where the server says that an earlier try of an add was stored, 0 if it says nothing of it."""
    return outcome.seq if isinstance(outcome, Repeated) else 0


def _outcome(found: Found) -> Outcome:
    return found.done.outcome if found.done else "finished"


def _stored(job: JobRecord, move: Move, seq: int) -> Stored:
    key = move.subject[move.subject.rindex(".") + 1 :]
    return Stored(job.id, key, "delayed" if move.due_ms else "ready", seq, job.due_ms)


def _is_same(job: JobRecord, found: Found) -> bool | None:
    return None if found.job is None else bytes(found.job.body) == bytes(job.body)


def _kept(job: JobRecord, found: Found) -> Stored:
    due_ms = found.job.due_ms if found.job else 0
    return Stored(job.id, found.key, found.state, found.seq, due_ms, is_new=False, is_same=_is_same(job, found))


def _clash(job: JobRecord, found: Found) -> Clash:
    return Clash(job.id, found.key, found.state, found.job.due_ms if found.job else 0, _is_same(job, found))
