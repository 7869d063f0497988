"""Sends dead letters again.

A hole: its window is read again. An order: it goes into the stream of orders under a new message id, so that the server
does not take it for a repeat. A job: it is due now, with all its attempts. A submission: it is submitted once more. The
dead letter is removed once that is confirmed. A crash in between sends an order twice, which every sink takes as one
(its version is the same), a job once (its id and history show it), and a submission twice.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from actors.fetch.sources import SourceKey
from actors.jobs.replay import JobReplay
from actors.jobs.store import JobStore
from actors.runtime.resending import Resending
from penstock.admin.dead_letters import (
    Cannot,
    DeadLetterEntry,
    Plan,
    Redrive,
    Requeue,
    Resubmit,
    Send,
    SendStored,
    plan,
    remove,
)
from penstock.admin.holes import redrive
from penstock.admin.records import Records
from penstock.errors import PenstockError
from streams.errors import MalformedMessage, OutcomeUnknown, StreamError
from streams.link.server_clock import ServerClock
from streams.messages.fetch import Order, decode_orders
from streams.messages.ids import message_id, order_message_id
from streams.publish.publisher import Outgoing
from streams.reads.log import LogEntry, entry_at, still_there
from streams.topology.topology import learn_job_streams

__all__ = ["Replayed", "Replayer"]


class Replayed(Struct, frozen=True, omit_defaults=True):
    """The result of one dead letter. If `is_done`, its content was sent, and it is removed from the stream. `is_own`:
    this call removed it. `is_known`: False if it may have been sent all the same."""

    seq: int
    id: str
    is_done: bool
    what: str
    is_own: bool = True
    is_known: bool = True

    @property
    def is_in_doubt(self) -> bool:
        """Whether the content was sent, or may have been, and this call has not removed the dead letter."""
        return not self.is_own if self.is_done else not self.is_known


class Replayer:
    """Sends dead letters again, all but holes many at a time. `by`: the person, for the record."""

    def __init__(self, records: Records, *, by: str) -> None:
        self._records = records
        self._by = by
        self._jobs: JobReplay | None = None
        self._leases = records.session.bucket("LEASES")
        self._resending = Resending(self._leases)

    async def replay(self, letters: Sequence[DeadLetterEntry]) -> list[Replayed]:
        """Send the dead letters again that are still there, and remove those that were sent. Return the result of each.
        One that was gone before has none. Of many who send one at the same time, one removes it. A dead letter that
        cannot be sent stays, and its result says why."""
        key = await self._resending.begin(each.seq for each in letters)
        told = await self._replay(letters)
        await self._resending.end(key, [each.seq for each in told if each.is_in_doubt])
        return told

    async def _replay(self, letters: Sequence[DeadLetterEntry]) -> list[Replayed]:
        letters = await still_there(self._records.connection, self._records.namespace.stream("DEAD"), letters)
        plans = {each.seq: _plan_of(each) for each in letters}
        jobs = [each for each in letters if isinstance(plans[each.seq], Requeue)]
        told = {each.seq: each for each in (await self._requeue(jobs) if jobs else ())}
        told |= {each.seq: each for each in await self._publish(letters, plans)}
        for each in letters:
            match plans[each.seq]:
                case Redrive() | Cannot() as steps:
                    told |= {one.seq: one for one in await self._removed([await self._one(each, steps)])}
        return [told[each.seq] for each in letters if each.seq in told]

    async def _removed(self, told: Sequence[Replayed]) -> list[Replayed]:
        """Remove the letters that are done. Return the results, which say of each whether it was still there."""
        done = [each.seq for each in told if each.is_done]
        were_there = dict(zip(done, await remove(self._records, *done), strict=True))
        return [replace(each, is_own=were_there.get(each.seq, True)) for each in told]

    async def _one(self, letter: DeadLetterEntry, steps: Redrive | Cannot) -> Replayed:
        match steps:
            case Redrive(source=source, slice_id=slice_id):
                try:
                    what = await _redrive(self._records, source, slice_id, self._by)
                except PenstockError as error:
                    return Replayed(letter.seq, letter.names[2], False, str(error))
                return Replayed(letter.seq, letter.names[2], True, what)
            case Cannot(why=why):
                return Replayed(letter.seq, letter.names[2], False, why)

    async def _publish(self, letters: Sequence[DeadLetterEntry], plans: Mapping[int, Plan]) -> list[Replayed]:
        """Publish those that are orders or submissions, one behind the other without waiting, and remove those that
        are stored."""
        told, again = list[Replayed](), list[tuple[DeadLetterEntry, _Again]]()
        for each in letters:
            try:
                message = await _message(self._records, each.seq, plans[each.seq])
            except PenstockError as error:
                told.append(Replayed(each.seq, each.names[2], False, str(error)))
                continue
            if message is not None:
                again.append((each, message))
        messages = [message.outgoing for _, message in again]
        outcomes = await self._records.publisher.try_many(messages) if messages else []
        for (each, message), outcome in zip(again, outcomes, strict=True):
            if isinstance(outcome, StreamError):
                is_known = not isinstance(outcome, OutcomeUnknown)
                told.append(Replayed(each.seq, each.names[2], False, str(outcome), is_known=is_known))
            else:
                told.append(Replayed(each.seq, each.names[2], True, f"{message.what} {outcome.seq}"))
        return await self._removed(told)

    async def _requeue(self, letters: Sequence[DeadLetterEntry]) -> list[Replayed]:
        entries = [LogEntry(each.seq, each.subject, each.stored_ms, each.payload) for each in letters]
        again = await (await self._opened()).send_again(entries)
        return [
            Replayed(
                each.seq,
                each.id,
                each.is_done,
                each.what,
                each.is_own,
                is_known=not isinstance(each.error, OutcomeUnknown),
            )
            for each in again
        ]

    async def _opened(self) -> JobReplay:
        """Return the JobReplay. Jobs are due by the server's clock, so that is measured first."""
        if self._jobs is None:
            connection = self._records.connection
            await learn_job_streams(connection)
            namespace = connection.namespace
            clock = ServerClock(connection, namespace.jobs_streams())
            await clock.measure()
            store = JobStore(connection, self._records.publisher, namespace, clock)
            self._jobs = JobReplay(connection, store, clock, self._leases)
        return self._jobs


def _plan_of(letter: DeadLetterEntry) -> Plan:
    return plan(letter.letter) if letter.letter is not None else Cannot(f"it does not decode ({letter.fault})")


async def _redrive(records: Records, source: SourceKey, slice_id: str, by: str) -> str:
    _, ledger = await records.need(source)
    if ledger is not None and all(hole.slice_id != slice_id for hole in ledger.holes):
        return f"{source} has no hole {slice_id} any more: it was read again, or forgotten"
    again = await redrive(records, source, slice_id, by=by)
    return f"{source}: {again.slice_id} is read again"


class _Again(NamedTuple):
    """A message to be published. `what`: how it is told, in front of its sequence."""

    outgoing: Outgoing
    what: str


async def _message(records: Records, letter_seq: int, steps: Plan) -> _Again | None:
    """Return the message that sends a dead letter again, None if that is no matter of one message."""
    match steps:
        case Send(orders=orders, payload=payload):
            return _orders(records, letter_seq, orders, payload)
        case SendStored(seq=seq):
            return await _stored_orders(records, letter_seq, seq)
        case Resubmit(subject=subject, payload=payload):
            again = message_id("replay", str(letter_seq), subject)
            full = records.namespace.subject(*subject.split("."))
            return _Again(Outgoing(full, payload, again), f"submitted again on {full} as message")
        case _:
            return None


def _orders(records: Records, letter_seq: int, orders: Sequence[Order], payload: bytes) -> _Again:
    first = orders[0]
    again = message_id("replay", str(letter_seq), order_message_id(first))
    subject = records.namespace.orders(first.platform, first.source)
    what = f"order {first.order_key}, version {first.version}" if len(orders) == 1 else f"{len(orders)} orders"
    return _Again(Outgoing(subject, payload, again), f"{what} of {first.platform}/{first.source} sent as message")


async def _stored_orders(records: Records, letter_seq: int, seq: int) -> _Again:
    entry = await entry_at(records.connection, records.namespace.stream("ORDERS"), seq)
    if entry is None:
        raise PenstockError(f"message {seq} of the stream of orders is no longer kept; backfill its window instead")
    try:
        return _orders(records, letter_seq, decode_orders(entry.payload), entry.payload)
    except MalformedMessage as error:
        raise PenstockError(f"message {seq} of the stream of orders is no order: {error}") from error
