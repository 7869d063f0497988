"""What no map can have is refused before the desk reads anything: reads of a server that is away take long."""

from typing import Any, cast

import pytest

from actors.zone.desk import ZoneDesk
from actors.zone.rules.changes import RoutingChange
from actors.zone.rules.routing import BadMap


class _Unread:
    async def of_all(self) -> dict[str, Any]:
        raise AssertionError("the desk reads offsets before it looks at the values")


@pytest.mark.parametrize(
    "change",
    [
        RoutingChange(weights={"east": -1}),
        RoutingChange(weights={"east": 1e9}),
        RoutingChange(drain="2d"),
        RoutingChange(takeover="soon"),
    ],
)
async def test_bad_values_are_refused_before_anything_is_read(change: RoutingChange) -> None:
    nothing: Any = cast(Any, None)
    desk = ZoneDesk(
        routing=nothing,
        offsets=_Unread(),
        changes=nothing,
        connection=nothing,
        nodes=dict,
        dead=frozenset,
        clock=nothing,
    )
    with pytest.raises(BadMap, match=r"use |not a duration"):
        await desk.apply(change)
