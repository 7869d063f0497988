"""How the record of an instance changes: plain functions from a record and an event to the next record.

The caller stores the result by compare-and-set, and only then acts on it. A move that comes late (another fence,
another state) returns the record unchanged. Nothing here depends on the caller: if two nodes tend an instance, the
store decides.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from actors.batch.rules.moments import reach
from actors.batch.rules.record import (
    FINAL,
    Instance,
    OpenChunk,
    Past,
    Seal,
    first_round,
    is_held,
    made_so_far,
    may_begin,
    round_of_pass,
)
from streams.backoff import Backoff, next_delay_ms
from streams.messages.batch import LOST, AfterState, Counts

MOST_REASONS = 10
MOST_STARTS = 30
MAX_REASON = 300
MOST_CAUSE = 100
AFTER: dict[AfterState, str] = {
    "done": "is done",
    "clean": "is done and no item of it failed",
    "not_done": "has failed or was cancelled",
    "over": "is over",
}
"""How an instance has to end before another one begins, in words."""


class RoundEnded(NamedTuple):
    """One result in the log: how a chunk's items ended in one round. `again`: items that run once more. `left`: items
    that this round has not begun, and that run `left_ms` later. `attempt`: the highest one of the items in `again`. 0:
    by the round. `redone`: how the items of this result had ended in an earlier pass, which counts no more. `is_gone`:
    the chunk was missing."""

    seq: int
    chunk: int
    round: int
    counts: Counts
    again: int = 0
    redone: Counts = Counts()
    reasons: tuple[str, ...] = ()
    left: int = 0
    left_ms: int = 0
    is_gone: bool = False
    attempt: int = 0


def start(record: Instance, now_ms: int) -> Instance:
    """Let a pending instance begin: its split is offered under a new fence."""
    if record.state != "pending" or record.is_paused or record.is_cancelling or not may_begin(record, now_ms):
        return record
    return _step(replace(record, state="splitting", started_ms=max(now_ms, record.freed_ms)), now_ms)


def follow(record: Instance, before: Instance | None, now_ms: int) -> Instance:
    """Free an instance that waits for the end of another one, if that has ended as it should. Let it fail if that ended
    otherwise. `before`: the other one, `None` if there is none of its id any more."""
    if not is_held(record) or record.is_cancelling:
        return record
    if before is None or before.created_ms != record.after_created_ms:
        why = f"it was to begin after {record.after}, which was deleted before its end was seen; submit it once more"
        return _stop(record, why, now_ms)
    if before.state not in FINAL:
        return record
    if _has_ended_as(record.after_state, before):
        return replace(record, freed_ms=max(now_ms, before.ended_ms))  # by another node's clock
    ended = f"{before.state}{before.reason and f' ({before.reason[:MOST_CAUSE]})'}"
    if before.state == "done" and record.after_state == "clean":
        ended = f"done with {_not_clean(before.counts)} items that did not succeed"
    hint = "" if record.after_state == "not_done" else "; retry that one, and then this one"
    why = f"it was to begin after {record.after} {AFTER[record.after_state]}, which is {ended}{hint}"
    return _stop(record, why, now_ms)


def begin_now(record: Instance, now_ms: int) -> Instance:
    """Let an instance begin that waits for its time, or for the end of another one."""
    if record.state != "pending" or record.is_cancelling or may_begin(record, now_ms):
        return record
    return replace(record, due_ms=0, freed_ms=now_ms if record.after else 0)


def _has_ended_as(wanted: AfterState, before: Instance) -> bool:
    match wanted:
        case "done":
            return before.state == "done"
        case "clean":
            return before.state == "done" and not _not_clean(before.counts)
        case "not_done":
            return before.state != "done"
        case "over":
            return True


def _not_clean(counts: Counts) -> int:
    return counts.failed + counts.unknown + counts.cancelled


def begin_step(record: Instance, fence: int, now_ms: int) -> Instance:
    """Begin the split or the reduce that is offered under this fence. Only the first holder does."""
    if not _is_step(record, fence) or record.begun_fence == fence or record.is_cancelling or record.is_paused:
        return record
    return replace(record, begun_fence=fence, step_attempts=record.step_attempts + 1, step_since_ms=now_ms)


def renew_step(record: Instance, fence: int, now_ms: int) -> Instance:
    """Offer the split or the reduce anew, because its executor is silent. What that one still writes has an old fence.
    A step that was begun too often kills its process: the instance fails. A step not begun waits for its turn."""
    if not _is_step(record, fence) or record.begun_fence != fence:
        return record
    if record.step_attempts - record.step_failures < MOST_STARTS:
        return _step(record, now_ms)
    why = f"{record.state}: begun {MOST_STARTS} times; each time its process died, stood still, or lost the broker"
    return _stop(record, why, now_ms)


def fail_step(
    record: Instance,
    fence: int,
    reason: str,
    policy: Backoff,
    now_ms: int,
    *,
    chance: float = 0.0,
    is_final: bool = False,
) -> Instance:
    """Try the split or the reduce again after the policy's wait, or let the instance fail after its last attempt, or at
    once if it `is_final`. A begin whose process died does not count as a failure of the step."""
    if not _is_step(record, fence) or record.is_cancelling:
        return record
    failures = record.step_failures + 1
    if is_final or policy.is_last(failures):
        return _stop(record, reason, now_ms)
    again = _step(replace(record, step_failures=failures, reason=reason[:MAX_REASON]), now_ms)
    return replace(again, step_not_before_ms=now_ms + next_delay_ms(failures + 1, policy, chance=chance))


def stage(record: Instance, made: Seal) -> Instance:
    """Let the chunks of a streaming split run before it is sealed. They stand: the next run of the split continues
    after them."""
    if record.state != "splitting" or made.fence != record.step_fence or record.is_cancelling:
        return record
    before = record.staged
    if before and made.chunks <= before[-1].chunks:
        return record
    kept = before[:-1] if before and before[-1].fence == made.fence else before
    return replace(record, staged=(*kept, made))


def seal_split(record: Instance, seal: Seal, now_ms: int) -> Instance:
    """End the split: its items are known, and may run."""
    if record.state != "splitting" or seal.fence != record.step_fence or record.is_cancelling:
        return record
    return replace(
        record, state="running", seal=seal, step_attempts=0, step_failures=0, step_since_ms=now_ms, reason=""
    )


def release(record: Instance, most_open: int) -> Instance:
    """Release chunks, in their order, as many as `most_open` allows at a time."""
    made = made_so_far(record)
    if record.state not in ("splitting", "running") or made is None or record.is_paused or record.is_cancelling:
        return record
    upto = min(made.chunks, record.released + max(0, most_open - len(record.open)))
    if upto <= record.released:
        return record
    fresh = (OpenChunk(chunk=chunk, round=first_round(record, chunk)) for chunk in range(record.released, upto))
    return replace(record, released=upto, open=(*record.open, *fresh))


def count(
    record: Instance, results: Sequence[RoundEnded], policy: Backoff, now_ms: int, *, chance: float, upto_seq: int
) -> Instance:
    """Count results in the order of the log, up to `upto_seq`. Each counts once, whatever was counted before."""
    counts, reasons, gone, failed_now = record.counts, record.reasons, record.gone, record.failed_now
    open_chunks = {each.chunk: each for each in record.open}
    for ended in results:
        held = open_chunks.get(ended.chunk)
        if ended.seq <= record.counted_seq or held is None or held.round != ended.round:
            continue
        counts = _added(counts, ended)
        reasons = (*reasons, *ended.reasons)[:MOST_REASONS]
        gone += ended.is_gone
        failed_now += ended.counts.failed
        if ended.again or ended.left:
            attempt = ended.attempt or round_of_pass(ended.round)
            retry_ms = next_delay_ms(attempt + 1, policy, chance=chance) if ended.again else 0
            wait_ms = max(ended.left_ms if ended.left else 0, retry_ms)
            open_chunks[ended.chunk] = replace(held, round=ended.round + 1, not_before_ms=now_ms + wait_ms)
        else:
            del open_chunks[ended.chunk]
    seq = max(upto_seq, record.counted_seq)
    still_open = tuple(open_chunks.values())
    after = replace(
        record, counts=counts, reasons=reasons, open=still_open, counted_seq=seq, gone=gone, failed_now=failed_now
    )
    return record if after == record else _failing(record, after, now_ms)


def end_running(record: Instance, most_failures: float, now_ms: int) -> Instance:
    """Go on to the reduce when every item has ended. Fail when more items failed than the task allows. End a cancelled
    instance when no chunk is open any more. Failures of an earlier pass stop no instance before the items have run
    again. When every item has ended they count, if they still stand."""
    if record.state in FINAL or record.state == "reducing":
        return record
    if record.is_cancelling and not record.open:
        return cancel_rest(record, now_ms)
    if record.state != "running" or record.seal is None:
        return record
    chunks, items = record.seal.chunks, record.seal.items
    is_over = not record.open and record.released == chunks
    if record.gone and is_over:
        record = _without_lost(record, items - record.counts.ended, now_ms)
    failed = record.counts.failed if is_over else record.failed_now
    if not record.is_cancelling and failed > most_failures * items:
        return _stop(record, f"{failed} items failed", now_ms)
    if not is_over or record.is_paused or record.is_cancelling:
        return record
    return _step(replace(record, state="reducing", step_attempts=0, step_failures=0), now_ms)


def _without_lost(record: Instance, lost: int, now_ms: int) -> Instance:
    """Count items without an end as failed, when every chunk is over: they were in missing chunks."""
    if not lost:
        return record
    counts = replace(record.counts, failed=record.counts.failed + lost)
    reasons = (*record.reasons, f"{lost} items: {LOST}")[-MOST_REASONS:]
    return _failing(record, replace(record, counts=counts, reasons=reasons), now_ms)


def cancel_rest(record: Instance, now_ms: int) -> Instance:
    """End a cancelled instance: every item that has not ended is cancelled. One stopped for a reason has failed."""
    if not record.is_cancelling or record.open or record.state in FINAL:
        return record
    counts, made = record.counts, made_so_far(record)
    if made is not None:
        counts = replace(counts, cancelled=counts.cancelled + made.items - counts.ended)
    state: Literal["failed", "cancelled"] = "failed" if record.reason else "cancelled"
    return reach(replace(record, state=state, counts=counts, ended_ms=now_ms), state, now_ms)


def reduced(record: Instance, fence: int, result: msgspec.Raw, now_ms: int) -> Instance:
    """Publish the one result, and end the instance."""
    if record.state != "reducing" or fence != record.step_fence:
        return record
    done = replace(record, state="done", result=result, result_fence=fence, ended_ms=now_ms, reason="")
    return reach(done, "done", now_ms)


def pause(record: Instance) -> Instance:
    """Start nothing more. Running items end."""
    return record if record.state in FINAL or record.is_paused else replace(record, is_paused=True)


def resume(record: Instance) -> Instance:
    """Go on."""
    return replace(record, is_paused=False) if record.is_paused else record


def cancel(record: Instance, now_ms: int) -> Instance:
    """End it as soon as nothing runs any more."""
    if record.state in FINAL or record.is_cancelling:
        return record
    return _stop(record, "", now_ms)


def retry(record: Instance, items: Sequence[int] = (), told: Collection[str] = ()) -> Instance:
    """Run failed or cancelled items again (only `items`, if given), and reduce again: a new pass over all chunks. The
    published result stays until there is a new one. A split that did not end is begun again. `told`: the reasons of
    `items`."""
    counts, made = record.counts, made_so_far(record)
    if record.deleted_ms or record.state not in FINAL:
        return record
    if record.state == "done" and not (items or counts.failed or counts.cancelled):
        return record
    return replace(
        record,
        state="running" if record.seal is not None else "pending",
        step_attempts=0,
        step_failures=0,
        failed_now=0,
        passes=record.passes + 1,
        redo=tuple(sorted(set(items))),
        past=(*record.past, Past(record.released, record.first_new)),
        first_new=None if record.seal is not None else made.chunks if made is not None else 0,
        released=0,
        is_cancelling=False,
        is_paused=False,
        ended_ms=0,
        reason="",
        reasons=tuple(each for each in record.reasons if items and each not in told),
    )


def delete(record: Instance, now_ms: int) -> Instance:
    """Mark an instance that is over for removal. From then on nobody can retry it."""
    return record if record.state not in FINAL or record.deleted_ms else replace(record, deleted_ms=now_ms)


def _step(record: Instance, now_ms: int) -> Instance:
    return replace(record, step_fence=record.step_fence + 1, step_since_ms=now_ms, step_not_before_ms=0)


def _is_step(record: Instance, fence: int) -> bool:
    return record.state in ("splitting", "reducing") and fence == record.step_fence


def _stop(record: Instance, reason: str, now_ms: int) -> Instance:
    """End the instance as soon as nothing runs any more: cancelled, or failed if there is a reason."""
    return cancel_rest(replace(record, is_cancelling=True, is_paused=False, reason=reason[:MAX_REASON]), now_ms)


def _failing(before: Instance, after: Instance, now_ms: int) -> Instance:
    """Return `after`. It owes a report of its first failure if it has a failure and `before` had none."""
    is_first = _failures(before.counts) == 0 < _failures(after.counts)
    return reach(after, "first_failure", now_ms) if is_first else after


def _failures(counts: Counts) -> int:
    return counts.failed + counts.unknown


def _added(counts: Counts, ended: RoundEnded) -> Counts:
    new, old = ended.counts, ended.redone
    return Counts(
        succeeded=counts.succeeded + new.succeeded - old.succeeded,
        failed=counts.failed + new.failed - old.failed,
        unknown=counts.unknown + new.unknown - old.unknown,
        skipped=counts.skipped + new.skipped - old.skipped,
        cancelled=counts.cancelled + new.cancelled - old.cancelled,
    )
