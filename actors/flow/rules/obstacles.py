"""Why a row of a flow is not executed: the one thing in its way. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from actors.flow.rules.groups import Part, split_shards


class RowWhy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a row is not executed. `state`: `in_flight`, `ended` or `not_loaded`. `code` of a row in flight: as of a job,
    `held`, `at_work`, `retry`, `expired`, `paused`, `nobody`, `slot`, `rate` or `turn`. Of one that ended: `over`, or
    `dead` (it is a dead letter). Of one that is not loaded: `paused`, `nobody` (no live node serves the flow),
    `stopped` (no round comes), `begin` (no round yet), `split` (the last one failed), `shard` (`split` does not name
    its shard), `group` (no live node is in the shard's group), `load` (the shard's last load failed or does not
    answer), `full` (as many rows are in flight as may), or `round` (a later round loads it, if `load` returns it).
    `until_ms`: when that ends, as far as known."""

    flow: str
    shard: str
    key: str
    state: str
    code: str
    reason: str
    until_ms: int = 0


class RowJob(NamedTuple):
    """What is in the way of the job that a row in flight is. `state`: of the job. `outcome`: how it ended. `until_ms`:
    of one that ended, until when no other is added in its place."""

    state: str
    code: str
    reason: str
    until_ms: int
    outcome: str = ""


class RowsReport(Protocol):
    """What one round did (`RoundReport`)."""

    @property
    def began_ms(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def target(self) -> int: ...
    @property
    def asked(self) -> int: ...
    @property
    def new(self) -> int: ...
    @property
    def errors(self) -> Sequence[str]: ...


class RowsProgress(NamedTuple):
    """How far a flow is. `next_ms`: when the next round is due. `names`: of its shards, empty if they are not known.
    `busy_ms`: until when the last load of the shard may go on. `last`: the last round. `has_failed`: the last load of
    the shard has. The round tells the errors of some shards only. `stopped`: why no round comes, empty if they do."""

    groups: Mapping[str, Part]
    next_ms: int
    names: Sequence[str]
    busy_ms: int
    last: RowsReport | None
    has_failed: bool = False
    stopped: str = ""


def why_row(
    flow: str,
    shard: str,
    key: str,
    job: RowJob | None,
    progress: RowsProgress,
    *,
    is_paused: bool,
    serving: Collection[str],
    living: Collection[str],
    now_ms: int,
) -> RowWhy:
    """Return what is in the way of a row. `job`: of a row in flight, or one that ended lately. `serving`: the live
    nodes that serve the flow. `living`: their labels."""
    if job is not None and job.state != "done":
        state, (code, reason, until_ms) = "in_flight", _in_flight(flow, job)
    elif job is not None:
        state, (code, reason, until_ms) = "ended", _ended(flow, job)
    else:
        found = _not_loaded(flow, shard, progress, is_paused, sorted(serving), living, now_ms)
        state, (code, reason, until_ms) = "not_loaded", found
    return RowWhy(flow=flow, shard=shard, key=key, state=state, code=code, reason=reason, until_ms=until_ms)


def _in_flight(flow: str, job: RowJob) -> tuple[str, str, int]:
    if job.code == "paused":
        return "paused", f"the flow is paused; go on with `penstock flows resume {flow}`", 0
    if job.code == "nobody":
        return "nobody", "it is loaded, and no live node serves the flow; start one with `penstock work`", 0
    return job.code, job.reason, job.until_ms


NOT_RUN = {
    "dropped": "it was dropped, since its key had no free slot",
    "cancelled": "it was cancelled for a newer row of its key",
    "expired": "it expired before it was executed",
}


def _ended(flow: str, job: RowJob) -> tuple[str, str, int]:
    if job.outcome == "buried":
        letters = f"`penstock dead list jobs/flow-rows-{flow}` has why"
        return "dead", f"it failed for good, and is a dead letter; {letters}", job.until_ms
    if job.outcome in NOT_RUN:
        return "over", f"{NOT_RUN[job.outcome]}; it is not loaded again within an hour", job.until_ms
    how = "was deleted" if job.outcome == "deleted" else "was executed lately"
    return "over", f"it {how}; a later round loads it if `load` returns it", 0


def _not_loaded(
    flow: str,
    shard: str,
    progress: RowsProgress,
    is_paused: bool,
    serving: Sequence[str],
    living: Collection[str],
    now_ms: int,
) -> tuple[str, str, int]:
    if is_paused:
        return "paused", f"the flow is paused, and loads nothing; go on with `penstock flows resume {flow}`", 0
    if not serving:
        return "nobody", "no live node serves the flow; start one with `penstock work`", 0
    if progress.stopped:
        return "stopped", progress.stopped, 0
    last = progress.last
    if last is None:
        return "begin", "the flow has had no round yet", 0
    next_ms = progress.next_ms
    errors = [error for error in last.errors if error.startswith("split: ")]
    if errors:
        return "split", f"the last round failed: {errors[0]}", next_ms
    if progress.names and shard not in progress.names:
        return "shard", f"`split` does not name its shard; it named {len(progress.names)} others", 0
    if progress.groups and progress.names and shard not in split_shards(progress.names, progress.groups, living):
        return "group", f"no live node is in its shard's group, of {', '.join(sorted(progress.groups))}", 0
    if progress.busy_ms > now_ms:
        return "load", "the last load of its shard did not answer in time, and may go on", progress.busy_ms
    errors = [error for error in last.errors if error.startswith(f"{shard}: ")]
    if errors:
        return "load", f"the last load failed: {errors[0]}", next_ms
    if progress.has_failed and last.new < last.asked:
        of_another = f"; of another: {last.errors[0]}" if last.errors else ""
        return "load", f"the last load of its shard failed{of_another}", next_ms
    if last.new >= last.asked:
        why = f"as many rows are loaded as the flow's rate and `most_in_flight` ask for: {last.target} in flight"
        return "full", f"{why}; the next round loads what is missing then", next_ms
    loaded = f"the last round loaded {last.new} of the {last.asked} rows that it asked for"
    return "round", f"{loaded}; the next one loads it, if `load` returns it", next_ms
