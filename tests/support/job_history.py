"""What a history of jobs is judged by: every call of every caller, and every run, with its answer and its times.

Each add carries a token of its own in the body, so that what is handed out is known by its add, however often an id
comes anew. A call takes effect, if it does, somewhere between its begin and its end; a rule is broken only where it is
broken wherever in between that was. Times are milliseconds of one machine's wall clock, the server's.

Pure: the callers are in history_callers.py, the faults in history_world.py.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from typing import Literal

import msgspec

from actors.jobs.rules.job_rules import STALE_AFTER_MS

What = Literal["add", "run", "finish", "bury", "release", "touch", "delete", "finish by id", "peek", "handled"]
"""`run`: it was handed out, or a handler began. `handled`: a handler came to its end."""
Told = Literal["ok", "kept", "stale", "not found", "not done", "unknown"]
"""`kept`: there is one of this id, and it stands. `not done`: whatever else says that nothing was done."""

MARGIN_MS = 300
"""How much clocks and schedulers may be off, where a rule counts milliseconds. Below the 600 of a mutant."""
LATE_MS = 150
"""As much for the end of a hold, which is known to the millisecond; a late settling is never up to that."""
REPEATED_MS = 500
"""A call that took longer may have been asked again on its way: then `not found` may tell of its own first try."""
FORGOTTEN_MS = 200
"""What a killed server forgets of its consumers, and how late we may have noted the kill."""
LATEST_MS = 120_000
"""So long after its end nothing of a call of unknown outcome is on its way any more."""


class Op(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call and its answer. `token`: of the add, and of what was added where the call is about a run. `attempt`: 0
    where the door does not tell it. `until_ms`: held until then, as told. `delay_ms`: as asked for."""

    what: What
    topic: str
    id: str
    began_ms: int
    ended_ms: int
    told: Told = "ok"
    token: str = ""
    attempt: int = 0
    until_ms: int = 0
    delay_ms: int = 0
    on_same: str = "keep"
    receipt: str = ""
    caller: str = ""
    note: str = ""


class Kill(msgspec.Struct, frozen=True):
    """The only server was killed, or the node that runs under `pid` was killed or stopped."""

    at_ms: int
    pid: int = 0


class Broken(msgspec.Struct, frozen=True):
    """A rule that was broken, by what is shown of the history."""

    rule: str
    shown: tuple[Op, ...]

    def __str__(self) -> str:
        lines = [msgspec.json.encode(op).decode() for op in self.shown]
        return "\n    ".join([f"{self.rule}:", *lines])


def judge(ops: Iterable[Op], *, is_over: bool = True, kills: Sequence[Kill] = ()) -> list[Broken]:
    """Return what is broken. `is_over`: all faults are over, and what was still there was handed out and finished."""
    by_id: defaultdict[tuple[str, str], list[Op]] = defaultdict(list)
    for op in sorted(ops, key=attrgetter("began_ms")):
        by_id[op.topic, op.id].append(op)
    return [broken for history in by_id.values() for broken in _One(history, kills).broken(is_over)]


class _Added:
    """One accepted, refused or doubtful add, and all that is known of it."""

    def __init__(self, add: Op) -> None:
        self.add = add
        self.runs: list[Op] = []
        self.settled: list[Op] = []
        self.seen: list[Op] = []

    @cached_property
    def was_there(self) -> bool:
        return self.add.told == "ok" or bool(self.runs or self.seen)

    @cached_property
    def there_ms(self) -> int:
        """Since when at the latest it was there; for what never was seen, when nothing of it can come any more."""
        sure = [op.ended_ms for op in (*self.runs, *self.seen)]
        if self.add.told == "ok":
            sure.append(self.add.ended_ms)
        return min(sure, default=self.add.ended_ms + LATEST_MS)

    @cached_property
    def own_end(self) -> Op | None:
        """The first settling that ended it for sure."""
        ends = [op for op in self.settled if op.what in ("finish", "bury") and op.told == "ok"]
        return min(ends, key=attrgetter("ended_ms"), default=None)

    @cached_property
    def may_have_ended_ms(self) -> int | None:
        """When it may have ended first by what its holders did."""
        ends = [op for op in self.settled if op.what in ("finish", "bury", "handled") and op.told in ("ok", "unknown")]
        return min((op.began_ms for op in ends), default=None)


class _One:
    """The history of one id of a topic, in order of the begins."""

    def __init__(self, history: Sequence[Op], kills: Sequence[Kill]) -> None:
        self.kills = kills
        self.added = {op.token: _Added(op) for op in history if op.what == "add"}
        by_id = ("delete", "finish by id")
        self.looks = [op for op in history if op.what in ("delete", "peek") and op.told == "not found"]
        self.enders = [
            op
            for op in history
            if op.told in ("ok", "unknown") and (op.what in by_id or (op.what == "add" and op.on_same == "replace"))
        ]
        """What may have ended whatever was there."""
        self.finders = [
            op for op in history if (op.what in by_id and op.told == "ok") or (op.what == "add" and op.told == "kept")
        ]
        """What was told that there was one."""
        self.closers = [op for op in history if op.told == "ok" and op.what in (*by_id, "add")]
        """After these nothing is there any more that was there before: an id is there once."""
        self._first_close: list[Op] = []
        for op in reversed(self.closers):
            last = self._first_close[-1] if self._first_close else op
            self._first_close.append(min(op, last, key=attrgetter("ended_ms")))
        self._first_close.reverse()
        self._closer_begins = [op.began_ms for op in self.closers]
        self._ender_begins = [op.began_ms for op in self.enders]
        self._take_runs(history)

    def _take_runs(self, history: Sequence[Op]) -> None:
        for op in history:
            added = self.added.get(op.token)
            if added is None or op.what == "add":
                continue
            if op.what == "run":
                added.runs.append(op)
            elif op.what == "peek":
                added.seen.append(op)
            else:
                added.settled.append(op)

    # ---- what is known

    def over(self, added: _Added) -> Op | None:
        """Return the call after whose answer this job was over for sure."""
        at = bisect_right(self._closer_begins, added.there_ms)
        ends = [self._first_close[at]] if at < len(self._first_close) else []
        if added.own_end:
            ends.append(added.own_end)
        return min(ends, key=attrgetter("ended_ms"), default=None)

    def ended_by_another_from_ms(self, added: _Added) -> int | None:
        """Return when at the earliest somebody may have ended this job by its id."""
        over = self.over(added)
        to_ms = over.ended_ms if over else added.there_ms + 10**12
        first = bisect_left(self._ender_begins, added.add.began_ms - 2 * LATEST_MS)
        for op in self.enders[first:]:
            if op.began_ms > to_ms:
                break
            latest_ms = op.ended_ms + (LATEST_MS if op.told == "unknown" else 0)
            if latest_ms >= added.add.began_ms and op is not added.add:
                return op.began_ms
        return None

    def may_have_ended_by(self, added: _Added, moment_ms: int) -> bool:
        moments = (added.may_have_ended_ms, self.ended_by_another_from_ms(added))
        return any(moment is not None and moment <= moment_ms for moment in moments)

    # ---- the rules

    def broken(self, is_over: bool) -> Iterator[Broken]:
        for added in self.added.values():
            yield from _refused_and_done(added)
            yield from _early(added)
            yield from _run_twice(added, self.kills)
            yield from _held_by_two(added)
            yield from _settled_without_hold(added)
            yield from self._back_after_the_end(added)
            yield from self._stale_though_held(added)
            if is_over:
                yield from self._lost(added)
        yield from self._found_and_not_there()
        yield from self._not_found_and_there()

    def _back_after_the_end(self, added: _Added) -> Iterator[Broken]:
        """Nothing is handed out, shown or settled after its acknowledged end."""
        over = self.over(added)
        if over is None:
            return
        for op in (*added.runs, *added.seen):
            if op.began_ms > over.ended_ms:
                rule = "handed out after its end" if op.what == "run" else "there after its end"
                yield Broken(rule, (added.add, over, op))
        for op in added.settled:
            is_repeat = (op.what, op.receipt) == (over.what, over.receipt)
            if op.told == "ok" and op.what != "handled" and op.began_ms > over.ended_ms and not is_repeat:
                yield Broken("settled after its end", (added.add, over, op))

    def _stale_though_held(self, added: _Added) -> Iterator[Broken]:
        for op in added.settled:
            if op.told != "stale":
                continue
            run = next((run for run in added.runs if run.receipt == op.receipt), None)
            given_back = any(
                other.receipt == op.receipt and other is not op and other.what in ("release", "touch")
                for other in added.settled
                if other.began_ms <= op.ended_ms
            )
            if run is None or given_back or op.ended_ms > run.until_ms - MARGIN_MS:
                continue
            if not self.may_have_ended_by(added, op.ended_ms):
                yield Broken("told stale while it held", (added.add, run, op))

    def _lost(self, added: _Added) -> Iterator[Broken]:
        """What was accepted is there until somebody ends it."""
        if added.was_there and added.may_have_ended_ms is None and self.ended_by_another_from_ms(added) is None:
            yield Broken("lost", (added.add, *added.runs, *added.settled))

    def _found_and_not_there(self) -> Iterator[Broken]:
        """Who is told that there was one, or that he has ended it, is told so of one that may have been there."""
        everyone = list(self.added.values())
        begins = [added.add.began_ms for added in everyone]
        for op in self.finders:
            before = reversed(everyone[: bisect_right(begins, op.ended_ms)])
            if not any(self._may_be_there(added, op) for added in before if added.add is not op):
                yield Broken("told of one, and none was there", (op,))

    def _may_be_there(self, added: _Added, op: Op) -> bool:
        if added.add.told in ("kept", "not done") and not added.was_there:
            return False
        over = self.over(added)
        return over is None or over is op or over.ended_ms >= op.began_ms

    def _not_found_and_there(self) -> Iterator[Broken]:
        everyone = sorted((one for one in self.added.values() if one.was_there), key=attrgetter("there_ms"))
        theres = [added.there_ms for added in everyone]
        for op in self.looks:
            if op.ended_ms - op.began_ms > REPEATED_MS:
                continue
            for added in reversed(everyone[: bisect_left(theres, op.began_ms)]):
                over = self.over(added)
                if over is not None and over.began_ms < op.began_ms:
                    break  # and so are those before it
                if not self.may_have_ended_by(added, op.ended_ms):
                    yield Broken("not found, and it was there", (added.add, op))


def _refused_and_done(added: _Added) -> Iterator[Broken]:
    """What was told "not done" was not done."""
    if added.add.told not in ("ok", "unknown") and added.was_there:
        yield Broken("told not done, and it was done", (added.add, *added.runs[:1], *added.seen[:1]))


def _early(added: _Added) -> Iterator[Broken]:
    """Nothing is handed out before it is due, at first and after a release."""
    waits = [(added.add, run) for run in added.runs]
    releases = [op for op in added.settled if op.what == "release" and op.told == "ok"]
    waits += [(op, run) for op in releases for run in added.runs if run.attempt > op.attempt]
    for wait, run in waits:
        if run.ended_ms < wait.began_ms + wait.delay_ms - MARGIN_MS:
            yield Broken("handed out before it was due", (wait, run))


def _run_twice(added: _Added, kills: Sequence[Kill]) -> Iterator[Broken]:
    """One add is one job: each of its runs is another attempt."""
    first: dict[int, Op] = {}
    for run in added.runs:
        if run.attempt and run.attempt in first and not _nobody_knew(first[run.attempt], run, kills):
            yield Broken("two runs of the same attempt", (added.add, first[run.attempt], run))
        first.setdefault(run.attempt, run)


def _nobody_knew(first: Op, second: Op, kills: Sequence[Kill]) -> bool:
    """Return whether the server was killed just as it handed out a job, and the node that had it was killed or
    stopped before it could tell anybody (ADR 32)."""
    server = any(not kill.pid and abs(kill.at_ms - first.began_ms) <= FORGOTTEN_MS for kill in kills)
    node = any(f"{kill.pid}" == first.receipt and first.began_ms <= kill.at_ms <= second.began_ms for kill in kills)
    return server and node


def _held_by_two(added: _Added) -> Iterator[Broken]:
    """Nobody gets what another holds: by what was told of his hold, at first or by a touch, to its end."""
    gave_up: dict[str, int] = {}
    for op in added.settled:
        if op.what != "touch" and op.told in ("ok", "unknown"):
            gave_up.setdefault(op.receipt, op.began_ms)
    holds = [
        op for op in (*added.runs, *added.settled) if op.until_ms and op.what in ("run", "touch") and op.told == "ok"
    ]
    for hold in holds:
        for run in added.runs:
            is_later = run.attempt > hold.attempt and run.ended_ms < hold.until_ms - MARGIN_MS
            if is_later and run.ended_ms < gave_up.get(hold.receipt, run.ended_ms + 1):
                yield Broken("handed out while another held it", (added.add, hold, run))


def _settled_without_hold(added: _Added) -> Iterator[Broken]:
    """No settling is accepted that does not hold: of an earlier run, after a release, after the end of the hold."""
    for op in added.settled:
        if op.told != "ok" or op.what == "handled":
            continue
        mine = [
            one for one in (*added.runs, *added.settled) if one.receipt == op.receipt and one.began_ms <= op.began_ms
        ]
        until_ms = max((one.until_ms for one in mine if one.what in ("run", "touch")), default=0)
        is_doubtful = any(one.what == "touch" and one.told == "unknown" for one in mine)
        for run in added.runs:
            if run.attempt > op.attempt and run.ended_ms < op.began_ms:
                yield Broken("settled by an earlier receipt", (added.add, run, op))
        for one in mine:
            if one.what == "release" and one.told == "ok" and one is not op and one.ended_ms < op.began_ms:
                yield Broken("settled after it was given back", (added.add, one, op))
        is_repeat = any(one.what == op.what and one is not op and one.told in ("ok", "unknown") for one in mine)
        is_late = op.began_ms > until_ms + STALE_AFTER_MS + LATE_MS
        if until_ms and is_late and not is_doubtful and not is_repeat:
            yield Broken("settled after its hold", (added.add, *mine[:1], op))
    ends = [op for op in added.settled if op.what in ("finish", "bury") and op.told == "ok"]
    for one, other in combinations(ends, 2):
        if (one.receipt, one.what) != (other.receipt, other.what):
            yield Broken("ended twice", (added.add, one, other))
