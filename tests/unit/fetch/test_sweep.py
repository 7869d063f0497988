"""A sweep reads all that was read again, at its pace, once the source has caught up."""

from msgspec.structs import replace

from actors.fetch.rules.cutting import SWEEP, cut, next_due_ms
from actors.fetch.rules.holding import Taken, complete, take
from actors.fetch.rules.ledger import Ledger, faults, first_ledger
from actors.fetch.rules.settings import FetchSettings

HOUR = 3_600_000
SETTINGS = FetchSettings(slice_ms=60_000, settle_ms=0, again_ms=(), sweep_ms=HOUR, max_open=100, back_open=100)


def read_all(ledger: Ledger, now_ms: int) -> tuple[Ledger, list[str]]:
    """Cut and read until nothing is open. Return the slices that were read."""
    done: list[str] = []
    ledger = cut(ledger, SETTINGS, now_ms)
    while ledger.open:
        held = ledger.open[0]
        ledger, taken = take(ledger, held.slice_id, "n", now_ms)
        assert isinstance(taken, Taken)
        ledger, _ = complete(ledger, held.slice_id, taken.slice.fence, now_ms)
        done.append(held.slice_id)
        ledger = cut(ledger, SETTINGS, now_ms)
    assert faults(ledger) == []
    return ledger, done


def test_a_source_that_has_caught_up_is_swept_an_hour_later_and_each_hour_after_that() -> None:
    now_ms = 2 * HOUR
    ledger, done = read_all(first_ledger(0), now_ms)
    assert (len(done), ledger.swept_ms) == (120, 0)
    now_ms += 60_000
    ledger, done = read_all(ledger, now_ms)
    assert (len(done), ledger.swept_ms) == (1, now_ms)
    for _ in range(2):
        now_ms += HOUR
        until_ms = ledger.watermark_ms
        ledger, done = read_all(ledger, now_ms)
        assert len([each for each in done if each[0] == "t"]) == 60
        assert len([each for each in done if each[0] == "b"]) == until_ms // 60_000
        assert ledger.swept_ms == now_ms
        assert ledger.passes == ()


def test_a_sweep_is_due_by_time_alone() -> None:
    ledger = replace(first_ledger(0), frontier_ms=HOUR, watermark_ms=HOUR, swept_ms=HOUR)
    ledger = replace(ledger, state="running")
    settings = replace(SETTINGS, slice_ms=31 * 24 * HOUR)
    assert next_due_ms(ledger, settings, HOUR) == 2 * HOUR
    assert cut(ledger, settings, 2 * HOUR - 1) is ledger
    (sweep,) = cut(ledger, settings, 2 * HOUR).passes
    assert (sweep.name, sweep.start_ms, sweep.end_ms) == (SWEEP, 0, HOUR)


def test_nothing_is_swept_while_a_sweep_runs_or_the_past_is_read() -> None:
    ledger = cut(first_ledger(0), SETTINGS, 10 * HOUR)
    assert ledger.swept_ms == 0
    swept = replace(first_ledger(0), frontier_ms=HOUR, watermark_ms=HOUR, swept_ms=1)
    running = cut(swept, replace(SETTINGS, back_open=1), 2 * HOUR)
    assert [each.name for each in running.passes] == [SWEEP]
    later = cut(running, replace(SETTINGS, back_open=2), 5 * HOUR)
    assert [each.name for each in later.passes] == [SWEEP]
    assert later.swept_ms == 2 * HOUR


def test_without_a_sweep_nothing_is_noted() -> None:
    plain = cut(first_ledger(0), replace(SETTINGS, sweep_ms=0), HOUR)
    assert plain.swept_ms == 0
