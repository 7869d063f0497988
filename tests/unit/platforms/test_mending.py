"""Text that was cut in the middle of a sign does not make a page unreadable, and what is sound stays as it is."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.adapter import Response
from platforms.errors import Garbled
from platforms.mending import mend, read_json
from tests.unit.platforms.declared_example import adapter

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values, st.booleans())
def test_sound_json_without_control_signs_is_left_byte_for_byte(value: object, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert mend(body) == body


@given(st.text(st.integers(0xD800, 0xDFFF).map(chr) | st.sampled_from('a\\"\n\tü😀'), max_size=12))
def test_text_with_lone_halves_of_signs_can_be_read_after_mending(text: str) -> None:
    """Python writes lone halves as escapes, as PHP and JavaScript do."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    read = msgspec.json.decode(mend(json.dumps(text).encode()))
    assert len(read) <= len(text)
    if "\ufffd" not in whole:
        assert read == whole


@given(st.binary(max_size=60))
def test_mending_never_fails_and_gives_text(body: bytes) -> None:
    mended = mend(body)
    assert mend(mended) == mended
    assert all(ord(sign) >= 32 for sign in mended.decode())


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (rb"cut \ud83d", "cut �"),
        (rb"\ude00 lost", "� lost"),
        (rb"\ud83d\ud83d\ude00", "�😀"),
        (rb"whole \ud83d\ude00", "whole 😀"),
        (rb"a path \\ud83d", r"a path \ud83d"),
        (rb"C:\\\ud83d", "C:\\�"),
        (b"half \xe8\x8c", "half �"),
        (b"Latin \xfc", "Latin �"),
        (b"tab\there", "tab here"),
        (b"line\r\nend", "line  end"),
        (b"nul\x00", "nul "),
    ],
)
def test_an_order_with_broken_text_arrives_and_so_do_its_neighbours(written: bytes, read: str) -> None:
    rows = b'{"id":"a","v":1,"at":1700000000000},{"id":"b","v":1,"at":1700000000000,"remark":"%b"}' % written
    page = adapter().page(Response(200, {}, b'{"orders":[%b],"total":2}' % rows))
    assert [row.key for row in page.rows] == ["a", "b"]
    assert page.rows[0].body == b'{"id":"a","v":1,"at":1700000000000}'
    assert msgspec.json.decode(page.rows[1].body)["remark"] == read


def test_a_byte_order_mark_is_no_harm() -> None:
    assert adapter().page(Response(200, {}, b'\xef\xbb\xbf{"orders":[],"total":0}')).total == 0


def test_what_javascript_has_no_json_for_is_null_as_it_writes_it() -> None:
    """Python's own writer sends NaN, and one of them would make its page, and so its window, unreadable for good."""
    rows = (
        b'{"id":"a","v":1,"at":1700000000000,"w":NaN,"x":[-Infinity,NaN],"note":"NaN \\" Infinity"},'
        b'{"id":"b","v":NaN,"at":1700000000000}'
    )
    page = adapter().page(Response(200, {}, b'{"orders":[%b],"total":2}' % rows))
    (order,) = page.rows
    assert order.body == b'{"id":"a","v":1,"at":1700000000000,"w":null,"x":[null,null],"note":"NaN \\" Infinity"}'
    assert [row.key for row in page.bad] == ["b"]


@pytest.mark.parametrize("value", [b"nan", b"-NaN1", b"01", b"+1", b"'a'", b"{a:1}"])
def test_what_is_no_value_is_not_guessed_at(value: bytes) -> None:
    with pytest.raises(Garbled):
        adapter().page(Response(200, {}, b'{"orders":[],"x":%b}' % value))


def test_sound_json_of_the_wrong_shape_is_not_read_twice() -> None:
    calls = []

    def decode(body: bytes) -> int:
        calls.append(body)
        return msgspec.json.decode(body, type=int)

    with pytest.raises(msgspec.ValidationError):
        read_json(decode, b'"x"')
    assert len(calls) == 1
