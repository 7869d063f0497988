"""What is done to a source as a whole: paused, resumed, rewound, backfilled, removed.

Each is one move of its ledger under compare-and-set, so it may be repeated, and none of them can skip time.
"""

from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from actors.fetch.look_desk import LookView, lengths_for, view_of
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Ledger
from actors.fetch.rules.looks import BadLook, ask_look, look_window
from actors.fetch.settings.levels import LevelName
from actors.fetch.source_import import first_epochs, new_ledger
from actors.fetch.sources import SourceKey
from actors.runtime.rules.setting_values import nearest
from penstock.admin.records import Records
from penstock.errors import UsageError
from penstock.times import time_text
from streams.buckets.bucket import Bucket
from streams.errors import RevisionConflict
from streams.messages.fetch import SourceResumed
from streams.reads.log import purge_subject
from streams.subjects import check_token, kv_stream

__all__ = ["backfill", "cancel_backfill", "look", "make_ledger", "pause", "remove", "resume", "rewind"]


async def pause(records: Records, source: SourceKey, *, reason: str = "") -> tuple[Ledger, bool]:
    """Stop cutting and offering. Slices that are being read may finish. Return the ledger, and whether that changed
    it."""
    await records.need(source)
    return await records.move(source, _changing(lambda ledger: steering.pause(ledger, reason)))


async def resume(records: Records, source: SourceKey, *, by: str) -> tuple[Ledger, bool]:
    """Run on after a pause or a parking. Returns the ledger, and whether that changed it."""
    await records.need(source)
    ledger, is_changed = await records.move(source, _changing(lambda ledger: steering.resume(ledger, records.now_ms())))
    if is_changed:
        event = SourceResumed(platform=source.platform, source=source.source, at_ms=records.now_ms(), by=by)
        await records.tell(event)
    return ledger, is_changed


async def rewind(records: Records, source: SourceKey, to_ms: int) -> Ledger:
    """Read everything from `to_ms` on again, in a new epoch. Without a ledger one is made that begins there."""
    _, ledger = await records.need(source)
    if to_ms > records.now_ms():
        raise UsageError(f"{source}: {time_text(to_ms)} lies in the future; write a moment that has passed")
    if ledger is None:
        return await make_ledger(records, source, to_ms, is_lost=True)
    if to_ms > ledger.watermark_ms:
        raise UsageError(
            f"{source}: cannot rewind to {time_text(to_ms)}, which lies beyond the watermark "
            f"{time_text(ledger.watermark_ms)}: what is open or given up there would never be read"
        )
    after, _ = await records.move(source, _changing(lambda ledger: steering.rewind(ledger, to_ms)))
    return after


async def backfill(records: Records, source: SourceKey, start_ms: int, end_ms: int, *, name: str = "") -> str:
    """Read a past window once more, beside the live tail and behind it. Return the backfill's name."""
    await records.need(source)
    if end_ms > records.now_ms():
        raise UsageError(f"{source}: the window ends in the future ({time_text(end_ms)}); end it at `now` or earlier")
    called = check_token("backfill", name) if name else f"b-{start_ms}-{end_ms}"
    await records.move(source, _changing(lambda ledger: steering.add_backfill(ledger, called, start_ms, end_ms)))
    return called


async def cancel_backfill(records: Records, source: SourceKey, name: str) -> None:
    """Drop a backfill with its open slices. Its holes stay listed. Raises UsageError if there is none of that name."""
    await records.need(source)
    ledger, is_changed = await records.move(source, _changing(lambda ledger: steering.remove_backfill(ledger, name)))
    if not is_changed:
        known = [each.name for each in ledger.passes if each.kind == "b"]
        hint = nearest(name, known) if known else "none is being read now, and one that has ended is not kept"
        raise UsageError(f"{source}: no backfill is called {name[:64]!a}; {hint}")


async def look(records: Records, source: SourceKey, *, start_ms: int | None, end_ms: int | None) -> LookView:
    """Have a source looked at now. Raises UsageError if that makes no sense."""
    record, ledger = await records.need(source)
    if record is None or ledger is None:
        raise UsageError(f"{source} is not read: it has no {'record' if record is None else 'ledger'}")
    declared = (await records.adapter(record.adapter)).declaration
    lengths, now_ms = lengths_for(declared, await records.settings_of(source)), records.now_ms()

    def move(ledger: Ledger) -> tuple[Ledger, LookView]:
        window = look_window(ledger, start_ms, end_ms, now_ms)
        after = ask_look(ledger, window)
        return after, view_of(source, after, window, lengths, now_ms, is_new=after is not ledger)

    try:
        return await records.move(source, move)
    except BadLook as error:
        raise UsageError(f"{source}: {error}") from error


async def remove(records: Records, source: SourceKey, *, keeps_ledger: bool) -> None:
    """Remove a source: its record first, so that nothing new is cut, then its offers, settings, ledger, and what later
    readings would compare with. A source that somebody adds at the same moment keeps its settings and ledger."""
    await records.settings.delete(f"source.{source.key}")
    offers = records.namespace.pattern("slices", source.platform, "*", source.source, ">")
    await purge_subject(records.connection, records.namespace.stream("SLICES"), offers)
    if not keeps_ledger:
        level = LevelName(source.platform, source.source).key
        parts = [(records.settings, level), (records.ledgers, source.key)]
        taken = [(held, key, await _take_away(held, key)) for held, key in parts]
        if await records.settings.get(f"source.{source.key}") is not None:
            for held, key, value in taken:
                with suppress(RevisionConflict):  # who added it has made it again
                    if value is not None:
                        await held.create(key, value)
            return
        bucket = records.namespace.bucket("DIGESTS")
        for kept in (f"{source.key}.>", f"login.{source.key}"):
            await purge_subject(records.connection, kv_stream(bucket), f"$KV.{bucket}.{kept}")


async def _take_away(bucket: Bucket[bytes], key: str) -> bytes | None:
    """Delete a key, and return what it held."""
    while (entry := await bucket.get(key)) is not None:
        with suppress(RevisionConflict):  # it has another value now
            await bucket.delete(key, revision=entry.revision)
            return entry.value
    return None


async def make_ledger(
    records: Records, source: SourceKey, start_ms: int, *, is_paused: bool = False, is_lost: bool = False
) -> Ledger:
    """Make the first ledger of a source, or one in place of a lost one: then readings before it count."""
    epochs = await first_epochs(records.connection, [source])
    ledger = new_ledger(start_ms, records.now_ms(), epoch=epochs.get(source, 1), is_paused=is_paused)
    ledger = replace(ledger, made_fence=0) if is_lost else ledger
    try:
        await records.create_ledger(source, ledger)
    except RevisionConflict:
        return await records.ledger(source) or ledger  # somebody else made it, and theirs stands
    return ledger


def _changing(move: Callable[[Ledger], Ledger]) -> Callable[[Ledger], tuple[Ledger, tuple[Ledger, bool]]]:
    """Return a move that also tells whether it changed anything."""

    def changed(ledger: Ledger) -> tuple[Ledger, tuple[Ledger, bool]]:
        after = move(ledger)
        return after, (after, after is not ledger)

    return changed
