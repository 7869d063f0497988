"""A dead zone whose shards nobody can take."""

from __future__ import annotations

import logging

import anyio
import pytest
from anyio import fail_after

from actors.zone.routing import Routing, change_map
from actors.zone.rules.routing import drained, made, next_map
from actors.zone.takeover import Takeover
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from tests.support.zone_land import WITHIN_S, Land


class Zones:
    """Who lives, as the test says. `looks`: how often that was asked."""

    def __init__(self) -> None:
        self.out: frozenset[str] = frozenset("a")
        self.looks = 0
        self.lapses = 0

    def may_run(self) -> bool:
        return True

    def dead(self) -> frozenset[str]:
        self.looks += 1
        return self.out


async def test_why_a_zone_is_not_taken_over_is_logged_once_and_that_it_has_ended(
    land: Land, caplog: pytest.LogCaptureFixture
) -> None:
    def bucket(short: str) -> Bucket[bytes]:
        return Bucket(land.connection, land.publisher, land.connection.namespace.bucket(short), bytes)

    caplog.set_level(logging.INFO, "actors.zone.takeover")
    lone = drained(made({"a": "0", "b": "1"}, count=2, takeover_ms=0), "b")
    maps, zones = bucket("ROUTING"), Zones()
    await change_map(maps, lambda _before: next_map(None, lone, at_ms=1, by="", why=""))
    routing = Routing(maps)
    takeover = Takeover(node="n", routing=routing, bucket=maps, leases=bucket("LEASES"), life=zones, clock=SYSTEM)
    async with anyio.create_task_group() as tasks:
        await tasks.start(routing.run)
        await tasks.start(takeover.run)
        with fail_after(WITHIN_S):
            while zones.looks < 4:  # noqa: ASYNC110 # it looks five times a second
                await anyio.sleep(0.02)
            zones.out = frozenset()
            while "zone.lives_again" not in caplog.messages:  # noqa: ASYNC110 # a log tells nobody
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    told = [record.message for record in caplog.records if record.name == "actors.zone.takeover"]
    assert told == ["zone.not_taken_over", "zone.lives_again"]
