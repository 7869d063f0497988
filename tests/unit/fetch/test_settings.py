"""Settings: what is refused at the door and in which words, and how three levels become one record.

The numbers in the ids are the rows of the catalogue of bad inputs (docs/guarantees.md)."""

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.rules.setting_table import LEVELS, SETTINGS, Setting
from actors.fetch.rules.settings import (
    FetchSettings,
    as_level,
    check_level,
    narrowed,
    origins,
    parse_level,
    resolve,
)
from actors.runtime.rules.setting_values import BadSetting, duration_text, read_duration
from tests.support.edits import edited_bytes

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z

BAD_VALUES = [
    pytest.param({"slice": "0s"}, "slice", "not within 1s to 31d", id="70 slice of no length"),
    pytest.param({"slice": "-60s"}, "slice", "is negative", id="70 negative slice"),
    pytest.param({"slice": "1ms"}, "slice", "not within 1s to 31d", id="70 slice of a millisecond"),
    pytest.param({"slice": "365d"}, "slice", "not within 1s to 31d", id="70 slice of a year"),
    pytest.param(
        {"slice": "10s", "overlap_before": "10s", "overlap_after": "1s"}, "overlap_before", "longer than", id="71"
    ),
    pytest.param({"start": "2026-01-01T00:00:01Z"}, "start", "in the future", id="72 start in the future"),
    pytest.param({"start": "2025-12-31T23:00:00-02:00"}, "start", "in the future", id="72 by its zone"),
    pytest.param({"start": "2025-10-01T00:00:00"}, "start", "has no zone", id="73 start without zone"),
    pytest.param({"start": "2025-10-01"}, "start", "not a moment to the second", id="73 a day only"),
    pytest.param({"start": "2025-10-01T00:00:00 Asia/Nowhere"}, "start", "not a moment", id="74 unknown zone"),
    pytest.param({"start": "2025-10-01T00:00:00+25:00"}, "start", "does not exist", id="74 unknown offset"),
    pytest.param({"start": "2025-02-30T00:00:00Z"}, "start", "does not exist", id="74 no such day"),
    pytest.param({"start": "1969-12-31T23:59:59Z"}, "start", "before 1970", id="74 before all time"),
    pytest.param({"start": "-90"}, "start", "has no unit", id="75 start without unit"),
    pytest.param({"scan_every": "5"}, "scan_every", "has no unit", id="75 interval without unit"),
    pytest.param({"slice": 60}, "slice", "has no unit", id="75 bare number"),
    pytest.param({"slice": 60.5}, "slice", "has no unit", id="75 bare fraction"),
    pytest.param({"slice": "60 s"}, "slice", "is not a duration", id="75 blank before the unit"),
    pytest.param({"slice": "60x"}, "slice", "is not a duration", id="75 unknown unit"),
    pytest.param({"slice": "٦٠s"}, "slice", "is not a duration", id="75 digits of another script"),
    pytest.param({"slice": "1000.5ms"}, "slice", "whole number of milliseconds", id="75 half a millisecond"),
    pytest.param({"retries": -1}, "retries", "not within 0 to 100", id="76 negative retries"),
    pytest.param({"retries": 10**9}, "retries", "not within 0 to 100", id="76 a billion retries"),
    pytest.param({"retries": 2.5}, "retries", "not a whole number", id="76 half a retry"),
    pytest.param({"retries": True}, "retries", "not a whole number", id="76 true is not 1"),
    pytest.param({"retries": "3"}, "retries", "not a whole number", id="76 a number in quotes"),
    pytest.param({"retries": None}, "retries", "not a whole number", id="76 null"),
    pytest.param({"slcie": "60s"}, "slcie", "did you mean slice?", id="77 misspelt"),
    pytest.param({"Slice": "60s"}, "Slice", "did you mean slice?", id="77 upper case"),
    pytest.param({"retry_bse": "5s"}, "retry_bse", "did you mean retry_base?", id="77 misspelt again"),
    pytest.param({"zzzzzz": 1}, "zzzzzz", "there are again, again_slice,", id="77 nothing is near"),
    pytest.param({"": 1}, "", "is not a setting", id="77 no name"),
    pytest.param({"rate": 0}, "rate", "to stop a source, pause it", id="83 rate of nothing"),
    pytest.param({"rate": -1}, "rate", "not within", id="83 negative rate"),
    pytest.param({"rate": 1e9}, "rate", "not within 0.001 to 100000", id="83 a billion a second"),
    pytest.param({"rate": "10"}, "rate", "is not a number", id="83 rate in quotes"),
    pytest.param({"webhook": "https://joe:secret@example.org/x"}, "webhook", "a user or a password", id="85 user"),
    pytest.param({"webhook": "file:///etc/passwd\n"}, "webhook", "cannot be printed", id="85 new line"),
    pytest.param({"webhook": "ftp://example.org"}, "webhook", "neither a reference nor", id="85 other scheme"),
    pytest.param({"webhook": "https://[::1"}, "webhook", "is not a URL", id="85 broken address"),
    pytest.param(
        {"webhook": "hunter2"}, "webhook", "neither a reference nor", id="79 a secret in place of a reference"
    ),
    pytest.param({"backoff": "exponentiel"}, "backoff", "did you mean exponential?", id="choice misspelt"),
    pytest.param({"pin": "a b"}, "pin", "is not a label", id="label with a blank"),
    pytest.param({"pin": "\ud800"}, "pin", "cannot be printed", id="lone surrogate"),
    pytest.param({"again": "10m"}, "again", "not a list", id="again as a text"),
    pytest.param({"again": ["2h", "10m"]}, "again", "does not rise", id="again unsorted"),
    pytest.param({"again": ["10m", "10m"]}, "again", "does not rise", id="again twice"),
    pytest.param({"again": ["1m"] * 9}, "again", "list of up to 8", id="again too many"),
    pytest.param({"timeout": "5m", "stale_after": "2m"}, "timeout", "cut off by the monitor", id="stale too soon"),
    pytest.param({"slice": "1h", "again_slice": "10m"}, "slice", "window of a second look", id="second look too short"),
    pytest.param({"settle": "1h", "again": ["10m"]}, "settle", "first second look", id="second look before the first"),
]

BAD_DOCUMENTS = [
    pytest.param(b"", "are not JSON", id="empty"),
    pytest.param(b'{"slice": "60s"', "are not JSON", id="27 cut off"),
    pytest.param(b"[]", "are not a JSON object", id="a list"),
    pytest.param(b'"slice"', "are not a JSON object", id="a text"),
    pytest.param(b"null", "are not a JSON object", id="null"),
    pytest.param(b'{"a":' * 500 + b"1" + b"}" * 500, "is not a setting", id="28 nested 500 deep"),
    pytest.param(b'{"again":' + b"[" * 500 + b"]" * 500 + b"}", "is not a duration", id="28 lists 500 deep"),
    pytest.param(b"[" * 60_000, "are nested too deeply", id="28 nested 60,000 deep"),
    pytest.param(b'{"rate": NaN}', "hold NaN", id="29 not a number"),
    pytest.param(b'{"rate": -Infinity}', "hold -Infinity", id="29 infinity"),
    pytest.param(b'{"rate": 1e400}', "not a finite number", id="29 beyond floats"),
    pytest.param(b'{"retries": 9223372036854775808}', "not within 0 to 100", id="30 beyond 63 bits"),
    pytest.param(b'{"retries": 1' + b"0" * 5000 + b"}", "a number of 5001 digits", id="30 five thousand digits"),
    pytest.param(b'{"retries": 3, "retries": 4}', "stands there twice", id="31 twice"),
    pytest.param(b'{"pin": "\xff"}', "are not UTF-8 at byte 9", id="32 not UTF-8"),
    pytest.param(b'{"pin": "\\ud800"}', "cannot be printed", id="32 lone surrogate"),
    pytest.param(b'\xef\xbb\xbf{"retries": 3}', "byte order mark", id="33 byte order mark"),
    pytest.param(b'{"retries": 3} x', "are not JSON", id="something behind it"),
    pytest.param(b"slice: 60s", "are not JSON", id="78 YAML"),
    pytest.param(b" " * 70_000 + b"{}", "more than 65536", id="42 too long"),
]


def refusal(call: Callable[[], object]) -> BadSetting | None:
    try:
        call()
    except BadSetting as error:
        return error
    return None


@pytest.mark.parametrize(("values", "name", "words"), BAD_VALUES)
def test_a_bad_value_is_refused_in_words_that_help(values: dict[str, object], name: str, words: str) -> None:
    with pytest.raises(BadSetting) as refused:
        check_level(values, "default", now_ms=NOW_MS)
    error = refused.value
    assert error.name == name
    assert error.why
    assert error.do, "it says what to do"
    assert words in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize(("text", "words"), BAD_DOCUMENTS)
def test_a_bad_document_is_refused_in_words_that_help(text: bytes, words: str) -> None:
    with pytest.raises(BadSetting) as refused:
        parse_level(text, "default")
    assert words in str(refused.value)
    assert len(str(refused.value)) < 1000


DOCUMENTS = st.sampled_from(
    [b'{"slice": "60s", "retries": 3}', b'{"again": ["10m"]}', b'{"pin": "", "rate": 0.5}', b'{"rate": 5, "rate": 5}']
)


@given(edited_bytes(DOCUMENTS, b'{}[]":, 09s.-\\\xff'))
def test_any_bytes_are_settings_or_refused(text: bytes) -> None:
    refused = refusal(lambda: parse_level(text))
    if refused is None:
        assert parse_level(text) == json.loads(text)
        assert len(parse_level(text)) == text.count(b'":'), "no name stands twice"
    else:
        assert refused.do


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def values_of(name: str) -> st.SearchStrategy[dict[str, object]]:
    """Return values of one setting: its default, its bounds, its words, and any JSON."""
    row = SETTINGS[name]
    default = list(row.default) if isinstance(row.default, tuple) else row.default
    words: list[object] = [default, row.low, row.high, *row.choices, "45s", 2]
    return st.fixed_dictionaries({name: st.sampled_from(words) | st.sampled_from(words) | JSON_VALUES})


SOME_VALUES = st.lists(st.sampled_from(list(SETTINGS)).flatmap(values_of), min_size=1, max_size=3)


@given(SOME_VALUES)
def test_any_value_is_read_or_refused(each: list[dict[str, object]]) -> None:
    values = {name: value for one in each for name, value in one.items()}
    refused = refusal(lambda: check_level(values, "default", now_ms=NOW_MS))
    assert refused is None or (refused.do and refused.name in values)
    if refused is None and refusal(lambda: resolve(values, {}, {})) is None:
        settings = resolve(values, {}, {})
        assert settings == msgspec.convert(msgspec.to_builtins(settings), FetchSettings)
        assert narrowed(resolve({}, {}, {}), values) == settings


def test_the_narrowest_level_wins_name_by_name() -> None:
    default = {"slice": "30s", "retries": 4, "rate": 5}
    platform = {"retries": 6, "again": []}
    source = {"rate": 0.1}
    settings = resolve(default, platform, source)
    assert (settings.slice_ms, settings.retries, settings.rate, settings.again_ms) == (30_000, 6, 0.1, ())
    assert settings.settle_ms == FetchSettings().settle_ms
    decided = origins(default, platform, source)
    assert (decided["slice"], decided["retries"], decided["rate"]) == ("default", "platform", "source")
    assert decided["settle"] is None


def test_what_holds_alone_may_not_hold_together() -> None:
    source = parse_level(b'{"slice": "2s"}')
    with pytest.raises(BadSetting, match="overlap_before 3s"):
        resolve({}, {}, source)
    assert resolve({"overlap_before": "1s"}, {}, source).slice_ms == 2000


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [("scan_every", "1s", "platform"), ("platform_rate", 5, "source"), ("concurrency", 2, "source")],
)
def test_what_many_sources_share_cannot_be_set_for_one(name: str, value: object, level: str) -> None:
    with pytest.raises(BadSetting, match=f"cannot be set for one {level}"):
        check_level({name: value}, "platform" if level == "platform" else "source")
    check_level({name: value}, "default")


def test_the_record_and_the_table_have_the_same_names_and_defaults() -> None:
    assert resolve({}, {}, {}) == FetchSettings()
    assert set(as_level(FetchSettings())) == set(SETTINGS)
    assert len(msgspec.structs.fields(FetchSettings)) == len(SETTINGS)


def numbers(setting: Setting) -> st.SearchStrategy[object]:
    low, high = setting.low, setting.high
    if setting.unit in ("duration", "durations"):
        inside = st.integers(read_duration("", low), read_duration("", high)).map(duration_text)
        return inside if setting.unit == "duration" else st.lists(inside, max_size=1)
    if setting.unit == "count":
        return st.integers(int(low), int(high))
    if setting.unit in ("requests/s", "orders/s", "share"):
        return st.floats(float(low), float(high))
    return st.just(setting.default)


@given(st.fixed_dictionaries({}, optional={name: numbers(setting) for name, setting in SETTINGS.items()}))
def test_what_is_within_range_resolves_and_can_be_written_down_again(values: dict[str, object]) -> None:
    level = json.loads(json.dumps(values))
    refused = refusal(lambda: resolve(level, {}, {}))
    if refused is not None:
        assert "is not within" not in refused.why
        return
    settings = resolve(level, {}, {})
    assert resolve({}, as_level(settings), {}) == settings


@pytest.mark.parametrize("name", SETTINGS)
def test_every_row_says_what_why_and_where(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.what
    assert setting.why
    assert setting.levels()[0] == "default"
    assert setting.levels() == LEVELS[: len(setting.levels())]
    check_level({name: setting.default}, "default")


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.unit in ("duration", "count")])
def test_both_ends_of_a_range_are_within_it_and_nothing_beyond(name: str) -> None:
    setting = SETTINGS[name]
    for value in (setting.low, setting.high):
        check_level({name: value}, "default")
    beyond = f"{read_duration(name, setting.high) + 1}ms" if setting.unit == "duration" else int(setting.high) + 1
    with pytest.raises(BadSetting, match="not within"):
        check_level({name: beyond}, "default")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("60s", 60_000),
        ("1.5h", 5_400_000),
        ("1h30m", 5_400_000),
        ("1d", 86_400_000),
        ("2w", 1_209_600_000),
    ],
)
def test_durations_carry_their_unit(text: str, expected: int) -> None:
    assert read_duration("slice", text) == expected


@given(st.integers(0, 10**14))
def test_a_duration_reads_back_as_it_was_written(duration_ms: int) -> None:
    assert read_duration("slice", duration_text(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("-90d", NOW_MS - 90 * 86_400_000),
        ("-1s", NOW_MS - 1000),
        ("2025-12-31T00:00:00Z", NOW_MS - 86_400_000),
        ("2026-01-01T08:00:00+08:00", NOW_MS),
        ("2025-12-31 18:15:00-05:45", NOW_MS),
    ],
)
def test_a_start_is_a_moment_to_the_second(start: str, expected: int) -> None:
    settings = resolve({"start": start}, {}, {})
    assert settings.first_ms(NOW_MS) == expected
    if start.startswith("-"):
        assert settings.first_ms(NOW_MS + 999) == expected


def test_a_start_that_got_in_by_another_way_is_refused_when_it_is_used() -> None:
    with pytest.raises(BadSetting, match="in the future"):
        resolve({"start": "2027-01-01T00:00:00Z"}, {}, {}).first_ms(NOW_MS)
