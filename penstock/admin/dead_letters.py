"""Dead letters, as people act on them: list, find, drop, and what sending one again means."""

import re
from collections.abc import AsyncIterator, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from actors.fetch.rules.slices import SLICE_ID, MalformedSliceId, parse_slice_id
from actors.fetch.sources import SourceKey
from actors.jobs.dead_letters import ENGINE, job_of
from actors.runtime.resending import Resending
from penstock.admin.records import Records
from penstock.errors import UsageError
from penstock.times import time_text
from streams.errors import MalformedMessage, MalformedSubject
from streams.messages.fetch import DeadLetter, Order, dead_payload, decode_dead_letter, decode_orders
from streams.messages.jobs import JobRecord
from streams.reads.log import LogEntry, delete_entries, entry_at, extent_of, read_log, remove_entries

__all__ = [
    "DeadLetterEntry",
    "Dropped",
    "Filter",
    "dead_letter_at",
    "dead_letters",
    "drop",
    "find",
    "plan",
    "remove",
]


_ELSEWHERE = re.compile(r"message (\d{1,18}) of the stream of orders")
"""The text that a sink writes into a dead letter whose body is too large to carry."""
_ROW = re.compile(rf"(?P<slice>{SLICE_ID.pattern}) of (?P<source>\S+): ", re.ASCII)
"""The start of the reason of a row's dead letter: the slice in which the row was listed, and its source."""

Dropped = Literal["dropped", "gone", "in_doubt"]
"""The result of a drop. `gone`: another call had removed it. `in_doubt`: it is gone, and may have been sent again by
another call at the same time."""


class Filter(NamedTuple):
    """Selects dead letters: of an engine, of one of its names (a platform, a sink, a topic), with a text in their
    reason in any case, stored from one moment on and before another. Empty and 0 select all."""

    engine: str = ""
    name: str = ""
    reason: str = ""
    from_ms: int = 0
    before_ms: int = 0

    def takes(self, letter: "DeadLetterEntry") -> bool:
        """Return whether the filter selects dead letters of this engine and name."""
        is_old_enough = not self.before_ms or letter.stored_ms < self.before_ms
        return is_old_enough and letter.stored_ms >= self.from_ms and self.reason.lower() in letter.why.lower()


class DeadLetterEntry(NamedTuple):
    """A dead letter as it is stored. `letter` is None if it does not decode, and `fault` says why."""

    seq: int
    subject: str
    stored_ms: int
    payload: bytes
    letter: DeadLetter | None
    fault: str = ""

    @property
    def why(self) -> str:
        """The reason of the dead letter."""
        return self.letter.reason if self.letter else f"the letter itself does not decode: {self.fault}"

    @property
    def names(self) -> tuple[str, str, str]:
        """Engine, name and id, from the subject."""
        *_, engine, name, dead_id = self.subject.split(".")
        return engine, name, dead_id


class Redrive(NamedTuple):
    """The dead letter is about a hole: read its window again."""

    source: SourceKey
    slice_id: str


class Send(NamedTuple):
    """It holds an order, or a page of orders: publish it again."""

    orders: Sequence[Order]
    payload: bytes


class SendStored(NamedTuple):
    """It names a message that was too large to carry: `seq` of the stream of orders."""

    seq: int


class Requeue(NamedTuple):
    """It holds a job: add it again, as a new epoch."""

    job: JobRecord


class Resubmit(NamedTuple):
    """It holds a submission that was refused: submit it again."""

    subject: str
    payload: bytes


class Cannot(NamedTuple):
    """There is nothing to send again. The text says why and what to do."""

    why: str


Plan = Redrive | Send | SendStored | Requeue | Resubmit | Cannot


class _Window(Struct, frozen=True):
    """The body of a hole's dead letter. An offer, which is of another type, has the same names."""

    platform: str
    source: str
    slice_id: str
    type: str = ""


def plan(letter: DeadLetter) -> Plan:
    """Return what sending this dead letter again means."""
    if letter.engine == "fetch":
        return _plan_fetch(letter)
    if letter.engine == "sink":
        return _plan_sink(letter)
    if letter.engine == ENGINE:
        return _plan_job(letter)
    if letter.engine == "batch":
        return Resubmit(
            "submit.batch" if letter.name == "batch" else f"submit.batch.{letter.name}", dead_payload(letter)
        )
    if letter.engine == "submit":
        return Resubmit("submit.job" if letter.name == "job" else f"submit.job.{letter.name}", dead_payload(letter))
    return Cannot(f"this version does not know how to send letters of {letter.engine} again")


def _plan_fetch(letter: DeadLetter) -> Plan:
    try:
        window = msgspec.json.decode(dead_payload(letter), type=_Window)
        parse_slice_id(window.slice_id)
    except (msgspec.DecodeError, MalformedSliceId, ValueError):
        window = None
    if (row := _ROW.match(letter.reason)) is not None:
        piece = parse_slice_id(row["slice"])
        times = f"{time_text(piece.start_ms)} {time_text(piece.end_ms)}"
        return Cannot(
            "it is a row that could not be read, and only its beginning is kept; mend the adapter file, have its time "
            f"read again by `penstock sources backfill {row['source']} {times}`, then drop the letter"
        )
    if window is None or window.type:
        return Cannot("it is an offer of a slice, which the ledger makes again by itself; drop the letter")
    return Redrive(SourceKey(window.platform, window.source), window.slice_id)


def _plan_sink(letter: DeadLetter) -> Plan:
    payload = dead_payload(letter)
    elsewhere = _ELSEWHERE.search(letter.reason) if payload == b"null" else None
    if elsewhere is not None:
        return SendStored(int(elsewhere[1]))
    try:
        orders = decode_orders(payload)
    except MalformedMessage as error:
        return Cannot(f"its body is no order ({error}); mend the cause, or drop the letter")
    return Send(orders, payload) if orders else Cannot("it holds no order; drop the letter")


def _plan_job(letter: DeadLetter) -> Plan:
    try:
        return Requeue(job_of(letter))
    except MalformedMessage as error:
        return Cannot(f"its body is no job ({error}); add the job it should have been, and drop the letter")


# ---- reading


async def dead_letters(records: Records, which: Filter, *, after: int = 0) -> AsyncIterator[DeadLetterEntry]:
    """Yield dead letters, oldest first, after the sequence `after`. One page is in memory at a time."""
    tokens = (which.engine or "*", which.name or "*", "*")
    try:
        pattern = records.namespace.pattern("dead", *tokens)
    except MalformedSubject as error:
        raise UsageError(str(error)) from error
    async for entry in _stored(records, pattern, after + 1):
        letter = _letter(entry)
        if which.takes(letter):
            yield letter


async def dead_letter_at(records: Records, seq: int) -> DeadLetterEntry | None:
    """Return the dead letter of a sequence, None if there is none."""
    entry = await entry_at(records.connection, records.namespace.stream("DEAD"), seq)
    return None if entry is None else _letter(entry)


async def _stored(records: Records, pattern: str, start_seq: int = 1) -> AsyncIterator[LogEntry]:
    """Yield the entries that match. Raises OutcomeUnknown while DEAD has no leader: who answers then shows what was."""
    stream = records.namespace.stream("DEAD")
    await extent_of(records.connection, stream)
    async for entry in read_log(records.connection, stream, pattern, start_seq=start_seq):
        yield entry


async def find(records: Records, text: str) -> DeadLetterEntry:
    """Return the dead letter of a sequence, or else of an id (the newest of that id). Raises UsageError if there is
    none."""
    if text.isdecimal() and len(text) < 19 and (letter := await dead_letter_at(records, int(text))) is not None:
        return letter
    try:
        pattern = records.namespace.pattern("dead", "*", "*", text)
    except MalformedSubject as error:
        raise UsageError(f"dead letter {text[:64]!r}: {error}") from error
    found = None
    async for entry in _stored(records, pattern):
        found = entry
    if found is None:
        raise UsageError(f"no dead letter {text[:64]!r}; `penstock dead list` shows their sequences and ids")
    return _letter(found)


def _letter(entry: LogEntry) -> DeadLetterEntry:
    try:
        return DeadLetterEntry(*entry, decode_dead_letter(entry.payload))
    except MalformedMessage as error:
        return DeadLetterEntry(*entry, None, str(error))


async def remove(records: Records, *seqs: int) -> list[bool]:
    """Remove dead letters whose content was sent again. Return for each whether it was there."""
    return await delete_entries(records.connection, records.namespace.stream("DEAD"), seqs)


async def drop(records: Records, *seqs: int) -> list[Dropped]:
    """Remove dead letters for good. Return the result of each. Raises OutcomeUnknown, Disconnected, NoStream, after
    which some may be removed."""
    removed = await remove_entries(records.connection, records.namespace.stream("DEAD"), seqs)
    resent = await Resending(records.session.bucket("LEASES")).seqs() if any(removed) else set[int]()
    return [_dropped(was_there, is_resent=seq in resent) for seq, was_there in zip(seqs, removed, strict=True)]


def _dropped(was_there: bool | None, *, is_resent: bool) -> Dropped:
    if was_there is False:
        return "gone"
    return "in_doubt" if was_there is None or is_resent else "dropped"
