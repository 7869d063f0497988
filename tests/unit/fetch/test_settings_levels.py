"""Levels in force always resolve: a change that would break one source below it is refused as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.settings.levels import DEFAULT, LevelName, Levels, UnknownLevel, level_named, level_of_key
from actors.runtime.rules.setting_values import BadSetting
from streams.subjects import TOKEN

TOKENS = st.from_regex(TOKEN, fullmatch=True).filter(lambda text: text != "default")
NAMES = st.one_of(
    st.just(DEFAULT), st.builds(LevelName, TOKENS), st.builds(LevelName, TOKENS, st.from_regex(TOKEN, fullmatch=True))
)


@given(NAMES)
def test_names_and_keys_lead_back_to_the_level(name: LevelName) -> None:
    assert level_of_key(name.key) == name
    assert level_named(str(name)) == name


@pytest.mark.parametrize(
    "text",
    ["", "/", "mall/", "/shop", "a b", "mall/shop/x", "default/shop", "mall.shop", "*", "mall/>", "x" * 65, "Zürich"],
)
def test_what_is_no_level_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(UnknownLevel):
        level_named(text)


@pytest.mark.parametrize("key", ["fetch", "fetch.a.b.c", "fetch.default.shop", "source.mall.one", "fetch."])
def test_what_is_no_key_of_a_level_is_refused(key: str) -> None:
    with pytest.raises(UnknownLevel, match="not a level"):
        level_of_key(key)


def test_the_narrower_level_wins_name_by_name() -> None:
    levels = (
        Levels()
        .with_level(DEFAULT, {"slice": "2m", "retries": 1})
        .with_level(LevelName("mall"), {"slice": "3m"})
        .with_level(LevelName("mall", "one"), {"retries": 9})
    )
    one = levels.settings(LevelName("mall", "one"))
    assert (one.slice_ms, one.retries) == (180_000, 9)
    two = levels.settings(LevelName("mall", "two"))
    assert (two.slice_ms, two.retries) == (180_000, 1)
    assert levels.settings(LevelName("other", "x")).slice_ms == 120_000


def test_sources_without_values_of_their_own_share_one_object() -> None:
    levels = Levels().with_level(DEFAULT, {"slice": "2m"})
    assert levels.settings(LevelName("mall", "one")) is levels.settings(LevelName("mall", "two"))


def test_a_change_that_breaks_a_source_below_is_refused_and_names_it() -> None:
    levels = Levels().with_level(LevelName("mall", "one"), {"slice": "5s"})
    with pytest.raises(BadSetting, match="at mall/one") as refused:
        levels.with_level(DEFAULT, {"overlap_before": "10s"})
    assert refused.value.name == "overlap_before"
    assert levels.settings(LevelName("mall", "one")).slice_ms == 5_000


def test_taking_away_a_level_is_refused_too_when_those_below_need_it() -> None:
    levels = (
        Levels()
        .with_level(LevelName("mall"), {"overlap_before": "0s", "overlap_after": "0s"})
        .with_level(LevelName("mall", "one"), {"slice": "1s"})
    )
    with pytest.raises(BadSetting, match="at mall/one"):
        levels.with_level(LevelName("mall"), None)


def test_a_level_that_was_taken_away_counts_no_more() -> None:
    levels = Levels().with_level(DEFAULT, {"retries": 1}).with_level(DEFAULT, None)
    assert levels.names() == []
    assert levels.settings(DEFAULT) == Levels().settings(DEFAULT)


@given(st.lists(st.tuples(NAMES, st.integers(0, 5)), max_size=12))
def test_what_was_resolved_before_changes_nothing(changes: list[tuple[LevelName, int]]) -> None:
    kept = Levels()
    for name, retries in changes:
        for known in [*kept.names(), name]:
            kept.settings(known)
        kept = kept.with_level(name, {"retries": retries})
    last = dict(changes)
    fresh = Levels({name: {"retries": retries} for name, retries in last.items()})
    for name in [*last, *(LevelName(name.platform) for name in last)]:
        assert kept.settings(name) == fresh.settings(name)
