"""Why a batch is not running: the one thing in its way. Pure."""

import math
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from actors.batch.rules.moves import AFTER
from actors.batch.rules.record import FINAL, Instance, is_held, known_items, may_begin, shown_state
from actors.runtime.rules.texts import time_text

Obstacle = Literal[
    "over",
    "cancelling",
    "paused",
    "due",
    "after",
    "nobody",
    "consumer",
    "concurrency",
    "seal",
    "turn",
    "retry",
    "slot",
    "rate",
    "at_work",
]

STEPS = {"splitting": "split", "reducing": "reduce"}


class BatchWhy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a batch, the rest of its items, or one `item` is not running. `code` is the kind of obstacle: `over`,
    `cancelling`, `paused`, `due` (its time has not come), `after` (another batch has to end first), `nobody` (no live
    process serves the task, or only older code), `consumer` (the server gives the processes none of its work),
    `concurrency` (as many batches of the task run as may), `seal` (the split has not ended), `turn` (chunks before it
    are at work), `retry` (what failed waits for its next try), `slot` (as many items of its key run as may), `rate` (a
    limit of the task) or `at_work` (nothing is in the way). `until_ms`: when that ends, as far as is known."""

    id: str
    task: str
    state: str
    code: Obstacle
    reason: str
    until_ms: int = 0
    item: int | None = None
    row: int | None = None


class ItemPlace(NamedTuple):
    """What is known of an item. `chunk`: the number of its chunk, None if it is not made yet. `status` and `info`: its
    end, or why it runs again. `full`: that all slots of its key are taken, in words, empty if one is free."""

    chunk: int | None = None
    status: str = ""
    info: str = ""
    full: str = ""


class NoConsumer(NamedTuple):
    """Why no process gets a task's splits and reduces from the server, and why none gets its chunks. Empty: one may."""

    steps: str = ""
    chunks: str = ""


ALL_THERE = NoConsumer()


class Limits(Protocol):
    """The limits that are in force for the task. `0`: no limit. Rates are per second."""

    @property
    def main_concurrency(self) -> int: ...
    @property
    def main_rate(self) -> float: ...
    @property
    def item_rate(self) -> float: ...


def begins(record: Instance, now_ms: int) -> str:
    """Return when a waiting instance begins, or after which other one. Empty: nothing but its turn is in its way."""
    if record.state in FINAL or may_begin(record, now_ms):
        return ""
    if is_held(record):
        until = f", at {time_text(record.due_ms)} at the earliest" if record.due_ms > now_ms else ""
        return f"begins when {record.after} {AFTER[record.after_state]}{until}"
    return f"begins at {time_text(record.due_ms)}"


def why(
    record: Instance,
    limits: Limits,
    *,
    waits_for: str,
    running: int,
    last_start_ms: int,
    now_ms: int,
    before: str = "",
    missing: NoConsumer = ALL_THERE,
    ahead: int = 0,
    part: float = 1.0,
) -> BatchWhy:
    """Return what is in the way of an instance. `waits_for`: why no live node may work on it, empty if one may.
    `running`: how many instances of its task hold a place of those that may run. `last_start_ms`: when the last one
    began. `ahead`: how many that wait begin before it. `before`: how far the instance is for which it waits. `part`:
    of the task's rate that it has, beside others at work."""
    next_ms = _next_begin_ms(limits, last_start_ms, now_ms, ahead)
    code, reason, until_ms = _obstacle(
        record, limits, waits_for, running, next_ms, now_ms, before, missing, part, ahead
    )
    return BatchWhy(
        id=record.instance_id,
        task=record.task,
        state=shown_state(record),
        code=code,
        reason=reason,
        until_ms=until_ms,
    )


def why_item(
    batch: BatchWhy,
    record: Instance,
    limits: Limits,
    index: int,
    place: ItemPlace,
    now_ms: int,
    *,
    missing: NoConsumer,
    part: float = 1.0,
) -> BatchWhy:
    """Return what is in the way of an item. `batch`: what is in the way of its batch. `part`: as in `why`."""
    code, reason, until_ms = _item_obstacle(batch, record, limits, index, place, now_ms, missing, part)
    return replace(batch, code=code, reason=reason, until_ms=until_ms, item=index)


def _item_obstacle(
    batch: BatchWhy,
    record: Instance,
    limits: Limits,
    index: int,
    place: ItemPlace,
    now_ms: int,
    missing: NoConsumer,
    part: float,
) -> tuple[Obstacle, str, int]:
    if place.status not in ("", "again"):
        return "over", f"it has ended: {place.status}{place.info and f', {place.info}'}", 0
    if record.state == "pending" or batch.code in ("over", "cancelling", "paused", "nobody", "consumer"):
        return batch.code, batch.reason, batch.until_ms
    if place.chunk is None:
        return (
            "seal",
            "its batch is still split, and it was not committed yet; `penstock batch show` has the progress",
            0,
        )
    is_released = place.chunk < record.released
    if not is_released and record.seal is None and not record.staged:
        return "seal", "it waits for the end of its batch's split; `penstock batch show` has the progress", 0
    [until_ms] = [each.not_before_ms for each in record.open if each.chunk == place.chunk] or [0]
    if place.status == "again" and until_ms > now_ms:
        return "retry", f"it failed and waits for its next try{place.info and f': {place.info}'}", until_ms
    if is_released and missing.chunks:
        return _no_consumer("chunks", missing.chunks)
    if place.full:
        return "slot", place.full, until_ms if until_ms > now_ms else 0
    left = (known_items(record) or index + 1) - record.counts.ended
    if limits.item_rate and left > 0:
        ahead = min(left, max(1, index + 1 - record.counts.ended))
        at_ms = now_ms + math.ceil(1000 * ahead / (limits.item_rate * part))
        return "rate", f"it is one of about {ahead} that begin next, and {limits.item_rate:g} a second are run", at_ms
    if not is_released:
        so_far = f"{record.released} chunks have begun, {len(record.open)} of them run"
        return "turn", f"it is in chunk {place.chunk}; {so_far}", 0
    return "at_work", "a process has its chunk, and runs it or runs it soon", 0


def _obstacle(
    record: Instance,
    limits: Limits,
    waits_for: str,
    running: int,
    next_ms: int,
    now_ms: int,
    before: str,
    missing: NoConsumer,
    part: float,
    ahead: int,
) -> tuple[Obstacle, str, int]:
    if record.state in FINAL:
        return "over", f"it is over: {record.state}{record.reason and f', {record.reason}'}", 0
    if record.is_cancelling:
        return "cancelling", "it is being cancelled; what runs ends first", 0
    if record.is_paused:
        return "paused", f"it is paused; go on with `penstock batch resume {record.instance_id}`", 0
    if record.state == "pending" and not may_begin(record, now_ms):
        is_after, until_ms = is_held(record), record.due_ms if record.due_ms > now_ms else 0
        return "after" if is_after else "due", f"it {begins(record, now_ms)}{before}", until_ms
    if waits_for:
        return "nobody", waits_for.removeprefix("waits: "), 0
    if record.state == "pending":
        return _begin(limits, running, next_ms, now_ms, ahead)
    if record.state != "running" and record.step_not_before_ms > now_ms:
        why = f"its {STEPS[record.state]} failed and waits for its next try: {record.reason}"
        return "retry", why, record.step_not_before_ms
    if record.state != "running" and missing.steps:
        return _no_consumer("splits and reduces", missing.steps)
    if record.state != "running":
        return "at_work", f"it is {record.state}, by one process; `penstock batch show` has its progress", 0
    left = (known_items(record) or 0) - record.counts.ended
    not_before_ms = min((chunk.not_before_ms for chunk in record.open), default=0)
    if not_before_ms > now_ms:
        return "retry", "items that failed wait for their next try", not_before_ms
    if missing.chunks:
        return _no_consumer("chunks", missing.chunks)
    if limits.item_rate and left > 0:
        until_ms = now_ms + math.ceil(1000 * left / (limits.item_rate * part))
        return "rate", f"{left} items are left, and {limits.item_rate:g} a second are run", until_ms
    return "at_work", f"its items are run, {record.counts.ended} have ended", 0


def _no_consumer(work: str, why: str) -> tuple[Obstacle, str, int]:
    return "consumer", f"its processes get no {work} of its task from the server, and try again and again: {why}", 0


def _next_begin_ms(limits: Limits, last_start_ms: int, now_ms: int, ahead: int) -> int:
    """Return when an instance may begin at the task's rate. 0: at once."""
    if not limits.main_rate:
        return 0
    first_ms = last_start_ms + math.ceil(1000 / limits.main_rate)
    return max(first_ms, now_ms if ahead else 0) + math.ceil(1000 * ahead / limits.main_rate)


def _begin(limits: Limits, running: int, next_ms: int, now_ms: int, ahead: int) -> tuple[Obstacle, str, int]:
    """Return what keeps an instance from its begin."""
    if limits.main_concurrency and running >= limits.main_concurrency:
        return "concurrency", f"{running} batches of its task run, as many as may at a time", 0
    if next_ms > now_ms:
        others = f", and {ahead} others begin before it" if ahead else ""
        return "rate", f"{limits.main_rate:g} batches of its task begin a second{others}", next_ms
    return "at_work", "it is its turn, and begins within moments", 0
