"""Many moves in one write, and records that are no ledgers."""

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.ledgers import BrokenLedger, Move, _apply_all, _Change, read_ledger
from actors.fetch.rules.ledger import Ledger, OpenSlice, Pass, first_ledger
from actors.fetch.sources import SourceKey

SHOP = SourceKey("mall", "s1")


def raising(by: int) -> Move[int]:
    """Return a move that raises the fence, and tells what it became."""

    def move(ledger: Ledger) -> tuple[Ledger, int]:
        if by < 0:
            raise ValueError(by)
        return (replace(ledger, fence=ledger.fence + by) if by else ledger), ledger.fence + by

    return move


async def folded(steps: list[int], given_up: set[int]) -> tuple[Ledger, Ledger, list[int], list[str]]:
    before = first_ledger(0)
    batch = [_Change(raising(by), 1) for by in steps]
    for at in given_up:
        batch[at % len(batch)].future.cancel()
    after, results, errors = _apply_all(batch, before)
    return before, after, [result for _, result in results], [str(error) for _, error in errors]


@given(st.lists(st.integers(-2, 3), min_size=1, max_size=20), st.sets(st.integers(0, 19), max_size=5))
def test_moves_apply_in_order_each_for_itself(steps: list[int], given_up: set[int]) -> None:
    before, after, results, errors = asyncio.run(folded(steps, given_up))
    left = [by for at, by in enumerate(steps) if at not in {gone % len(steps) for gone in given_up}]
    good = [by for by in left if by >= 0]
    assert after.fence == sum(good)
    assert results == [sum(good[: at + 1]) for at in range(len(good))]
    assert errors == [str(by) for by in left if by < 0]
    assert (after is before) == (sum(good) == 0)


BROKEN = {
    "nothing": b"",
    "no JSON": b"garbage",
    "no UTF-8": b'{"start_ms":0,"frontier_ms":0,"watermark_ms":0,"reason":"\xff"}',
    "deep": b"[" * 100_000,
    "deep beside the fields": b'{"x":' + b"[" * 100_000,
    "an array": b"[]",
    "a field missing": b'{"start_ms":0}',
    "another type": b'{"start_ms":"0","frontier_ms":0,"watermark_ms":0}',
    "another kind": b'{"start_ms":0,"frontier_ms":9,"watermark_ms":0,'
    b'"open":[{"kind":"x","epoch":1,"start_ms":0,"end_ms":9}]}',
    "a watermark beyond": b'{"start_ms":0,"frontier_ms":1,"watermark_ms":2}',
    "a start before 1970": b'{"start_ms":-1,"frontier_ms":1,"watermark_ms":0}',
    "a frontier beyond names": b'{"start_ms":0,"frontier_ms":1000000000000000,"watermark_ms":0}',
    "a slice turned round": msgspec.json.encode(Ledger(0, 9, 0, open=(OpenSlice("t", 1, 9, 3),))),
    "a backfill without end": msgspec.json.encode(Ledger(0, 9, 0, passes=(Pass("b", "b", 0, 0),))),
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_a_record_that_is_no_ledger_says_so(raw: bytes) -> None:
    with pytest.raises(BrokenLedger, match="mall/s1"):
        read_ledger(SHOP, raw)


def test_a_ledger_of_a_later_release_is_read() -> None:
    assert read_ledger(SHOP, b'{"start_ms":1,"frontier_ms":3,"watermark_ms":2,"colour":"red"}') == Ledger(1, 3, 2)
