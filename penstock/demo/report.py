"""The demo's verdict: what the malls made, compared with what the database holds. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

__all__ = ["Comparison", "Report", "compare"]

OrderId = tuple[str, str, str]
"""Platform, source, order key."""


class Comparison(msgspec.Struct, frozen=True):
    """made: orders of the malls. stored: of these in the database, in their last version. missing: not there, or in an
    older version. doubled: writes that repeated a version which was stored already. foreign: stored, but never made."""

    made: int
    stored: int
    missing: int
    doubled: int
    foreign: int
    examples: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return self.made > 0 and self.missing == 0 and self.doubled == 0 and self.foreign == 0


def compare(
    made: Mapping[OrderId, int], stored: Mapping[OrderId, int], changes: Iterable[tuple[str, str, str, int]]
) -> Comparison:
    """Compare the malls' orders (id to last version) with the table's rows, and with the table's history: each
    (order, version) that changed a row, once for each time that it did."""
    lost = [order for order, version in made.items() if stored.get(order, -1) < version]
    written = Counter(changes)
    doubled = sum(times - 1 for times in written.values())
    foreign = [order for order in stored if order not in made]
    examples = ["missing " + "/".join(order) for order in lost[:3]] + ["foreign " + "/".join(o) for o in foreign[:3]]
    return Comparison(
        made=len(made),
        stored=len(made) - len(lost),
        missing=len(lost),
        doubled=doubled,
        foreign=len(foreign),
        examples=tuple(examples),
    )


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The demo's result: the last line that it prints with `--json`."""

    ok: bool
    made: int
    stored: int
    missing: int
    doubled: int
    foreign: int
    versions: int
    holes: int
    killed: int
    slices: int
    retried: int
    requests: int
    faults: int
    seconds: float
    orders_per_second: int
    platforms: int
    nodes: int
    database: str
    examples: tuple[str, ...] = ()
    reason: str = ""
