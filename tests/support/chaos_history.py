"""What a run is judged by: the malls' truth, the database with its history, the ledgers, and the events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.fetch.rules.ledger import Ledger, faults
from actors.fetch.sources import SourceKey
from penstock.admin.coverage import cover
from penstock.demo.report import Comparison, OrderId, compare
from penstock.demo.truth import read_changes, read_orders
from platforms.mall.server import Mall
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.messages.fetch import FetchEvent, SliceCompleted, SliceFailed, decode_event
from streams.reads.log import read_log
from tests.support.sqlite import sqlite_file


class Judged(msgspec.Struct, frozen=True):
    """One shop and its time: what was made in `[start_ms, end_ms)` has to be stored."""

    source: SourceKey
    mall: Mall
    shop: str
    start_ms: int
    end_ms: int


class History(msgspec.Struct, frozen=True):
    """What a run left behind."""

    stored: dict[OrderId, int]
    changes: list[tuple[str, str, str, int]]
    ledgers: dict[SourceKey, Ledger]
    events: list[FetchEvent]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One run's judgement. missing, doubled, foreign: orders, as in the demo's report. gaps: milliseconds below the
    watermark that no completed slice attests. behind: shops whose watermark is not at the end. faults: rules that a
    ledger breaks. rereads: readings of a slice beyond its first. retried: attempts that failed, by their reasons.
    facts: what the scenario did and saw."""

    scenario: str
    seed: int
    is_long: bool
    seconds: float
    made: int
    stored: int
    missing: int
    doubled: int
    foreign: int
    holes: int
    behind: int
    gaps: int
    faults: tuple[str, ...]
    slices: int
    rereads: int
    retried: dict[str, int]
    kills: int
    facts: dict[str, Any]
    examples: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        troubles = self.missing + self.doubled + self.foreign + self.holes + self.behind + self.gaps
        return self.made > 0 and troubles == 0 and not self.faults and not self.reason

    def line(self) -> str:
        """Return it as one line of JSON."""
        told = {"verdict": "ok" if self.is_whole else "FAILED", **msgspec.to_builtins(self)}
        return msgspec.json.encode({name: value for name, value in told.items() if value not in ((), "", {})}).decode()


Rows = tuple[dict[OrderId, int], list[tuple[str, str, str, int]]]
"""What a database holds: the version of each order, and every change that it went through."""


async def read_history(connection: Connection, ledgers: Bucket[bytes], rows: Rows) -> History:
    """Read what the broker holds, beside the database's rows."""
    records = {}
    for entry in await ledgers.entries():
        platform, _, source = entry.key.partition(".")
        records[SourceKey(platform, source)] = msgspec.json.decode(entry.value, type=Ledger)
    subject = connection.namespace.pattern("events", ">")
    log = read_log(connection, connection.namespace.stream("EVENTS"), subject)
    events = [decode_event(entry.payload) async for entry in log]
    return History(*rows, records, events)


def sqlite_rows(database: Path) -> Rows:
    """Return the rows of a SQLite file; none of a table that no sink has made yet."""
    stored = read_orders(database) if _has_table(database, "orders") else {}
    return stored, read_changes(database) if _has_table(database, "order_changes") else []


def _has_table(database: Path, name: str) -> bool:
    with sqlite_file(database) as connection:
        return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())


def judge(
    history: History,
    shops: Sequence[Judged],
    *,
    scenario: str,
    seed: int,
    is_long: bool,
    seconds: float,
    kills: int,
    facts: dict[str, Any],
    reason: str = "",
) -> Verdict:
    """Compare what the shops made with what the run left behind. Pure."""
    compared = _compared(history, shops)
    readings = [event for event in history.events if isinstance(event, SliceCompleted)]
    ledgers = {shop.source: history.ledgers.get(shop.source) for shop in shops}
    by_slice = Counter((event.platform, event.source, event.slice_id) for event in readings)
    return Verdict(
        scenario=scenario,
        seed=seed,
        is_long=is_long,
        seconds=round(seconds, 1),
        made=compared.made,
        stored=compared.stored,
        missing=compared.missing,
        doubled=compared.doubled,
        foreign=compared.foreign,
        holes=sum(len(ledger.holes) for ledger in ledgers.values() if ledger),
        behind=sum((ledgers[shop.source] or NEVER).watermark_ms < shop.end_ms for shop in shops),
        gaps=sum(_gap_ms(ledgers[shop.source], readings, shop) for shop in shops),
        faults=tuple(f"{source}: {told}" for source, ledger in ledgers.items() if ledger for told in faults(ledger)),
        slices=len(by_slice),
        rereads=sum(by_slice.values()) - len(by_slice),
        retried=Counter(event.reason for event in history.events if isinstance(event, SliceFailed)),
        kills=kills,
        facts=facts,
        examples=compared.examples,
        reason=reason,
    )


NEVER = Ledger(0, 0, 0)


def _compared(history: History, shops: Sequence[Judged]) -> Comparison:
    """Compare the orders whose last change lies within the judged time; any order of a shop is its own."""
    due: dict[OrderId, int] = {}
    known: set[OrderId] = set()
    for shop in shops:
        for key, version, modified_ms in _truth(shop):
            known.add((shop.source.platform, shop.source.source, key))
            if modified_ms < shop.end_ms:
                due[shop.source.platform, shop.source.source, key] = version
    stored = {order: version for order, version in history.stored.items() if order in due or order not in known}
    return compare(due, stored, history.changes)


def _truth(shop: Judged) -> Iterable[tuple[str, int, int]]:
    for key, version, modified_ms, *_ in shop.mall.shops[shop.shop].truth():
        yield str(key), int(str(version)), int(str(modified_ms))


def _gap_ms(ledger: Ledger | None, readings: Sequence[SliceCompleted], shop: Judged) -> int:
    """Return how much of the judged time is not read, or read by the ledger's word alone."""
    own = [event for event in readings if (event.platform, event.source) == (shop.source.platform, shop.source.source)]
    found = cover(ledger, own, shop.start_ms, shop.end_ms)
    return found.length_ms("open", "hole", "ahead", "gap") + found.unattested_ms
