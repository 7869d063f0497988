"""Records of schedules: the released form decodes for good, and whatever stands there stops nobody."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_checks import check_schedule
from actors.jobs.rules.schedule_record import PastRun, Schedule, decode_schedule, names_of
from actors.jobs.rules.schedule_steps import decide
from streams.errors import MalformedMessage

GOLDEN = Path(__file__).parents[2] / "golden"
WHOLE = Schedule(
    cron="30 9 * * MON-FRI",
    tz="Europe/Berlin",
    start_ms=1_795_253_400_000,
    body=Raw(b'{"report":"daily"}'),
    ttr_ms=60_000,
    attempts=3,
    priority="low",
    expires_in_ms=3_600_000,
    misfire="skip",
    overlap="allow",
    is_paused=True,
    last_ms=1_795_339_800_000,
    added_ms=1_795_339_800_000,
    adding=(1_795_339_800_000,),
    stale=(1_795_253_400_000,),
    left_out=2,
)
SECOND = replace(
    WHOLE,
    cron="",
    every_ms=60_000,
    jitter_ms=5_000,
    initial_delay_ms=30_000,
    data_time="at",
    misfire="all",
    most_missed=10,
    claim_ms=1_795_339_800_001,
    triggered=(1_795_339_800_002,),
    backfill=(1_795_253_400_000, 1_795_339_800_000),
    cancelling=(1_795_253_400_000,),
    buffered_ms=1_795_253_400_000,
    runs=(
        PastRun(due_ms=1, started_ms=2, ended_ms=3, outcome="finished"),
        PastRun(due_ms=4, kind="triggered", ended_ms=5, outcome="unknown"),
        PastRun(due_ms=6, kind="backfilled"),
    ),
)
"""What a record has since runs are told of, in one that need not make sense."""

some_ms = st.one_of(st.integers(), st.integers(0, 2_000_000_000_000))
odd: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.integers(), st.lists(some_ms, max_size=2)
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "cron": st.sampled_from(["* * * * *", "0 0 L 2 *", "@daily", "", "*/7 */5 * * * *"]) | odd,
        "every_ms": st.integers(1000, 10**9) | odd,
        "at_ms": some_ms | odd,
        "fixed_delay_ms": st.integers(1000, 10**9) | odd,
        "initial_delay_ms": some_ms,
        "jitter_ms": st.integers(0, 5000) | odd,
        "tz": st.sampled_from(["UTC", "Europe/Berlin", "../UTC", "\u0000"]) | odd,
        "start_ms": some_ms | odd,
        "last_ms": some_ms | odd,
        "added_ms": some_ms,
        "adding": st.lists(some_ms, max_size=2) | odd,
        "stale": st.lists(some_ms, max_size=2) | odd,
        "ttr_ms": odd,
        "expires_in_ms": some_ms | odd,
        "runs": st.lists(st.fixed_dictionaries({"due_ms": some_ms}, optional={"outcome": odd}), max_size=2) | odd,
        "most_missed": st.none() | st.integers(-1, 101) | odd,
        "buffered_ms": some_ms,
        "claim_ms": some_ms,
        "triggered": st.lists(some_ms, max_size=2),
        "backfill": st.none() | st.tuples(some_ms, some_ms) | odd,
        "data_time": st.sampled_from(["", "at"]) | odd,
        "cancelling": st.lists(some_ms, max_size=2),
        "misfire": st.sampled_from(["skip", "once", "all"]) | odd,
        "overlap": st.sampled_from(["skip", "allow", "buffer", "cancel"]) | odd,
        "unknown": odd,
    },
)


@pytest.mark.parametrize(("file", "whole"), [("recurring_v1", WHOLE), ("recurring_v2", SECOND)])
def test_the_released_form_decodes_for_good(file: str, whole: Schedule) -> None:
    raw = (GOLDEN / f"{file}.json").read_bytes()
    record = decode_schedule(raw)
    assert record == whole
    assert check_schedule(record) is record
    assert msgspec.json.encode(record) == raw.strip()


def test_one_moment_and_a_fixed_delay_have_a_form_of_their_own() -> None:
    assert msgspec.json.encode(Schedule(at_ms=7)) == b'{"at_ms":7}'
    assert msgspec.json.encode(Schedule(fixed_delay_ms=1000)) == b'{"fixed_delay_ms":1000}'


sound = st.sampled_from(
    [
        replace(WHOLE, adding=(), stale=(), is_paused=False),
        Schedule(every_ms=60_000, last_ms=1_699_999_000_000, misfire="all", overlap="allow"),
        Schedule(every_ms=3_600_000, overlap="buffer"),
        Schedule(at_ms=1_800_000_000_000),
        Schedule(fixed_delay_ms=60_000),
    ]
)


@settings(deadline=None)
@given(sound, documents, st.integers(0, 20), st.integers(1_700_000_000_000, 1_900_000_000_000), st.booleans())
def test_what_a_person_put_there_is_followed_or_refused(
    before: Schedule, put: dict[str, Any], odd: int, now_ms: int, is_open: bool
) -> None:
    """The document is one that can be followed, with a field or two as `put` has them."""
    names = list(put)[odd:][:2]
    document = msgspec.json.decode(msgspec.json.encode(before)) | {name: put[name] for name in names}
    try:
        record = check_schedule(decode_schedule(msgspec.json.encode(document)))
    except (MalformedMessage, BadRecurrence):
        return
    step = decide(record, now_ms, is_open=is_open)
    if step.record is not record:
        assert step.record.last_ms > record.last_ms or step.record.adding or step.record.backfill != record.backfill
    assert check_schedule(step.record) is step.record


@pytest.mark.parametrize("key", ["mail", "a.b.c", "", ".", "a.", "a b.c", "a.*"])
def test_a_key_that_names_no_recurring_job_is_refused(key: str) -> None:
    with pytest.raises(MalformedMessage, match="TOPIC"):
        names_of(key)
