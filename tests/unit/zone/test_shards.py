"""Which shard a row is in. The vectors are published in docs/howto/zones.md: they hold for good."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.zone.rules.shards import BadKey, Function, in_order, numbered, shard_of, text_of

VECTORS: list[tuple[Function, int, object, str]] = [
    ("number", 100, 0, "0"),
    ("number", 100, 12_345, "45"),
    ("number", 7, "900719925474099312345", "1"),
    ("hash", 100, "order-1", "79"),
    ("hash", 100, "Zürich", "98"),
    ("hash", 1_000, "订单-42", "180"),
    ("hash", 16, 7, "2"),
    ("region", 0, "DE", "DE"),
]


@pytest.mark.parametrize(("function", "count", "key", "shard"), VECTORS)
def test_a_key_is_always_in_the_same_shard(function: Function, count: int, key: object, shard: str) -> None:
    assert shard_of(key, function, count) == shard


@pytest.mark.parametrize("key", [-1, 1.0, True, None, "", "1x", "-1", "١", [1]])
def test_a_key_that_is_no_number_is_refused(key: object) -> None:
    with pytest.raises(BadKey, match="is no whole number"):
        shard_of(key, "number", 100)


@pytest.mark.parametrize("key", [1.5, True, None, "", b"x", ("a",)])
def test_a_key_that_is_no_text_is_refused(key: object) -> None:
    with pytest.raises(BadKey, match="neither text nor"):
        shard_of(key, "hash", 100)


@given(st.text(min_size=1), st.integers(1, 1_000))
def test_every_text_is_in_one_of_the_shards(key: str, count: int) -> None:
    assert shard_of(key, "hash", count) in numbered(count)


def test_shards_are_written_as_ranges_in_the_order_of_numbers() -> None:
    assert text_of(["10", "2", "1", "0", "12"], "number") == "0-2,10,12"
    assert text_of([], "hash") == ""
    assert text_of(["FR", "DE"], "region") == "DE,FR"
    assert text_of(["841", "840"], "region") == "840,841"
    assert in_order(["b", "10", "9", "a"]) == ["9", "10", "a", "b"]
