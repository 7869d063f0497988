"""What no schedule may say."""

from __future__ import annotations

import pytest
from msgspec import Raw, json

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_checks import check_wanted
from actors.jobs.rules.schedule_record import PastRun, Schedule
from tests.unit.jobs.schedule_examples import HOUR, T


@pytest.mark.parametrize(
    ("record", "field", "said"),
    [
        (Schedule(), "cron", "either cron or every"),
        (Schedule(cron="* * * * *", every_ms=1000), "cron", "either cron or every"),
        (Schedule(every_ms=999), "every_ms", "use 1s to 366d"),
        (Schedule(every_ms=-1), "every_ms", "use 1s to 366d"),
        (Schedule(every_ms=10**18), "every_ms", "use 1s to 366d"),
        (Schedule(cron="0 9 * * *", tz="Europe/Berlim"), "tz", "is Europe/Berlin meant?"),
        (Schedule(cron="0 9 * * *", tz="\x1b[2J"), "tz", "use a name of the IANA list"),
        (Schedule(cron="70 * * * *"), "cron", "the minute"),
        (Schedule(cron="* * * * *", ttr_ms=1), "ttr_ms", "use 1000 to"),
        (Schedule(cron="* * * * *", attempts=0), "attempts", "use 1 to"),
        (Schedule(cron="* * * * *", expires_in_ms=0), "expires_ms", "let it expire later"),
        (Schedule(cron="* * * * *", body=Raw(b"{")), "body", "send one JSON value"),
        (Schedule(cron="0 0 31 2 MON#1", tz="UTC"), "", ""),
        (Schedule(cron="* * * * *", misfire="all"), "misfire", "overlap allow"),
        (Schedule(cron="* * * * *", misfire="all", overlap="buffer"), "misfire", "overlap buffer leaves some out"),
        (Schedule(cron="* * * * *", misfire="all", overlap="allow", most_missed=100), "", ""),
        (Schedule(cron="* * * * *", misfire="all", overlap="allow", most_missed=101), "most_missed", "1 to 100"),
        (Schedule(cron="* * * * *", misfire="all", overlap="allow", most_missed=0), "most_missed", "1 to 100"),
        (Schedule(cron="* * * * *", most_missed=5), "most_missed", "limits misfire all"),
        (Schedule(cron="* * * * *", most_open=0), "most_open", "1 to 20"),
        (Schedule(cron="* * * * *", body=Raw(b"[1]"), data_time="at"), "data_time", "a JSON object"),
        (Schedule(cron="* * * * *", body=Raw(b"{"), data_time="at"), "data_time", "a JSON object"),
        (Schedule(cron="* * * * *", data_time="a\nb"), "data_time", "no name of a field"),
        (Schedule(cron="* * * * *", data_time="a" * 65), "data_time", "1 to 64"),
        (Schedule(cron="* * * * *", backfill=(-1, T)), "adding", "out of range"),
        (json.decode(b'{"cron": "* * * * *"}', type=Schedule), "", ""),
        (Schedule(cron="* * * * *", at_ms=T), "cron", "either cron or every or fixed_delay or at"),
        (Schedule(every_ms=1000, fixed_delay_ms=1000), "cron", "either cron or every or fixed_delay or at"),
        (Schedule(fixed_delay_ms=999), "fixed_delay_ms", "use 1s to 366d"),
        (Schedule(fixed_delay_ms=1000, overlap="allow"), "overlap", "fixed_delay waits for its end"),
        (Schedule(fixed_delay_ms=1000, start_ms=T, runs=(PastRun(due_ms=T),)), "", ""),
        (Schedule(at_ms=T, start_ms=T + 1), "at_ms", "before the start"),
        (Schedule(at_ms=T, start_ms=T), "", ""),
        (Schedule(at_ms=-1), "at_ms", "out of range"),
        (Schedule(at_ms=10**15), "at_ms", "out of range"),
        (Schedule(every_ms=1000, initial_delay_ms=-1), "initial_delay_ms", "use 0s to 366d"),
        (Schedule(every_ms=1000, start_ms=T, initial_delay_ms=5), "initial_delay_ms", "stands beside a start"),
        (Schedule(every_ms=1000, jitter_ms=1000), "jitter_ms", "use less than 1s"),
        (Schedule(every_ms=1000, jitter_ms=999), "", ""),
        (Schedule(cron="0 * * * *", jitter_ms=3_600_000), "jitter_ms", "use less than 1h"),
        (Schedule(cron="0 * * * *", jitter_ms=-1), "jitter_ms", "out of range"),
        (Schedule(cron="0 8,20,21 * * *", jitter_ms=2 * HOUR), "jitter_ms", "use less than 1h"),
        (Schedule(at_ms=T, jitter_ms=3_600_000), "", ""),
    ],
)
def test_what_cannot_be_followed_is_refused(record: Schedule, field: str, said: str) -> None:
    if not field:
        assert check_wanted(record) is record
        return
    with pytest.raises(BadRecurrence) as refused:
        check_wanted(record)
    assert (refused.value.field, said in str(refused.value)) == (field, True), str(refused.value)
    assert str(refused.value).isprintable()
