"""The moments that an instance has to report: its first failure and its end, owed until they are reported.

A move that causes a moment writes it into the record with the same compare-and-set, so that none is lost when a process
dies: it is owed. The conductor that tends the instance reports it, and then records that. A crash in between reports it
again, under the same id. Without a callback a reported moment leaves the record. With one it stays, and holds the state
of the call. Of those that are settled the last few are kept.
"""

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from actors.batch.rules.record import Instance, Moment, MomentName, known_items
from streams.messages.batch import BatchEvent

CallState = Literal["waiting", "taken", "given_up"]
MOST_SETTLED = 20
MAX_INFO = 300


def reach(record: Instance, name: MomentName, now_ms: int) -> Instance:
    """Return the record with one more moment to report, as the record stands now."""
    reason = record.reason or (record.reasons[0] if name == "first_failure" and record.reasons else "")
    moment = Moment(
        name=name,
        pass_no=record.passes,
        at_ms=now_ms,
        counts=record.counts,
        items=known_items(record),
        reason=reason,
    )
    return replace(record, moments=(*_recent(record.moments), moment))


def owed(record: Instance) -> tuple[Moment, ...]:
    """Return the moments that are not reported yet."""
    return tuple(moment for moment in record.moments if moment.state == "owed")


def mark_reported(record: Instance, moments: Collection[Moment]) -> Instance:
    """Record that these moments were reported. One whose call went further meanwhile stays as it is."""
    kept = [
        replace(moment, state="waiting") if moment in moments else moment
        for moment in record.moments
        if moment not in moments or record.callback
    ]
    return record if tuple(kept) == record.moments else replace(record, moments=tuple(kept))


def find(record: Instance, name: str, pass_no: int) -> Moment | None:
    """Return a moment of the record, or None if it is not there, or not any more."""
    return next((each for each in record.moments if (each.name, each.pass_no) == (name, pass_no)), None)


def called(record: Instance, moment: Moment, state: CallState, *, tries: int, info: str = "") -> Instance:
    """Record the state of a call. A call that was taken stays so."""
    now = find(record, moment.name, moment.pass_no)
    if now is None or now.state == "taken":
        return record
    after = replace(now, state=state, tries=tries, info=info[:MAX_INFO])
    if after == now:
        return record
    return replace(record, moments=tuple(after if each is now else each for each in record.moments))


def event_of(record: Instance, moment: Moment) -> BatchEvent:
    """Return the event of a moment, the same each time. Its id holds the time at which the instance was made, since the
    instance's own id may be used again one day."""
    return BatchEvent(
        event_id=f"{record.instance_id}.{record.created_ms}.{moment.pass_no}.{moment.name}",
        event=moment.name,
        instance_id=record.instance_id,
        task=record.task,
        tenant=record.tenant,
        pass_no=moment.pass_no,
        at_ms=moment.at_ms,
        items=moment.items,
        counts=msgspec.structs.asdict(moment.counts),
        reason=moment.reason,
    )


def _recent(moments: Sequence[Moment]) -> list[Moment]:
    """Return the moments without the oldest of those that need no more work."""
    settled = [each for each in moments if each.state in ("taken", "given_up")]
    dropped = settled[: max(0, len(settled) - MOST_SETTLED + 1)]
    return [each for each in moments if each not in dropped]
