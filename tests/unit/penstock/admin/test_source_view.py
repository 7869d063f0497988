"""A source at one look."""

import pytest

from actors.fetch.overview import Overview, SliceWorld, SpentRate, in_the_way, overview, source_why, waits_of
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Outage, Pass, first_ledger
from actors.fetch.sources import SourceKey, SourceRecord
from actors.fetch.stored import Broken
from penstock.admin.source_view import account_shown, ledger_document
from streams.messages.begun import KeyBegun, NodeBegun

SHOP = SourceKey("mall", "s1")
RECORD = SourceRecord(adapter="mall", account={"shop": "s1"})
LEDGER = Ledger(
    0,
    90_000,
    60_000,
    open=(OpenSlice("t", 1, 60_000, 90_000, fence=3, holder="n1"), OpenSlice("b", 1, 0, 1000, pass_name="old")),
    holes=(Hole("t", 1, 0, 1000, accepted_by="kim"), Hole("b", 1, 0, 2000)),
    passes=(Pass("old", "b", 0, 0, 9_000), Pass("again-600000", "a", 0, 0, None, 600_000)),
)


def test_a_running_source_tells_its_marks_and_counts() -> None:
    seen = overview(SHOP, RECORD, LEDGER, settle_ms=5_000, nodes=["n1"], now_ms=100_000)
    assert (seen.source, seen.adapter, seen.state, seen.node) == ("mall/s1", "mall", "running", "n1")
    assert (seen.watermark_ms, seen.frontier_ms, seen.lag_ms) == (60_000, 90_000, 35_000)
    assert (seen.open, seen.taken, seen.holes, seen.accepted, seen.backfills) == (2, 1, 1, 1, ("old",))


@pytest.mark.parametrize(
    ("record", "ledger", "state", "reason"),
    [
        (RECORD, None, "no ledger", "rewind"),
        (None, first_ledger(0), "removed", "kept"),
        (Broken("source.mall.s1", "truncated"), first_ledger(0), "broken", "truncated"),
        (RECORD, Broken("mall.s1", "no object"), "broken", "no object"),
        (RECORD, Ledger(0, 0, 0, hold_until_ms=100_001), "throttled", "1970-01-01T00:01:40"),
        (RECORD, Ledger(0, 0, 0, state="parked", reason="401"), "parked", "401"),
        (RECORD, Ledger(0, 0, 0, outage=Outage(5_000, reason="503")), "down", "since 1970-01-01T00:00:05Z: 503"),
        (RECORD, Ledger(0, 0, 0, outage=Outage(5_000, is_told=True, over_ms=9_000)), "running", ""),
        (RECORD, Ledger(0, 0, 0, state="paused", outage=Outage(5_000)), "paused", ""),
    ],
)
def test_what_is_wrong_with_a_source_is_its_state(
    record: SourceRecord | Broken | None, ledger: Ledger | Broken | None, state: str, reason: str
) -> None:
    seen = overview(SHOP, record, ledger, settle_ms=0, nodes=[], now_ms=100_000)
    assert seen.state == state
    assert reason in seen.reason


def test_a_secret_written_down_by_hand_is_not_shown() -> None:
    account = {"shop": "s1", "token": "env:TOKEN", "app_secret": "swordfish"}
    assert account_shown(account) == {"shop": "s1", "token": "env:TOKEN", "app_secret": "***"}


def test_a_ledger_is_printed_with_nothing_left_out() -> None:
    document = ledger_document(LEDGER)
    assert (document["state"], document["epoch"], document["frontier"]) == ("running", 1, "1970-01-01T00:01:30Z")
    assert isinstance(document["open"], list)
    assert document["open"][0]["slice_id"] == "t1-60000-90000"


FREE = SliceWorld(settle_ms=0, pin="", nodes=["n1"], sink="")


@pytest.mark.parametrize(
    ("shown", "code", "reason"),
    [
        (Overview("mall/s1", state="parked", reason="401", node="n1"), "parked", "401"),
        (Overview("mall/s1", state="no ledger", reason="say where"), "no_ledger", "say where"),
        (Overview("mall/s1", state="paused", node="n1"), "paused", "a person paused it"),
        (Overview("mall/s1", state="running"), "nobody", "penstock up"),
        (Overview("mall/s1", state="running", node="n1", open=5, taken=2), "turn", "3 of its 5 open slices"),
        (Overview("mall/s1", state="running", node="n1", open=2, taken=2), "at_work", "2 slices are being read"),
    ],
)
def test_one_thing_is_in_the_way_of_a_source(shown: Overview, code: str, reason: str) -> None:
    why = source_why(shown, FREE)
    assert (why.id, why.code) == ("mall/s1", code)
    assert reason in why.reason


@pytest.mark.parametrize(
    ("world", "code", "reason"),
    [
        (FREE._replace(nodes=[], pin="eu"), "nobody", "no live node with the label eu fetches"),
        (FREE._replace(nodes=[], elsewhere="it is bound to cn"), "nobody", "it is bound to cn"),
        (FREE._replace(sink="900 messages of orders wait before sink_main"), "sink", "900 messages"),
        (FREE._replace(spent=SpentRate("the source's `rate`", 5, 100)), "rate", "5 a second over all nodes, is spent"),
    ],
)
def test_what_is_around_a_source_is_in_its_way(world: SliceWorld, code: str, reason: str) -> None:
    why = source_why(Overview("mall/s1", state="running", node="n1", open=2), world)
    assert why.code == code == in_the_way(world)[0]
    assert reason in why.reason
    assert source_why(Overview("mall/s1", state="parked", reason="401"), world).code == "parked"
    down = source_why(Overview("mall/s1", state="down", reason="no answer"), world)
    assert down.code == (code if code == "nobody" else "down")  # what nobody reads may be up again


def test_a_rate_under_which_the_next_may_begin_now_is_not_spent() -> None:
    waits, free, idle = KeyBegun("a", (), 5, True, 30), KeyBegun("b", (), 5, True, 0), KeyBegun("c", (), 5, False, 30)
    later = KeyBegun("a", (), 5, True, 90)
    assert waits_of([NodeBegun(node="n1", keys=(waits, free, idle)), NodeBegun(node="n2", keys=(later,))]) == {"a": 90}
