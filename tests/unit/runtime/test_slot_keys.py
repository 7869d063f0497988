"""Which key a body has, and which settings of slots are refused."""

import pytest

from actors.jobs.rules.topic_settings import parse_topic
from actors.runtime.rules.setting_values import BadSetting
from actors.runtime.rules.slot_keys import LONGEST_KEY, Slots, check_slots, full_key, key_reader


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("", b'{"a":1}', ""),
        ("a", b'{"a":"x"}', "x"),
        ("merchant.id", b'{"merchant":{"id":42,"n":1}}', "42"),
        ("merchant.id", b'{"merchant":{"id":"42"}}', "42"),
        ("1.id", b'["shard",{"id":7}]', "7"),
        ("1", b'{"1":"x"}', "x"),
        ("9", b"[1]", ""),
        ("a.1.b", b'{"a":[0,{"b":"x"}]}', "x"),
        ("0.0", b"[[7]]", "7"),
        ("a", b'{"a":true}', "true"),
        ("a", b'{"a":{"z":1,"b":2}}', '{"b":2,"z":1}'),
        ("a", b'{"a":null}', ""),
        ("a", b"{}", ""),
        ("a.b", b'{"a":5}', ""),
        ("a", b"[1,2]", ""),
        ("a", b"null", ""),
        ("a", b"not json", ""),
        ("a", b'{"a":"\xff"}', ""),
    ],
)
def test_the_key_is_what_the_path_finds(path: str, body: bytes, key: str) -> None:
    assert key_reader(path)(body) == key


def test_a_long_key_is_cut_and_stays_apart_from_others() -> None:
    read = key_reader("a")
    one, other = read(b'{"a":"%s1"}' % (b"x" * 500)), read(b'{"a":"%s2"}' % (b"x" * 500))
    assert one != other
    assert len(one) <= LONGEST_KEY
    assert read(b'{"a":"a\\nb"}').isprintable()


@pytest.mark.parametrize(
    "slots",
    [Slots(0), Slots(1_001), Slots(True), Slots(1, "a..b"), Slots(1, "a\n"), Slots(1, when_full="no")],  # type: ignore[arg-type] # as users may
)
def test_slots_that_make_no_sense_are_refused(slots: Slots) -> None:
    with pytest.raises(BadSetting):
        check_slots(slots)


@pytest.mark.parametrize(
    "document", [b'{"slots":-1}', b'{"slots":1.5}', b'{"slot_key":".a"}', b'{"slot_key":1}', b'{"when_full":"wait"}']
)
def test_settings_of_slots_that_make_no_sense_are_refused(document: bytes) -> None:
    with pytest.raises(BadSetting):
        parse_topic(document)


@pytest.mark.parametrize(
    ("key", "most", "holders", "text"),
    [
        ("7", 2, (("a", 1),), ""),
        ("7", 2, (("a", 1), ("b", 1)), "all 2 slots of its key '7' are taken: a has 1, b has 1"),
        ("", 1, (("a", 1),), "the one slot of its key is taken: a has 1"),
        ("7", 4, tuple((node, 1) for node in "abcd"), "a has 1, b has 1, c has 1 and 1 more nodes have the others"),
    ],
)
def test_who_has_the_slots_of_a_full_key_is_told(
    key: str, most: int, holders: tuple[tuple[str, int], ...], text: str
) -> None:
    told = full_key(key, most, holders)
    assert told.endswith(text)
    assert bool(told) == bool(text)
