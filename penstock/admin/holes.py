"""Holes, as people act on them: redrive, accept, forget. Also their dead letters."""

from actors.fetch.monitor import hole_dead_letter
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice
from actors.fetch.rules.slices import MalformedSliceId, parse_slice_id
from actors.fetch.sources import SourceKey
from penstock.admin.records import Records
from penstock.errors import UsageError
from streams.messages.fetch import HoleClosed
from streams.reads.log import purge_subject

__all__ = ["accept", "forget", "redrive", "redrive_all"]


async def redrive(records: Records, source: SourceKey, slice_id: str, *, by: str) -> OpenSlice:
    """Have a hole read again, and return the slice that does it. Its dead letter is removed. If the slice fails again,
    it gets another one. Raises UsageError if there is no such hole."""
    hole = await _hole(records, source, slice_id)

    def move(ledger: Ledger) -> tuple[Ledger, OpenSlice | None]:
        return steering.redrive_hole(ledger, slice_id, records.now_ms())

    again = await records.move(source, move)
    if again is None:
        raise _gone(source, slice_id)
    await _close(records, source, [hole], by=by)
    return again


async def redrive_all(records: Records, source: SourceKey, *, by: str) -> list[OpenSlice]:
    """Have all holes of a source read again, in one write. Accepted ones stay as they are."""
    closed: list[Hole] = []

    def move(ledger: Ledger) -> tuple[Ledger, list[OpenSlice]]:
        closed[:] = [hole for hole in ledger.holes if not hole.accepted_by]
        again: list[OpenSlice] = []
        for hole in closed:
            ledger, piece = steering.redrive_hole(ledger, hole.slice_id, records.now_ms())
            again += [piece] if piece is not None else []
        return ledger, again

    opened = await records.move(source, move)
    await _close(records, source, closed, by=by)
    return opened


async def accept(records: Records, source: SourceKey, slice_id: str, *, by: str) -> bool:
    """Let the watermark pass a hole, which stays listed. False if it was accepted before. Raises UsageError if there is
    no such hole."""
    hole = await _hole(records, source, slice_id)
    if hole.accepted_by:
        return False

    def move(ledger: Ledger) -> tuple[Ledger, bool]:
        return steering.accept_hole(ledger, slice_id, by)

    if not await records.move(source, move):
        raise _gone(source, slice_id)
    await records.tell(_closed(source, slice_id, records.now_ms(), by, is_redriven=False))
    return True


async def forget(records: Records, source: SourceKey, slice_id: str) -> None:
    """Take a hole off the list, with its dead letter. Raises UsageError unless it was accepted or held nothing back."""
    hole = await _hole(records, source, slice_id)

    def move(ledger: Ledger) -> tuple[Ledger, bool]:
        return steering.forget_hole(ledger, slice_id)

    if not await records.move(source, move):
        raise UsageError(f"{source}: {slice_id} holds the watermark back; accept it first, or redrive it")
    await _drop_letters(records, source, [hole])


async def _hole(records: Records, source: SourceKey, slice_id: str) -> Hole:
    try:
        parse_slice_id(slice_id)
    except MalformedSliceId as error:
        raise UsageError(f"{error}; `penstock holes list {source}` shows them") from error
    _, ledger = await records.need(source)
    for hole in ledger.holes if ledger else ():
        if hole.slice_id == slice_id:
            return hole
    raise _gone(source, slice_id)


def _gone(source: SourceKey, slice_id: str) -> UsageError:
    return UsageError(f"{source} has no hole {slice_id}; `penstock holes list {source}` shows those it has")


async def _close(records: Records, source: SourceKey, holes: list[Hole], *, by: str) -> None:
    now_ms = records.now_ms()
    await records.tell(*(_closed(source, hole.slice_id, now_ms, by, is_redriven=True) for hole in holes))
    await _drop_letters(records, source, holes)


def _closed(source: SourceKey, slice_id: str, at_ms: int, by: str, *, is_redriven: bool) -> HoleClosed:
    return HoleClosed(
        platform=source.platform, source=source.source, slice_id=slice_id, at_ms=at_ms, by=by, is_redriven=is_redriven
    )


async def _drop_letters(records: Records, source: SourceKey, holes: list[Hole]) -> None:
    stream = records.namespace.stream("DEAD")
    for letter in (hole_dead_letter(source, hole) for hole in holes):
        await purge_subject(records.connection, stream, records.namespace.dead(letter.engine, letter.name, letter.id))
