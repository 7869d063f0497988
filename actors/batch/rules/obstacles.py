"""Why a batch is not running: the one thing in its way. Pure."""

import math
from typing import Literal, Protocol

from msgspec import Struct

from actors.batch.rules.record import FINAL, Instance, known_items, shown_state

Obstacle = Literal["over", "cancelling", "paused", "nobody", "concurrency", "rate", "retry", "at_work"]


class BatchWhy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a batch, or the rest of its items, is not running. `code` is the kind of obstacle: `over`, `cancelling`,
    `paused`, `nobody` (no live process serves the task, or only older code), `concurrency` (as many batches of the task
    run as may), `rate` (a limit of the task), `retry` (what failed waits for its next try) or `at_work` (nothing is in
    the way). `until_ms`: when that ends, as far as is known."""

    id: str
    task: str
    state: str
    code: Obstacle
    reason: str
    until_ms: int = 0


class Limits(Protocol):
    """The limits that are in force for the task. `0`: no limit. Rates are per second."""

    @property
    def main_concurrency(self) -> int: ...
    @property
    def main_rate(self) -> float: ...
    @property
    def item_rate(self) -> float: ...


def why(record: Instance, limits: Limits, *, waits_for: str, running: int, last_start_ms: int, now_ms: int) -> BatchWhy:
    """Return what is in the way of an instance. `waits_for`: why no live node may work on it, empty if one may.
    `running`: how many instances of its task have begun and are not over. `last_start_ms`: when the last one began."""
    code, reason, until_ms = _obstacle(record, limits, waits_for, running, last_start_ms, now_ms)
    return BatchWhy(
        id=record.instance_id,
        task=record.task,
        state=shown_state(record),
        code=code,
        reason=reason,
        until_ms=until_ms,
    )


def _obstacle(
    record: Instance, limits: Limits, waits_for: str, running: int, last_start_ms: int, now_ms: int
) -> tuple[Obstacle, str, int]:
    if record.state in FINAL:
        return "over", f"it is over: {record.state}{record.reason and f', {record.reason}'}", 0
    if record.is_cancelling:
        return "cancelling", "it is being cancelled; what runs ends first", 0
    if record.is_paused:
        return "paused", f"it is paused; go on with `penstock batch resume {record.instance_id}`", 0
    if waits_for:
        return "nobody", waits_for.removeprefix("waits: "), 0
    if record.state == "pending":
        return _begin(limits, running, last_start_ms, now_ms)
    if record.state != "running":
        return "at_work", f"it is {record.state}, by one process; `penstock batch show` has its progress", 0
    left = (known_items(record) or 0) - record.counts.ended
    not_before_ms = min((chunk.not_before_ms for chunk in record.open), default=0)
    if not_before_ms > now_ms:
        return "retry", "items that failed wait for their next try", not_before_ms
    if limits.item_rate and left > 0:
        until_ms = now_ms + math.ceil(1000 * left / limits.item_rate)
        return "rate", f"{left} items are left, and {limits.item_rate:g} a second are run", until_ms
    return "at_work", f"its items are run, {record.counts.ended} have ended", 0


def _begin(limits: Limits, running: int, last_start_ms: int, now_ms: int) -> tuple[Obstacle, str, int]:
    """Return what keeps an instance from its begin."""
    if limits.main_concurrency and running >= limits.main_concurrency:
        return "concurrency", f"{running} batches of its task run, as many as may at a time", 0
    next_ms = last_start_ms + math.ceil(1000 / limits.main_rate) if limits.main_rate else 0
    if next_ms > now_ms:
        return "rate", f"{limits.main_rate:g} batches of its task begin a second", next_ms
    return "at_work", "it is its turn, and begins within moments", 0
