"""The existing flows: their settings and their progress, in FLOWS, followed live.

An application that serves a flow writes its settings when it starts, and again when its code changes. What a person set
stays, so that a restart does not undo it: the record has the settings in force (`limits`) and those of the code
(`declared`). The rate and the pause of a flow are settings of the topic of its rows (`rows_topic`), since job handlers
take the rows. `<flow>` is a flow's record, `<flow>.round` its progress.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from anyio.abc import TaskStatus
from msgspec import Meta, Struct

from actors.flow.rules.groups import check_groups
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.rules.bounds import read_bound
from actors.runtime.rules.setting_values import near_or
from actors.runtime.rules.slot_keys import check_path
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.errors import MalformedMessage

log = logging.getLogger(__name__)

SHORTEST_EVERY_MS, LONGEST_EVERY_MS = 1_000, 86_400_000
LONGEST_LOAD_MS = 30_000
"""What a loader read longer ago is not put in flight any more: a row of it may have ended since. Records of earlier
versions may have more, up to `STORED_LOAD_MS`."""
STORED_LOAD_MS = 3_600_000
MOST_PROGRESS = 900_000
"""Bytes of the progress as it is stored. The server takes a mebibyte."""
MOST_PAST = 20
"""Rounds of which the progress tells."""
LONGEST_FLOW = 50
"""Characters of a flow's key: it is a part of two topics."""

Span = Annotated[int, Meta(ge=0, le=LONGEST_EVERY_MS)]
Every = Annotated[int, Meta(ge=SHORTEST_EVERY_MS, le=LONGEST_EVERY_MS)]


class FlowLimits(Struct, frozen=True, kw_only=True):
    """`every_ms` and `longest_ms`: the bounds of the interval between two rounds. Equal: it does not change. `lead_ms`:
    for how long rows are in flight beyond the interval. `most_in_flight`: rows that are loaded at most. `groups`: which
    groups of nodes load which part of the shards. Empty: any node loads any shard. `load_timeout_ms`: of one shard.
    `zone`: where all of the flow runs (actors/runtime/rules/bounds.py). Empty: anywhere. `region_key`: where the key by
    which a row finds its shard of the map is in the row. A row of another zone's shard is left out."""

    every_ms: Every = 5_000
    longest_ms: Every = 5_000
    lead_ms: Span = 4_000
    most_in_flight: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    groups: dict[str, float | str] = {}
    load_timeout_ms: Annotated[int, Meta(ge=100, le=STORED_LOAD_MS)] = 10_000
    zone: str = ""
    region_key: str = ""


class FlowRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All facts about a flow. `declared_rate`: rows a second as the code says it."""

    flow: str
    app: str = ""
    limits: FlowLimits = FlowLimits()
    declared: FlowLimits | None = None
    declared_rate: float = 0.0
    declared_attempts: int = 0


class ShardState(Struct, frozen=True, array_like=True, omit_defaults=True):
    """`after`: the key that was read last. `busy_ms`: until when a load that did not answer may go on. `has_failed`:
    whether the last load has."""

    after: str = ""
    busy_ms: int = 0
    has_failed: bool = False


class RoundReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one round did. Rows: `in_flight` before it, `target` to be in flight after it, `asked` for, `new`, and
    `known` (read, and in flight before). Shards: `shards` in all, `short` ones, `failed` ones, ones that did not answer
    in time (`silent`), and `alone`, for which no node lives. `errors`: some of them."""

    began_ms: int
    took_ms: int = 0
    every_ms: int = 0
    in_flight: int = 0
    target: int = 0
    asked: int = 0
    new: int = 0
    known: int = 0
    shards: int = 0
    short: int = 0
    failed: int = 0
    silent: int = 0
    alone: int = 0
    errors: tuple[str, ...] = ()


class FlowProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a flow is. `first`: the number of the shard that gets the next remainder. `least`: for how many rows a
    shard is asked at least, while there are others to ask later. `every_ms`: the interval now. `names`: of the shards
    that `split` named last. Empty: none yet, or too many to store. `rounds`: the latest ones, the oldest first."""

    first: int = 0
    least: Annotated[int, Meta(ge=1)] = 1
    every_ms: int = 0
    names: tuple[str, ...] = ()
    shards: dict[str, ShardState] = {}
    rounds: tuple[RoundReport, ...] = ()


class UnknownFlow(Exception):
    """No application has declared this flow. The text names the nearest one of `known`, if one is near."""

    def __init__(self, flow: str, known: Iterable[str] = ()) -> None:
        self.flow = flow
        hint = near_or(flow, known, "start the application that serves it, or see `penstock flows list`")
        super().__init__(f"no flow {flow[:80]!a}; {hint}")


class BadFlow(ValueError):
    """A setting of a flow that is refused. The text says which, and what to do."""


def rows_topic(flow: str) -> str:
    """Return the topic of the jobs that a flow's rows are."""
    return f"flow-rows-{flow}"


def rounds_topic(flow: str) -> str:
    """Return the topic whose jobs are a flow's rounds."""
    return f"flow-rounds-{flow}"


def checked_limits(values: Mapping[str, object], limits: FlowLimits) -> FlowLimits:
    """Return the limits with these values. Raises BadFlow."""
    try:
        made = msgspec.convert({**msgspec.to_builtins(limits), **values}, FlowLimits)
        made = msgspec.structs.replace(made, groups=check_groups(made.groups), zone=read_bound("zone", made.zone))
        check_path("region_key", made.region_key)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadFlow(f"{', '.join(values)}: {error}") from error
    if made.load_timeout_ms > LONGEST_LOAD_MS:
        raise BadFlow(f"load_timeout: {made.load_timeout_ms} ms is too long; use at most {LONGEST_LOAD_MS} ms")
    if made.longest_ms < made.every_ms:
        raise BadFlow(f"longest: {made.longest_ms} ms is shorter than every, {made.every_ms} ms; lengthen it")
    return made


def interval_ms(limits: FlowLimits, every_ms: int) -> int:
    """Return the interval within the bounds. `every_ms`: as it was last, 0 if there was none."""
    return min(max(every_ms, limits.every_ms), limits.longest_ms)


def fitting(progress: FlowProgress, most: int = MOST_PROGRESS) -> FlowProgress:
    """Return the progress as it can be stored. If it is too long, the state of the shards with the longest keys is left
    out, and they begin at their start again."""
    over = len(msgspec.json.encode(progress)) - most
    if over <= 0:
        return progress
    shards = dict(progress.shards)
    for shard, state in sorted(shards.items(), key=lambda each: len(each[1].after), reverse=True):
        if over <= 0:
            break
        over -= len(msgspec.json.encode({shard: state})) - 1
        del shards[shard]
    log.warning("flow.progress_too_long", extra=fields(left_out=len(progress.shards) - len(shards), most_bytes=most))
    return msgspec.structs.replace(progress, shards=shards)


def _settings(record: FlowRecord | FlowProgress) -> Mapping[str, object]:
    return msgspec.structs.asdict(record.limits) if isinstance(record, FlowRecord) else {}


def _record_of(entry: Entry[bytes]) -> FlowRecord | FlowProgress:
    try:
        if entry.key.endswith(".round"):
            return msgspec.json.decode(entry.raw, type=FlowProgress)
        record = msgspec.json.decode(entry.raw, type=FlowRecord)
        declared = record.declared and _loading_in_time(record.declared)
        return msgspec.structs.replace(record, limits=_loading_in_time(record.limits), declared=declared)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no record of a flow: {error}") from error


def _loading_in_time(limits: FlowLimits) -> FlowLimits:
    return msgspec.structs.replace(limits, load_timeout_ms=min(limits.load_timeout_ms, LONGEST_LOAD_MS))


def _declared(record: FlowRecord, before: FlowRecord | None) -> FlowRecord:
    """Return the record to store. Settings that a person set stay."""
    limits = record.limits
    if before is not None and before.declared is not None:
        names = FlowLimits.__struct_fields__
        by_hand = {name for name in names if getattr(before.limits, name) != getattr(before.declared, name)}
        limits = msgspec.structs.replace(limits, **{name: getattr(before.limits, name) for name in by_hand})
    return msgspec.structs.replace(record, declared=record.limits, limits=limits)


class Flows:
    """A live view of the flows. `current` is cheap at any time."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._bucket = bucket
        self._live = Live(
            bucket,
            _record_of,
            unreadable="flow.unreadable",
            keeps_last=True,
            changed="flow.settings",
            settings=_settings,
        )

    def current(self, flow: str) -> FlowRecord:
        """Return a flow's record as last seen. Raises UnknownFlow."""
        record = self._live.get(flow)
        if not isinstance(record, FlowRecord):
            raise UnknownFlow(flow)
        return record

    def named(self, flow: str) -> FlowRecord:
        """Do as `current` for somebody who wrote the name: the error names the nearest one."""
        if not isinstance(self._live.get(flow), FlowRecord):
            raise UnknownFlow(flow, self.known())
        return self.current(flow)

    def progress(self, flow: str) -> FlowProgress:
        """Return a flow's progress as last seen."""
        progress = self._live.get(f"{flow}.round")
        return progress if isinstance(progress, FlowProgress) else FlowProgress()

    def known(self) -> tuple[str, ...]:
        """Return the keys of all flows."""
        return tuple(sorted(key for key, record in self._live.items() if isinstance(record, FlowRecord)))

    def in_flight(self) -> Iterator[tuple[str, int]]:
        """Yield each flow with its rows in flight, as its last round found them."""
        for flow in self.known():
            yield from ((flow, last.in_flight) for last in self.progress(flow).rounds[-1:])

    def bound_of(self, flow: str) -> str:
        """Return where a flow may run."""
        record = self._live.get(flow)
        return record.limits.zone if isinstance(record, FlowRecord) else ""

    def revision_of(self, flow: str) -> int:
        """Return the revision of a flow's record. 0: there is none."""
        return self._live.revision(flow)

    @property
    def seen(self) -> int:
        """The revision of the last record that was heard of."""
        return self._live.seen

    def on_change(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the key of each flow that changed or vanished, or has made a round. It must be short."""
        self._live.on_change(lambda key: listener(key.removesuffix(".round")))

    async def refresh(self, *flows: str) -> None:
        """Take what is stored now, of all flows or of these. Raises NoStream, Disconnected."""
        await self._live.refresh(*(key for flow in flows for key in (flow, f"{flow}.round")))

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the bucket until cancelled. Started once all present records are known."""
        await self._live.run(task_status=task_status)

    async def declare(self, record: FlowRecord) -> FlowRecord | None:
        """Store an application's declaration of its flow, and return the record before. What a person set stays."""

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, tuple[FlowRecord, FlowRecord | None]]:
            before = None
            if entry is not None:
                try:
                    found = _record_of(entry)
                    before = found if isinstance(found, FlowRecord) else None
                except MalformedMessage as error:
                    log.warning("flow.unreadable", extra=fields(key=record.flow, error=str(error)))
            after = _declared(record, before)
            raw = msgspec.json.encode(after)
            return (None if entry is not None and entry.raw == raw else raw), (after, before)

        (stored, before), revision = await self._bucket.update(record.flow, change)
        self._live.learn(record.flow, stored, revision)
        return before

    async def limit(self, flow: str, change: Callable[[FlowLimits], FlowLimits], mark: str = "") -> FlowRecord:
        """Change a flow's present limits, unless the call of this mark has done so (streams/calls.py). Raises
        UnknownFlow, MalformedMessage, RevisionConflict."""

        def limited(entry: Entry[bytes] | None) -> tuple[bytes | None, FlowRecord]:
            found = None if entry is None else _record_of(entry)
            if not isinstance(found, FlowRecord):
                raise UnknownFlow(flow)
            if entry is not None and mark in entry.calls:
                return None, found
            record = msgspec.structs.replace(found, limits=change(found.limits))
            return msgspec.json.encode(record), record

        record, revision = await self._bucket.update(flow, limited, mark=mark)
        self._live.learn(flow, record, revision)
        return record

    async def note(self, flow: str, progress: FlowProgress, left_alone: Collection[str] = ()) -> None:
        """Store a flow's progress. Rounds seldom meet, and the later one counts. What others did meanwhile stays among
        the rounds. `left_alone`: shards that the round did not ask, since they were loading. They keep what is stored
        of them."""

        def change(entry: Entry[bytes] | None) -> tuple[bytes, FlowProgress]:
            stored = _progress_of(entry)
            kept = {shard: stored.shards[shard] for shard in left_alone if shard in stored.shards}
            others = {shard: state for shard, state in progress.shards.items() if shard not in left_alone}
            rounds = _in_order((*stored.rounds, *progress.rounds))
            made = fitting(msgspec.structs.replace(progress, shards={**others, **kept}, rounds=rounds))
            return msgspec.json.encode(made), made

        made, revision = await self._bucket.update(f"{flow}.round", change)
        self._live.learn(f"{flow}.round", made, revision)

    async def loaded_late(self, flow: str, ended: Mapping[str, ShardState]) -> frozenset[str]:
        """Have the next round ask shards again, whose loads ended after their round. `ended`: up to where each was
        loaded, and whether that failed. Return those that a round has left alone."""

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, tuple[FlowProgress, frozenset[str]]]:
            progress = _progress_of(entry)
            left = {shard for shard in ended if shard in progress.shards and progress.shards[shard].busy_ms}
            if not left:
                return None, (progress, frozenset())
            asked_again = {shard: ended[shard] for shard in left}
            made = fitting(msgspec.structs.replace(progress, shards={**progress.shards, **asked_again}))
            return msgspec.json.encode(made), (made, frozenset(left))

        (made, left), revision = await self._bucket.update(f"{flow}.round", change)
        if left:
            self._live.learn(f"{flow}.round", made, revision)
        return left


def _in_order(rounds: Iterable[RoundReport]) -> tuple[RoundReport, ...]:
    """Return the latest rounds, each once, the oldest first."""
    return tuple(sorted(dict.fromkeys(rounds), key=lambda one: one.began_ms)[-MOST_PAST:])


def _progress_of(entry: Entry[bytes] | None) -> FlowProgress:
    """Return the progress as stored. What cannot be read is none: the next round writes it anew."""
    try:
        found = None if entry is None else _record_of(entry)
    except MalformedMessage:
        found = None
    return found if isinstance(found, FlowProgress) else FlowProgress()
