"""Settings of topics: two levels, readable by people, and refused with what to write instead."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.rules.topic_settings import LANES, TopicSettings, as_document, parse_topic, resolve_topic
from actors.runtime.rules.setting_values import BadSetting


def test_a_topic_without_settings_has_the_built_in_ones() -> None:
    settings = resolve_topic({}, {})
    assert settings == TopicSettings()
    assert (settings.ttr_ms, settings.attempts, settings.remember_ms, settings.lanes) == (60_000, 10, None, ("normal",))
    assert settings.backoff.retries == 9


def test_a_topics_own_value_wins() -> None:
    default = parse_topic(b'{"ttr":"5m","attempts":3,"rate":100}')
    own = parse_topic(b'{"attempts":7,"is_paused":true,"remember":"1d","lanes":["high"]}')
    settings = resolve_topic(default, own)
    assert (settings.ttr_ms, settings.attempts, settings.rate, settings.is_paused) == (300_000, 7, 100.0, True)
    assert (settings.remember_ms, settings.lanes) == (86_400_000, ("high", "normal"))


def test_none_takes_remembering_back() -> None:
    assert resolve_topic({"remember": "1h"}, {"remember": None}).remember_ms is None


@given(
    st.builds(
        TopicSettings,
        ttr_ms=st.integers(1_000, 10**8),
        attempts=st.integers(1, 1000),
        backoff_ms=st.integers(1, 1000),
        backoff_cap_ms=st.integers(1000, 10**8),
        backoff_growth=st.sampled_from(["linear", "exponential"]),
        remember_ms=st.none() | st.integers(10_000, 10**8),
        rate=st.just(0.0) | st.floats(0.001, 10**6),
        is_paused=st.booleans(),
        most_waiting=st.integers(0, 10**9),
        lanes=st.sets(st.sampled_from(LANES)).map(
            lambda some: tuple(lane for lane in LANES if lane in some | {"normal"})
        ),
    )
)
def test_what_is_written_reads_back(settings: TopicSettings) -> None:
    text = json.dumps(as_document(settings)).encode()
    assert resolve_topic(parse_topic(text), {}) == settings


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ('{"tr":"60s"}', "did you mean ttr"),
        ('{"ttr":60}', "has no unit"),
        ('{"ttr":"10ms"}', "write 1s to 7d"),
        ('{"ttr":"1y"}', "not a duration"),
        ('{"attempts":0}', "write 1 to 1000"),
        ('{"attempts":true}', "not a whole number"),
        ('{"backoff":"1h","backoff_cap":"1s"}', "lengthen backoff_cap"),
        ('{"backoff_growth":"cubic"}', "linear or exponential"),
        ('{"rate":-1}', "out of range"),
        ('{"rate":1e-9}', "out of range"),
        ('{"is_paused":"yes"}', "neither true nor false"),
        ('{"most_waiting":-1}', "out of range"),
        ('{"lanes":["urgent"]}', "list of high, normal, low"),
        ('{"lanes":"high"}', "list of high, normal, low"),
        ('{"remember":"0s"}', "write 10s to 30d"),
        ('{"ttr":"60s","ttr":"61s"}', "ttr"),
        ("[]", "object"),
        ("{", "JSON"),
    ],
)
def test_a_bad_value_says_what_to_write(document: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        parse_topic(document.encode())


def test_levels_that_do_not_fit_together_are_refused() -> None:
    default: dict[str, Any] = {"backoff_cap": "10s"}
    with pytest.raises(BadSetting, match="backoff_cap"):
        resolve_topic(default, {"backoff": "1m"})
