"""Schedules, as people change and read them: the operations that every door calls. The leading node
(actors/jobs/scheduler.py) does the rest. State: none. Each change is stored by the revision that it was made from.

Under repeats: a change with a nonce that was made before changes nothing, however late it comes, whatever was changed
since. Without one the same add, pause or resume again changes nothing, and so does the same trigger if it names its
moment. A repeated removal finds nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.job_rules import named_nonce
from actors.jobs.rules.schedule_changes import (
    MOST_BACKFILLED,
    backfilled,
    begun,
    is_known,
    is_over,
    marked,
    paused,
    removed,
    resumed,
    triggered,
)
from actors.jobs.rules.schedule_checks import check_schedule, check_wanted
from actors.jobs.rules.schedule_record import Schedule, decode_schedule, names_of
from actors.jobs.rules.schedule_targets import has_target
from actors.jobs.rules.schedule_times import each_due_within, have_same_times, job_of
from actors.jobs.rules.schedule_views import (
    MOST_NEXT,
    ScheduleChanged,
    ScheduleLine,
    ScheduleRemoved,
    ScheduleView,
    Triggered,
    view_of,
)
from actors.runtime.pieces import in_pieces
from actors.runtime.rules.setting_values import nearest
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.clock import Clock
from streams.errors import MalformedMessage
from streams.subjects import check_token

R = TypeVar("R")
READ_AT_ONCE = 100
"""Records that one request reads for a list. A hundred take 5 ms."""
_LEADERS = (
    "last_ms",
    "added_ms",
    "adding",
    "owed",
    "stale",
    "claim_ms",
    "triggered",
    "nonces",
    "backfill",
    "cancelling",
    "buffered_ms",
    "left_out",
    "runs",
    "is_paused",
    "is_removed",
)
"""Fields that the leading node writes, or a person by another operation than an add."""


class ScheduleRefused(ValueError):
    """Nothing was done. The message says what was tried, and what to do. `code`: `not_found`, `exists` or `state`."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


IsShown = Callable[[str], bool]
"""Whether the caller may see what has this name."""


def _is_any(_name: str) -> bool:
    return True


def _accept_none(record: Schedule, _is_shown: IsShown) -> None:
    field = "batch" if record.batch else "source"
    raise BadRecurrence(field, getattr(record, field), "is not known here", "ask a node")


class ScheduleDesk:
    """One desk. `clock` is the server's. Raises BadRecurrence for a wrong value, ScheduleRefused, MalformedSubject, and
    the broker's errors. After many conflicts with other people's changes it raises RevisionConflict, and nothing was
    changed."""

    def __init__(
        self, records: Bucket[bytes], clock: Clock, accept: Callable[[Schedule, IsShown], None] = _accept_none
    ) -> None:
        """`accept` checks the target of a schedule that has one. It raises BadRecurrence, and names no target that is
        not shown."""
        self._records = records
        self._clock = clock
        self._accept = accept

    async def add(
        self,
        topic: str,
        name: str,
        wanted: Schedule,
        *,
        is_replaced: bool = False,
        is_only_changed: bool = False,
        nonce: str = "",
        is_shown: IsShown = _is_any,
    ) -> ScheduleChanged:
        """Store a schedule. The same again changes nothing. Another one of that name is replaced only if asked.
        `is_only_changed`: if there is none of that name, none is added. `is_shown`: which tasks or sources an error may
        name."""
        key = _key(topic, name)
        check_wanted(wanted)
        if has_target(wanted):
            self._accept(wanted, is_shown)
        now_ms, mark = self._clock.now_ms(), _mark("add", nonce, _definition(wanted, wanted.start_ms))

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, tuple[Schedule, bool]]:
            before = None if entry is None else _read(entry)
            if isinstance(before, Schedule) and is_known(before, mark):
                return None, (before, True)
            if is_only_changed and (before is None or (isinstance(before, Schedule) and before.is_removed)):
                return None, (wanted, False)
            if isinstance(before, Schedule) and not before.is_removed:
                if _definition(before, wanted.start_ms) == _definition(wanted, wanted.start_ms):
                    return None, (before, False)
                if not is_replaced:
                    reason = f"{topic}/{name} is there already, and otherwise; replace it, or use another name"
                    raise ScheduleRefused(reason, "exists")
            if isinstance(before, Schedule) and not is_over(before) and has_target(before) != has_target(wanted):
                reason = f"{topic}/{name}: jobs of the first one are in another topic; remove it, and add this one then"
                raise ScheduleRefused(reason, "state")
            if 0 < wanted.at_ms <= now_ms:
                raise BadRecurrence("at_ms", wanted.at_ms, "is past", "give a later moment")
            stored = begun(topic, name, wanted, before if isinstance(before, Schedule) else None, now_ms=now_ms)
            stored = marked(stored, mark, now_ms)
            return msgspec.json.encode(stored), (stored, True)

        (stored, is_changed), _ = await self._records.update(key, change)
        return self._changed(topic, name, stored, is_changed=is_changed)

    async def lines(
        self, topic: str = "", *, after: str = "", is_shown: IsShown = _is_any
    ) -> AsyncIterator[ScheduleLine]:
        """Yield all schedules, or those of a topic, by topic and name, each with its next due time. `after`: only those
        behind this TOPIC/NAME. `is_shown`: only those of such topics. It reads few more than are taken."""
        keys = await self._records.keys(f"{check_token('topic', topic)}.*" if topic else ">")
        wanted = [key for key in sorted(keys, key=_place) if _place(key) > after and is_shown(key.partition(".")[0])]
        for start in range(0, len(wanted), READ_AT_ONCE):
            entries = await self._records.entries_of(wanted[start : start + READ_AT_ONCE])
            for entry in sorted(entries, key=lambda entry: _place(entry.key)):
                it = _read(entry)
                if isinstance(it, str) or not it.is_removed:
                    yield self._view(entry.key, it, 1)

    async def show(self, topic: str, name: str, *, most: int = 5) -> ScheduleView:
        """Return one schedule with its next `most` due times."""
        if not 0 <= most <= MOST_NEXT:
            raise BadRecurrence("most", most, "is out of range", f"use 0 to {MOST_NEXT}")
        it, _ = await self._find(topic, name)
        return self._view(_key(topic, name), it, most)

    async def pause(self, topic: str, name: str, *, nonce: str = "") -> ScheduleChanged:
        """Add no further jobs. A job that was added and is not due yet is removed."""
        now_ms = self._clock.now_ms()
        return await self._move(
            topic,
            name,
            lambda record: record if record.is_paused else paused(topic, name, record, now_ms=now_ms),
            _mark("pause", nonce),
        )

    async def resume(self, topic: str, name: str, *, nonce: str = "") -> ScheduleChanged:
        """Go on from now. Due times within the pause do not count as missed. What was due before it and not added comes
        now, and a job that is due after it, by its jitter, comes then."""
        now_ms = self._clock.now_ms()
        return await self._move(
            topic,
            name,
            lambda record: resumed(topic, name, record, now_ms=now_ms) if record.is_paused else record,
            _mark("resume", nonce),
        )

    async def trigger(self, topic: str, name: str, *, at_ms: int | None = None, nonce: str = "") -> Triggered:
        """Have a job added now, beside the schedule, also during a pause. `nonce`: the same in each repeat of this
        request, and in no other. `at_ms`: the moment that names the job, where a caller has no nonce."""
        now_ms, jobs = self._clock.now_ms(), list[tuple[str, str]]()
        mark = named_nonce(nonce) if nonce else ""

        def move(record: Schedule) -> Schedule:
            after = triggered(record, now_ms=now_ms, at_ms=at_ms, nonce=mark)
            moment_ms = dict(after.nonces).get(mark) or at_ms or after.triggered[-1]
            jobs.append(job_of(topic, name, record, moment_ms))
            return after

        await self._move(topic, name, move)
        job_topic, job_id = jobs[-1]
        return Triggered(topic=job_topic, id=job_id)

    async def backfill(
        self, topic: str, name: str, from_ms: int, to_ms: int | None = None, *, nonce: str = ""
    ) -> ScheduleChanged:
        """Have a job added for each due time of the half-open range, which has passed. Without `to_ms` it ends now."""
        now_ms = self._clock.now_ms()
        end_ms = now_ms if to_ms is None else to_ms
        entry = await self._records.get(_key(topic, name))
        seen = None if entry is None else _read(entry)
        found = list[int]()
        if isinstance(seen, Schedule):
            dues = islice(each_due_within(seen, from_ms - 1, end_ms), MOST_BACKFILLED + 1)
            found = [due_ms async for due_ms in in_pieces(dues)]

        def move(record: Schedule) -> Schedule:
            is_same = isinstance(seen, Schedule) and have_same_times(seen, record)
            return backfilled(record, from_ms, end_ms, now_ms=now_ms, dues=found if is_same else None)

        return await self._move(topic, name, move, _mark("backfill", nonce, (from_ms, to_ms)))

    async def remove(self, topic: str, name: str, *, nonce: str = "") -> ScheduleRemoved:
        """Have the leading node remove it, and its jobs that are not due yet. A record that cannot be followed is
        deleted at once."""
        entry = await self._records.get(_key(topic, name))
        if entry is not None and isinstance(_there(entry), str):
            await self._records.delete(_key(topic, name), revision=entry.revision)
        else:
            now_ms = self._clock.now_ms()
            await self._move(topic, name, lambda record: removed(record, now_ms=now_ms), _mark("remove", nonce))
        return ScheduleRemoved(topic=topic, name=name)

    # ---- one record

    async def _find(self, topic: str, name: str) -> tuple[Schedule | str, int]:
        """Return a record, or why it cannot be followed, and its revision."""
        entry = await self._records.get(_key(topic, name))
        it = _there(entry)
        if entry is None or it is None:
            known = [f"{line.topic}/{line.name}" async for line in self.lines()]
            hint = nearest(f"{topic}/{name}", known) if known else "there is none at all"
            raise ScheduleRefused(f"no schedule {topic}/{name}; {hint}", "not_found")
        return it, entry.revision

    async def _move(
        self, topic: str, name: str, move: Callable[[Schedule], Schedule], mark: str = ""
    ) -> ScheduleChanged:
        """Change one record. `mark`: of a change that is not made a second time."""
        now_ms = self._clock.now_ms()

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, tuple[Schedule, bool]]:
            before = None if entry is None else _read(entry)
            if isinstance(before, Schedule) and is_known(before, mark):
                return None, (before, True)
            it = _there(entry)
            if it is None:
                raise ScheduleRefused(f"no schedule {topic}/{name}; it was removed just now", "not_found")
            if isinstance(it, str):
                raise ScheduleRefused(
                    f"{topic}/{name} cannot be followed: {it}; replace it with a correct one", "state"
                )
            after = move(it)
            is_changed, after = after is not it, marked(after, mark, now_ms)
            return (None if after is it else msgspec.json.encode(after)), (after, is_changed)

        try:
            (after, is_changed), _ = await self._records.update(_key(topic, name), change)
        except ScheduleRefused as refused:
            if refused.code == "not_found":
                await self._find(topic, name)  # its error names the nearest
            raise
        return self._changed(topic, name, after, is_changed=is_changed)

    def _changed(self, topic: str, name: str, record: Schedule, *, is_changed: bool) -> ScheduleChanged:
        return ScheduleChanged(is_changed=is_changed, schedule=self._view(_key(topic, name), record, 3))

    def _view(self, key: str, it: Schedule | str, most: int) -> ScheduleView:
        topic, _, name = key.partition(".")
        if isinstance(it, str):
            return ScheduleView(topic=topic, name=name, fault=it)
        return view_of(topic, name, it, now_ms=self._clock.now_ms(), most=most)


def _key(topic: str, name: str) -> str:
    """Return the key of a schedule. Raises MalformedSubject."""
    return f"{check_token('topic', topic)}.{check_token('name', name)}"


def _place(key: str) -> str:
    """Return a key as people write it: TOPIC/NAME."""
    return "/".join(key.split(".", 1))


def _mark(what: str, nonce: str, asked: object = None) -> str:
    """Return the mark of a change. A trigger has another one of the same nonce, and so has what asks for more."""
    more = () if asked is None else (msgspec.json.encode(asked).decode(),)
    return named_nonce(what, nonce, *more) if nonce else ""


def _read(entry: Entry[bytes]) -> Schedule | str:
    """Return a record, or why it cannot be followed."""
    try:
        names_of(entry.key)
        return check_schedule(decode_schedule(entry.raw))
    except (MalformedMessage, BadRecurrence) as error:
        return str(error)


def _there(entry: Entry[bytes] | None) -> Schedule | str | None:
    """Return what is there, `None` if it is removed or being removed."""
    it = None if entry is None else _read(entry)
    return None if isinstance(it, Schedule) and it.is_removed else it


def _definition(record: Schedule, start_ms: int) -> Schedule:
    """Return the definition alone. Without a start of the person's own, the time of the add is left out."""
    fresh = {name: getattr(Schedule(), name) for name in _LEADERS}
    return replace(record, start_ms=record.start_ms if start_ms else 0, **fresh)
