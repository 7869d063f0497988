"""Which items of a chunk a round runs, and what its result contains. Pure. Executors and the conductor both use it."""

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Raw
from msgspec.json import encode
from msgspec.structs import replace

from actors.batch.rules.record import ROUNDS, round_of_pass
from actors.batch.rules.sheet_lines import row_of
from streams.messages.batch import (
    INFO_BYTES,
    NOTHING,
    Chunk,
    ChunkResult,
    Counts,
    Outcome,
    last_outcomes,
    ranges_of,
)

UNKNOWN = "it was begun, and nobody knows how it ended"
LEFT_OUT = Raw(b'{"not_told":"left out: too much was told of this chunk for one message"}')
MOST_REASONS = 3
MAX_REASON = 300
OPEN_S, GROWTH = 1.0, 1.1
LEAVE_MS, LONGEST_LEAVE_MS = 500, 60_000
MOST_ATTEMPTS = 101
"""Rounds that are kept for items that run again: a task has at most a hundred attempts."""


def items_to_run(chunk: Chunk, earlier: Sequence[ChunkResult], number: int, redo: Collection[int] = ()) -> list[int]:
    """Return the indexes that round `number` runs. The first round runs all. The first round of a later pass runs items
    that failed, were cancelled or never ran, or exactly the items in `redo`. A later round of a pass runs the items of
    its first round that must run again or have not begun."""
    first = _first_of_pass(number)
    if number > first:
        before, here = _split_at(earlier, first)
        stands = _stands(chunk, here)
        due = items_to_run(chunk, before, first, redo)
        return [index for index in due if stands[index] in (None, "again")]
    if number == 1:
        return list(range(chunk.first, chunk.first + len(chunk.items)))
    stands = _stands(chunk, earlier)
    if redo:
        return [index for index in stands if index in redo]
    return [index for index, status in stands.items() if status in (None, "failed", "cancelled")]


def attempts_of(indexes: Sequence[int], earlier: Sequence[ChunkResult], number: int) -> dict[int, int]:
    """Return which attempt round `number` is for each of these items, within its pass. A round that has not begun an
    item does not count as its attempt."""
    _, here = _split_at(earlier, _first_of_pass(number))
    if not any(result.left for result in here):
        return dict.fromkeys(indexes, round_of_pass(number))
    tries = dict.fromkeys(indexes, 1)
    for result in here:
        for index in indexes:
            tries[index] += any(start <= index < end for start, end in result.ran)
    return tries


def missing_round(known: Sequence[ChunkResult], number: int, earlier: Sequence[int]) -> int | None:
    """Return a round that must have a result before round `number` of the chunk can run, and is not among the known
    ones. `None`: there is none. `earlier`: the first rounds of passes before. In each pass, a round that left something
    to the next one has a next one."""
    rounds = {each.round for each in known}
    nexts = (each.round + 1 for each in known if (each.again or each.left) and each.round + 1 < number)
    due = (*earlier, *range(_first_of_pass(number), number), *nexts)
    return next((each for each in due if each not in rounds), None)


def may_leave(number: int) -> bool:
    """Return whether the next round may run what this one has not begun. A pass has a limit of rounds, some for items
    that run again."""
    return round_of_pass(number) < ROUNDS - MOST_ATTEMPTS


def open_s(number: int) -> float | None:
    """Return for how long a round begins items before it stores their ends, and leaves the rest to the next round: a
    second, and a tenth longer with each round of the pass. So a hundred rounds are enough for a day, and people see
    progress, and a killed process costs a second or so. `None`: it has to run all."""
    return OPEN_S * GROWTH ** (round_of_pass(number) - 1) if may_leave(number) else None


def leave_ms(number: int) -> int | None:
    """Return how long the next round must wait at least if this one leaves items that have no slots: longer with each
    round of the pass, up to a minute. So a pass has rounds for half a day without slots. `None`: it may not leave."""
    return min(LONGEST_LEAVE_MS, LEAVE_MS * round_of_pass(number)) if may_leave(number) else None


def result_of(
    chunk: Chunk,
    number_of_chunk: int,
    number: int,
    outcomes: Sequence[Outcome],
    earlier: Sequence[ChunkResult],
    by: str,
    *,
    left: int = 0,
    is_rows: bool = False,
) -> ChunkResult:
    """Return the result of a round: its outcomes, one for each item that it ran, counted. `left`: how many it has not
    begun. `is_rows`: the items are rows of a sheet, which reasons name by their numbers. Infos beyond
    `INFO_BYTES` are left out."""
    ends = Counter[str](outcome.status for outcome in outcomes)
    again = ends.pop("again", 0)
    failed = [each.index for each in outcomes if each.status == "again"]
    redone: Counter[str] = Counter()
    if number > 1:
        ended = _ends_before(chunk, earlier, is_first_pass=number <= ROUNDS)
        redone.update(ended[each.index] for each in outcomes if each.status != "again" and each.index in ended)
    failures = [each for each in outcomes if each.status in ("failed", "unknown")][:MOST_REASONS]
    rows = {each.index: row_of(chunk.items[each.index - chunk.first]) if is_rows else None for each in failures}
    return ChunkResult(
        chunk=number_of_chunk,
        round=number,
        by=by,
        ran=ranges_of(sorted(outcome.index for outcome in outcomes)),
        others=tuple(_bounded(each) for each in outcomes if each.status != "ok" or bytes(each.info) != b"null"),
        counts=_counts(ends),
        again=again,
        attempt=max(attempts_of(failed, earlier, number).values(), default=0),
        redone=_counts(redone),
        reasons=tuple(_reason(each, rows[each.index]) for each in failures),
        left=left,
    )


def gone(number_of_chunk: int, number: int, by: str) -> ChunkResult:
    """Return the result of a round whose chunk is missing."""
    return ChunkResult(chunk=number_of_chunk, round=number, by=by, is_gone=True)


def cancelled(indexes: Sequence[int], begun: Collection[int] = ()) -> list[Outcome]:
    """Return the outcomes of items that did not run, since their instance was cancelled. `begun`: those that did begin,
    and may not run twice. They end as unknown."""
    unknown = Raw(encode(UNKNOWN))
    return [Outcome(index, "unknown", unknown) if index in begun else Outcome(index, "cancelled") for index in indexes]


def shortened(result: ChunkResult) -> ChunkResult | None:
    """Return the result with a tenth less of its items' infos, and a note in the place of the longest. `None`: there
    are none."""
    sizes = {each.index: len(bytes(each.info)) for each in result.others if each.info != NOTHING}
    if not sizes:
        return None
    kept, room = set[int](), sum(sizes.values()) * 9 // 10
    for index in sorted(sizes, key=lambda index: sizes[index]):
        room -= sizes[index]
        if room >= 0:
            kept.add(index)
    left_out = {index: LEFT_OUT if size > len(bytes(LEFT_OUT)) else NOTHING for index, size in sizes.items()}
    others = (
        replace(each, info=left_out[each.index]) if each.index in sizes and each.index not in kept else each
        for each in result.others
    )
    return replace(result, others=tuple(others))


def _first_of_pass(number: int) -> int:
    return number - round_of_pass(number) + 1


def _split_at(results: Sequence[ChunkResult], first: int) -> tuple[list[ChunkResult], list[ChunkResult]]:
    """Return the results of rounds before `first`, and the others."""
    return [each for each in results if each.round < first], [each for each in results if each.round >= first]


def _stands(chunk: Chunk, results: Sequence[ChunkResult]) -> dict[int, str | None]:
    return {
        chunk.first + at: None if end is None else end.status for at, end in enumerate(last_outcomes(chunk, results))
    }


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


def _reason(outcome: Outcome, row: int | None) -> str:
    place = f"item {outcome.index}" if row is None else f"row {row}"
    return f"{place}: {bytes(outcome.info).decode(errors='replace')[:MAX_REASON]}"
