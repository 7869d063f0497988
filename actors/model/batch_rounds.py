"""Which items of a chunk a round runs, and what its result says. Pure; executors and the conductor both go by it."""

from collections import Counter
from collections.abc import Collection, Sequence

from actors.model.batch_record import ROUNDS, round_of_pass
from streams.batch_messages import (
    INFO_BYTES,
    Chunk,
    ChunkResult,
    Counts,
    Outcome,
    last_outcomes,
    ranges_of,
)

__all__ = ["cancelled", "items_to_run", "result_of"]

MOST_REASONS = 3
MAX_REASON = 300


def items_to_run(chunk: Chunk, earlier: Sequence[ChunkResult], number: int, redo: Collection[int] = ()) -> list[int]:
    """Return the indexes that round `number` runs. The first round runs all; a later round of a pass what goes round
    again; the first round of a later pass what failed, was cancelled or never ran, or exactly the items in `redo`."""
    if number == 1:
        return list(range(chunk.first, chunk.first + len(chunk.items)))
    stands = {chunk.first + at: end and end.status for at, end in enumerate(last_outcomes(chunk, earlier))}
    if round_of_pass(number) > 1:
        return [index for index, status in stands.items() if status == "again"]
    if redo:
        return [index for index in stands if index in redo]
    return [index for index, status in stands.items() if status in (None, "failed", "cancelled")]


def result_of(
    chunk: Chunk,
    number_of_chunk: int,
    number: int,
    outcomes: Sequence[Outcome],
    earlier: Sequence[ChunkResult],
    by: str,
) -> ChunkResult:
    """Return the result of a round: its outcomes, one for each item that it ran, counted. What an item told beyond
    `INFO_BYTES` is left out."""
    ends = Counter[str](outcome.status for outcome in outcomes)
    again = ends.pop("again", 0)
    redone: Counter[str] = Counter()
    if number > 1:
        ended = _ends_before(chunk, earlier, is_first_pass=number <= ROUNDS)
        redone.update(ended[each.index] for each in outcomes if each.status != "again" and each.index in ended)
    reasons = [_reason(each) for each in outcomes if each.status in ("failed", "unknown")][:MOST_REASONS]
    return ChunkResult(
        chunk=number_of_chunk,
        round=number,
        by=by,
        ran=ranges_of(sorted(outcome.index for outcome in outcomes)),
        others=tuple(_bounded(each) for each in outcomes if each.status != "ok" or bytes(each.info) != b"null"),
        counts=_counts(ends),
        again=again,
        redone=_counts(redone),
        reasons=tuple(reasons),
    )


def cancelled(indexes: Sequence[int]) -> list[Outcome]:
    """Return the outcomes of items that did not run, since their instance was cancelled."""
    return [Outcome(index, "cancelled") for index in indexes]


def _ends_before(chunk: Chunk, earlier: Sequence[ChunkResult], *, is_first_pass: bool) -> dict[int, str]:
    """Return how each item had ended before: what is counted for it now. In a later pass an item without an end was
    counted as cancelled when its instance ended."""
    ends: dict[int, str] = {}
    for result in sorted(earlier, key=lambda each: each.round):
        others = {outcome.index: outcome.status for outcome in result.others}
        for start, end in result.ran:
            for index in range(start, end):
                status = others.get(index, "ok")
                if status != "again":
                    ends[index] = status
    if not is_first_pass:
        for index in range(chunk.first, chunk.first + len(chunk.items)):
            ends.setdefault(index, "cancelled")
    return ends


def _counts(ends: Counter[str]) -> Counts:
    return Counts(
        succeeded=ends["ok"],
        failed=ends["failed"],
        unknown=ends["unknown"],
        skipped=ends["skipped"],
        cancelled=ends["cancelled"],
    )


def _bounded(outcome: Outcome) -> Outcome:
    if len(bytes(outcome.info)) <= INFO_BYTES:
        return outcome
    return Outcome(outcome.index, outcome.status)


def _reason(outcome: Outcome) -> str:
    return f"item {outcome.index}: {bytes(outcome.info).decode(errors='replace')[:MAX_REASON]}"
