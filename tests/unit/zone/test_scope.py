"""Which shard of the map a shard of a flow is in."""

import pytest

from actors.zone.rules.routing import ShardMap
from actors.zone.scope import shard_named


@pytest.mark.parametrize(
    ("function", "name", "shard"),
    [
        ("number", "07", "7"),
        ("number", "orders_107", "7"),
        ("number", "orders", None),
        ("hash", "order-1", "79"),
        ("region", "DE", "DE"),
    ],
)
def test_a_shard_of_a_flow_is_found_by_its_name(function: str, name: str, shard: str | None) -> None:
    assert shard_named(ShardMap(function=function, count=100), name) == shard  # type: ignore[arg-type] # a parameter
