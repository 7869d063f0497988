"""What the monitor makes of a ledger."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from actors.fetch.hole_notices import unreported
from actors.fetch.monitor import hole_dead_letter, lag_ms, overdue, quiet_until_ms
from actors.fetch.rules.ledger import Hole, Ledger, OpenSlice, Outage
from actors.fetch.rules.settings import FetchSettings
from actors.fetch.sources import SourceKey
from actors.runtime.notices.alerts import AGAIN
from streams.messages.fetch import decode_dead_letter, encode
from streams.messages.ids import dead_letter_message_id
from streams.subjects import TOKEN

SETTINGS = FetchSettings(settle_ms=30_000, stale_after_ms=180_000)
HOLE = Hole("t", 1, 0, 60_000, since_ms=5, attempts=6, reason="HTTP 500")


def test_only_what_is_held_for_too_long_is_overdue() -> None:
    held = OpenSlice("t", 1, 0, 60_000, fence=1, holder="n1", taken_ms=1_000)
    ledger = Ledger(0, 60_000, 0, open=(held,))
    assert not overdue(ledger, SETTINGS, 180_999)
    assert overdue(ledger, SETTINGS, 181_000)
    assert not overdue(replace(ledger, open=(replace(held, fence=0),)), SETTINGS, 10**9)


def test_the_lag_counts_from_what_could_be_read_by_now() -> None:
    ledger = Ledger(0, 1_000_000, 400_000)
    assert lag_ms(ledger, SETTINGS, 1_030_000) == 600_000
    assert lag_ms(ledger, SETTINGS, 0) == 0


QUIET = Ledger(0, 60_000, 60_000)
HELD = OpenSlice("t", 1, 60_000, 120_000, fence=1, holder="n1", taken_ms=70_000)


def test_a_source_is_left_out_until_time_alone_makes_it_overdue_or_lagging() -> None:
    lagging_ms = 60_000 + SETTINGS.settle_ms + SETTINGS.lag_alarm_ms
    assert quiet_until_ms(QUIET, SETTINGS) == lagging_ms
    assert lag_ms(QUIET, SETTINGS, lagging_ms) == SETTINGS.lag_alarm_ms
    taken = replace(QUIET, open=(HELD,))
    assert quiet_until_ms(taken, SETTINGS) == 250_000
    assert [overdue(taken, SETTINGS, at_ms) for at_ms in (249_999, 250_000)] == [False, True]
    assert quiet_until_ms(replace(QUIET, open=(replace(HELD, fence=0),)), SETTINGS) == lagging_ms
    assert quiet_until_ms(replace(QUIET, state="paused"), SETTINGS) > 10**13


def test_a_source_with_something_to_report_is_looked_at_each_time() -> None:
    for troubled in (
        replace(QUIET, state="parked"),
        replace(QUIET, outage=Outage(1, reason="503")),
        replace(QUIET, holes=(HOLE,)),
        replace(QUIET, owes_end=True),
    ):
        assert quiet_until_ms(troubled, SETTINGS) == 0


def test_holes_are_told_once() -> None:
    assert unreported(Ledger(0, 60_000, 0, holes=(HOLE, replace(HOLE, is_told=True)))) == [HOLE]


@given(st.text("abcXYZ_-09", min_size=1, max_size=64))
def test_a_holes_letter_is_a_subject_of_its_own_and_says_what_to_read_again(source: str) -> None:
    letter = hole_dead_letter(SourceKey("mall", source), HOLE)
    assert TOKEN.fullmatch(letter.id)
    assert msgspec.json.decode(letter.body) == {
        "platform": "mall",
        "source": source,
        "slice_id": "t1-0-60000",
        "start_ms": 0,
        "end_ms": 60_000,
    }
    assert decode_dead_letter(encode(letter)) == letter


def test_a_slice_given_up_again_has_another_letter() -> None:
    first, again = (hole_dead_letter(SourceKey("mall", "s1"), replace(HOLE, since_ms=since)) for since in (5, 6))
    assert first.id == again.id
    ids = {dead_letter_message_id(letter, occurrence=letter.first_ms) for letter in (first, again)}
    assert len(ids) == 2


def test_a_webhook_is_tried_again_ever_less_often() -> None:
    waits = [AGAIN.wait_s(failures) for failures in range(1, 100)]
    assert waits[0] == 1.0
    assert waits == sorted(waits)
    assert waits[-1] == 60.0
