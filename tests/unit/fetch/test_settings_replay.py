"""What is in force is computed from what is stored alone, in a time that grows with the number of levels."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actors.fetch.rules import settings as rules
from actors.fetch.rules.setting_table import Setting
from actors.fetch.rules.settings import parse_level, resolve
from actors.fetch.settings.levels import DEFAULT, LevelName, Levels, UnknownLevel, level_of_key
from actors.fetch.settings.replay import InForce, Kept, change_together, newest_together, replayed
from actors.runtime.rules.setting_values import BadSetting

KEYS = st.sampled_from(["fetch.default", "fetch.a", "fetch.b", "fetch.a.s", "fetch.a.t", "fetch.b.s", "fetch.a.b.c"])
TEXTS = st.one_of(
    st.sampled_from([None, b"{", b"{}", b'{"retries":-1}', b'{"retries":3,"rate":5}']),
    st.builds(
        lambda slice_s, overlap_s: (
            b'{"slice":"%ds","overlap_before":"%ds","overlap_after":"0s"}' % (slice_s, overlap_s)
        ),
        st.integers(1, 9),
        st.integers(0, 9),
    ),
    st.builds(lambda slice_s: b'{"slice":"%ds"}' % slice_s, st.integers(1, 9)),
    st.builds(lambda overlap_s: b'{"overlap_before":"%ds"}' % overlap_s, st.integers(0, 9)),
)
COURSES = st.lists(st.tuples(KEYS, TEXTS), max_size=14)


def kept(course: list[tuple[str, bytes | None]]) -> list[Kept]:
    return [Kept(revision, key, text) for revision, (key, text) in enumerate(course, start=1)]


def one_after_the_other(course: list[Kept]) -> InForce:
    """Apply values in order, and after each try all that wait again, until none fits: what `replayed` promises."""
    values: dict[LevelName, dict[str, object]] = {}
    waiting: dict[str, Kept] = {}
    newest: dict[str, int] = {}

    def fits(after: dict[LevelName, dict[str, object]]) -> bool:
        try:
            for at in after:
                default, platform = after.get(DEFAULT, {}), after.get(LevelName(at.platform), {})
                resolve(default, platform if at.platform else {}, after[at] if at.source else {})
        except BadSetting:
            return False
        return True

    for each in sorted(course):
        newest[each.key] = 0 if each.text is None else each.revision
        waiting[each.key] = each
        is_moving = True
        while is_moving:
            is_moving = False
            for key, one in sorted(waiting.items(), key=lambda item: item[1].revision):
                try:
                    name = level_of_key(key)
                    after = {known: found for known, found in values.items() if known != name}
                    if one.text is not None:
                        after[name] = parse_level(one.text, name.level)
                except (BadSetting, UnknownLevel):
                    continue
                if fits(after):
                    values, is_moving = after, True
                    del waiting[key]
    return InForce(Levels(values), newest, dict.fromkeys(waiting, ""))


@given(COURSES)
@example([("fetch.default", b'{"overlap_before":"9s","overlap_after":"0s"}'), ("fetch.a.s", b'{"slice":"2s"}')])
def test_a_replay_has_the_result_of_trying_all_again_after_each(course: list[tuple[str, bytes | None]]) -> None:
    found, wanted = replayed(kept(course)), one_after_the_other(kept(course))
    assert set(found.refused) == set(wanted.refused)
    assert found.newest == wanted.newest
    assert found.levels.names() == wanted.levels.names()
    for name in found.levels.names():
        assert found.levels.values(name) == wanted.levels.values(name)
        assert repr(found.levels.settings(name)) == repr(resolve(*wanted.levels.three(name)))


@given(COURSES, st.integers(0, 14))
def test_levels_that_are_changed_together_are_those_that_are_taken_at_once(
    course: list[tuple[str, bytes | None]], at: int
) -> None:
    last = {each.key: each for each in kept(course)}
    first = newest_together({each.key: each for each in kept(course[:at])}.values())
    if first is None:
        return
    before = {name: first.levels.values(name) for name in first.levels.names()}
    is_taken = change_together(first.levels, [each for each in last.values() if each.revision > at])
    wanted = newest_together(last.values())
    assert is_taken == (wanted is not None)
    if wanted is not None:
        assert first.levels.names() == wanted.levels.names()
        assert all(first.levels.settings(name) == wanted.levels.settings(name) for name in wanted.levels.names())
    else:
        assert {name: first.levels.values(name) for name in first.levels.names()} == before


def test_a_refused_level_is_not_tried_again_after_each_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read, count = rules._read, 0

    def counted(name: str, setting: Setting, value: object) -> object:
        nonlocal count
        count += 1
        return read(name, setting, value)

    monkeypatch.setattr(rules, "_read", counted)
    course: list[tuple[str, bytes | None]] = [(f"fetch.a.s{n}", b'{"slice":"5s"}') for n in range(200)]
    course.insert(100, ("fetch.default", b'{"overlap_before":"9s"}'))
    found = replayed(kept(course))
    assert (len(found.levels.names()), list(found.refused)) == (200, ["fetch.default"])
    assert count < 10 * len(course)
