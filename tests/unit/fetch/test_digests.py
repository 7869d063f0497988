"""Rows as eight bytes, and where they are looked for."""

from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.digests import HOUR_MS, SIZE, Digest, hours, piece_of, read_hashes, row_hash
from actors.fetch.rules.slices import Slice
from platforms.adapter import Row

TIMES = st.integers(0, 2_000_000_000_000)
KEYS = st.text(max_size=20)


@given(TIMES, st.integers(1, 100 * HOUR_MS))
def test_the_hours_cover_the_window_and_no_more(start_ms: int, length_ms: int) -> None:
    found = hours(start_ms, start_ms + length_ms)
    assert found[0] * HOUR_MS <= start_ms < (found[0] + 1) * HOUR_MS
    assert found[-1] * HOUR_MS < start_ms + length_ms <= (found[-1] + 1) * HOUR_MS


@given(KEYS, st.integers(0, 2**63 - 1), KEYS, st.integers(0, 2**63 - 1))
def test_rows_are_told_apart_by_key_and_version_alone(key: str, version: int, key2: str, version2: int) -> None:
    one, two = Row(key, version, 1, b"x"), Row(key2, version2, None, b"y")
    assert (row_hash(one) == row_hash(two)) == ((key, version) == (key2, version2))
    assert len(row_hash(one)) == SIZE


def test_a_key_of_broken_unicode_has_a_hash() -> None:
    assert row_hash(Row("\ud800", 1, 1, b"")) != row_hash(Row("?", 1, 1, b""))


@given(st.sets(st.binary(min_size=SIZE, max_size=SIZE)))
def test_what_is_kept_is_read_again(hashes: set[bytes]) -> None:
    assert read_hashes(Digest(len(hashes), b64encode(b"".join(sorted(hashes))).decode())) == hashes


def test_a_digest_written_by_hand_holds_nothing_or_whole_hashes() -> None:
    assert read_hashes(Digest(1, "no base64!")) == set()
    assert read_hashes(Digest(1, "ÿ")) == set()
    assert read_hashes(Digest(1, b64encode(b"12345678123").decode())) == {b"12345678"}


@given(st.sampled_from("tba"), st.integers(0, 99), TIMES, st.integers(1, HOUR_MS), st.sampled_from(["", "_1", "_27"]))
def test_a_key_says_which_slice_it_is_of(kind: str, epoch: int, start_ms: int, length_ms: int, part: str) -> None:
    piece = Slice(kind, epoch, start_ms, start_ms + length_ms)  # type: ignore[arg-type]  # one of the three letters
    assert piece_of(f"mall.s1.h1.{piece.slice_id}{part}") == piece


def test_a_key_of_another_form_is_of_no_slice() -> None:
    assert piece_of("mall.s1.h1.hello") is None
