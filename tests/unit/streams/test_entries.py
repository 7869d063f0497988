"""Entries decode when looked at, and say which key is broken; headers that decide are read right."""

from typing import Any

import msgspec
import pytest

from streams.buckets.entries import Codec, Entry, is_marker, ttl_of
from streams.buckets.watch import Delivered, delivered_of
from streams.errors import MalformedMessage


class Shop(msgspec.Struct, frozen=True):
    name: str
    count: int = 0


BROKEN = [
    pytest.param(b'{"name": "a', id="truncated"),
    pytest.param(b"", id="empty"),
    pytest.param(b'{"count": 1}', id="field-missing"),
    pytest.param(b'{"name": 5}', id="wrong-type"),
    pytest.param(b'{"name": "a", "count": NaN}', id="nan"),
    pytest.param(b'{"name": "a", "count": 1e400}', id="out-of-range"),
    pytest.param(b'{"name": "a", "count": Infinity}', id="infinity"),
    pytest.param(b'{"name": "\xff\xfe"}', id="invalid-utf8"),
    pytest.param(b'{"name": "\\ud800"}', id="lone-surrogate"),
    pytest.param(b'\xef\xbb\xbf{"name": "a"}', id="byte-order-mark"),
    pytest.param(b"[" * 50_000 + b"]" * 50_000, id="deep"),
    pytest.param(b'{"name": "a", "x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", id="deep-in-an-unknown-field"),
]


def entry(raw: bytes) -> Entry[Shop]:
    return Entry("fetch.mall", raw, 7, Codec(Shop).decode)


@pytest.mark.parametrize("raw", BROKEN)
def test_a_broken_value_names_its_key_and_revision_when_looked_at(raw: bytes) -> None:
    broken = entry(raw)
    assert broken.raw == raw
    with pytest.raises(MalformedMessage, match=r"key fetch\.mall at revision 7: .*delete the key"):
        _ = broken.value


def test_deep_nesting_without_a_type_is_refused_too() -> None:
    deep: Entry[Any] = Entry("k", b"[" * 100_000 + b"]" * 100_000, 1, Codec[Any](object).decode)
    with pytest.raises(MalformedMessage):
        _ = deep.value


def test_unknown_fields_are_ignored_and_of_doubled_keys_the_last_counts() -> None:
    assert entry(b'{"v": 99, "name": "a", "name": "b"}').value == Shop("b")


def test_a_number_beyond_64_bit_does_not_wrap() -> None:
    assert entry(b'{"name": "a", "count": 9223372036854775808}').value.count == 2**63


def test_a_value_is_decoded_once() -> None:
    calls: list[bytes] = []

    def decode(raw: bytes) -> bytes:
        calls.append(raw)
        return raw

    looked_at = Entry("k", b"x", 1, decode)
    assert calls == []
    assert (looked_at.value, looked_at.value) == (b"x", b"x")
    assert calls == [b"x"]


def test_bytes_pass_as_they_are() -> None:
    codec = Codec(bytes)
    assert codec.encode(b"\xff\x00") == b"\xff\x00"
    assert codec.decode(b"\xff\x00") == b"\xff\x00"
    with pytest.raises(TypeError, match="holds bytes, not str"):
        codec.encode("text")  # type: ignore[arg-type]  # what an untyped caller may pass


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5", 5), ("5s", 5), ("1m30s", 90), ("2h", 7200), ("1m0s", 60), ("never", None), ("", None), ("x", None)],
)
def test_a_time_to_live_is_read_as_the_server_reads_it(text: str, seconds: int | None) -> None:
    assert ttl_of(text) == seconds


def test_markers_are_told_from_values() -> None:
    assert is_marker(b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n")
    assert is_marker(b"NATS/1.0\r\nNats-TTL: 1s\r\nNats-Marker-Reason: MaxAge\r\n\r\n")
    assert not is_marker(b"NATS/1.0\r\nPenstock-Write: KV-Operation:\r\n\r\n")
    assert not is_marker(None)


def test_the_numbers_of_a_delivery_are_read_from_both_forms() -> None:
    numbers = Delivered(revision=11, order=2, stored_ms=1_700_000_000_123, pending=4)
    assert delivered_of(b"$JS.ACK.S.C.1.11.2.1700000000123456789.4") == numbers
    assert delivered_of(b"$JS.ACK.domain.hash.S.C.1.11.2.1700000000123456789.4") == numbers
    assert delivered_of(b"$JS.ACK.domain.hash.S.C.1.11.2.1700000000123456789.4.random") == numbers
