"""Half-open pieces of a source's time: how they are named, cut on a grid, and halved.

A slice is `[start_ms, end_ms)` in whole milliseconds UTC. The end of one is the start of the next, so slices cover time
without a gap or an overlap. A request to a platform covers more (the overlap), and that is up to the fetcher.

The name of a slice contains its identity (`t3-1700000000000-1700000060000`: kind, epoch, start, end), so a repeat has
the same name, and the name alone gives the window. It is a subject token.
"""

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Literal, cast

import msgspec

Kind = Literal["t", "b", "a"]
"""`t`: the live tail. `b`: a backfill, or a hole read again behind the watermark. `a`: a second look ("again")."""

Lane = Literal["tail", "back"]

SLICE_ID = re.compile(r"([tba])(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,14})-([1-9][0-9]{0,14})", re.ASCII)


class MalformedSliceId(ValueError):
    """A text that is not the name of a slice."""


class Slice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One window `[start_ms, end_ms)` of a source's time, of one kind and epoch."""

    kind: Kind
    epoch: int
    start_ms: int
    end_ms: int

    @property
    def slice_id(self) -> str:
        return f"{self.kind}{self.epoch}-{self.start_ms}-{self.end_ms}"

    @property
    def lane(self) -> Lane:
        return "tail" if self.kind == "t" else "back"

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


def parse_slice_id(text: str) -> Slice:
    """Return the slice that `text` names. Raises MalformedSliceId for every text that `slice_id` never returns."""
    found = SLICE_ID.fullmatch(text)
    if found is None:
        raise MalformedSliceId(f"slice id {text[:80]!r}: expected <t|b|a><epoch>-<start ms>-<end ms>")
    start_ms, end_ms = int(found[3]), int(found[4])
    if start_ms >= end_ms:
        raise MalformedSliceId(f"slice id {text!r}: the start must lie before the end")
    return Slice(cast(Kind, found[1]), int(found[2]), start_ms, end_ms)


def next_end_ms(at_ms: int, length_ms: int, anchor_ms: int) -> int:
    """Return the first point after `at_ms` of the grid that steps by `length_ms` through `anchor_ms`.
    A slice that starts between two points of the grid (the length was changed) is shorter than `length_ms`, once."""
    return at_ms + length_ms - (at_ms - anchor_ms) % length_ms


def middle_ms(start_ms: int, end_ms: int, step_ms: int) -> int | None:
    """Return the point that halves `[start_ms, end_ms)`, on a whole multiple of `step_ms` since 1970.
    `None`: no multiple lies strictly inside, so the window cannot be split on that platform's clock."""
    middle = (start_ms + end_ms) // 2
    below = middle - middle % step_ms
    if below > start_ms:
        return below
    above = below + step_ms
    return above if start_ms < above < end_ms else None


def overlapping(pieces: Iterable[Slice]) -> tuple[Slice, Slice] | None:
    """Return the first two of `pieces` (by start) that share a millisecond, or None. Costs one sort."""
    ordered = sorted(pieces, key=lambda piece: (piece.start_ms, piece.end_ms))
    for before, after in pairwise(ordered):
        if after.start_ms < before.end_ms:
            return before, after
    return None
