"""Chunks, results and pointers say what they were given, and nothing broken passes for one."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from streams.errors import MalformedMessage
from streams.messages.batch import (
    Chunk,
    ChunkResult,
    Outcome,
    Pointer,
    Status,
    decode_chunk,
    decode_pointer,
    decode_result,
    encode_message,
    last_outcomes,
    ranges_of,
)


@given(st.sets(st.integers(0, 200)))
def test_ranges_hold_their_indexes_and_no_others(indexes: set[int]) -> None:
    ranges = ranges_of(sorted(indexes))
    assert [index for start, end in ranges for index in range(start, end)] == sorted(indexes)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


STATUSES: list[Status] = ["ok", "failed", "again", "unknown", "skipped", "cancelled"]


@given(st.lists(st.dictionaries(st.integers(10, 19), st.sampled_from(STATUSES)), max_size=4))
def test_an_item_stands_as_the_last_round_that_ran_it_says(rounds: list[dict[int, Status]]) -> None:
    results = [
        ChunkResult(
            chunk=1,
            round=at + 1,
            ran=ranges_of(sorted(ends)),
            others=tuple(Outcome(index, status) for index, status in ends.items() if status != "ok"),
        )
        for at, ends in enumerate(rounds)
    ]
    expected: dict[int, str] = {}
    for ends in rounds:
        expected |= ends
    chunk = Chunk(first=10, items=(Raw(b"0"),) * 10)
    told = [decode_result(encode_message(each)) for each in reversed(results)]
    stands = {at + 10: end.status for at, end in enumerate(last_outcomes(chunk, told)) if end is not None}
    assert stands == expected


def test_messages_decode_to_themselves() -> None:
    chunk = Chunk(first=5, items=(Raw(b'{"a":1}'), Raw(b"null")))
    assert encode_message(decode_chunk(encode_message(chunk))) == b'{"first":5,"items":[{"a":1},null]}'
    pointer = Pointer(step="map", task="t", instance_id="i", chunk=3, round=1)
    assert decode_pointer(encode_message(pointer)) == pointer


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"step":"dance"}', b"\xff", b'{"first":"x","items":[]}'])
@pytest.mark.parametrize("decode", [decode_chunk, decode_result, decode_pointer])
def test_what_is_broken_is_told(decode: Any, payload: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(payload)
