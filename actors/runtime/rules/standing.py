"""Troubles that stand until somebody acts: which of them to report now, and when all of them are over. Pure.

All that is new at one look is one report. What was reported is not reported again while it stays as it is.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Trouble(NamedTuple):
    """One of a kind. `mark` rises when it has to be reported again. `text`: in words."""

    mark: int
    text: str


class Reported(NamedTuple):
    """The mark of each trouble of a kind that was reported and still stands. `at_ms`: when the last report was made."""

    marks: Mapping[str, int] = {}
    at_ms: int = 0


class StandingReport(NamedTuple):
    """What to report: the new ones, or (`is_over`) that none is left. Neither: nothing."""

    new: tuple[str, ...] = ()
    is_over: bool = False


def judge(
    reported: Reported, found: Mapping[str, Trouble], *, now_ms: int, again_ms: int = 0
) -> tuple[Reported, StandingReport]:
    """Return what to report of the troubles that are `found` now, and what is reported then. One that has only grown
    waits until the last report is `again_ms` old, or goes with one that was not there before."""
    if not found:
        return Reported(), StandingReport(is_over=bool(reported.marks))
    marks = {key: min(mark, found[key].mark) for key, mark in reported.marks.items() if key in found}
    new = tuple(sorted(key for key, trouble in found.items() if trouble.mark > marks.get(key, 0)))
    is_fresh = any(key not in marks for key in new)
    if not new or (not is_fresh and 0 <= now_ms - reported.at_ms < again_ms):
        return Reported(marks, reported.at_ms), StandingReport()
    return Reported({key: trouble.mark for key, trouble in found.items()}, now_ms), StandingReport(new)
