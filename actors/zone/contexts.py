"""What the code of a zoned job gets: its shards, from where to start, and how to save."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

import anyio

from actors.zone.rules.shards import in_order
from actors.zone.run import Reader, ShardRun

Row = TypeVar("Row")


class ZoneScope:
    """The part that is the same for `async` code and for plain functions."""

    def __init__(self, run: ShardRun, pause_s: float) -> None:
        self._run = run
        self._pause_s = pause_s

    @property
    def job(self) -> str:
        """The job's key."""
        return self._run.job

    @property
    def zone(self) -> str:
        """The zone in which this run is."""
        return self._run.zone

    @property
    def shards(self) -> tuple[int | str, ...]:
        """The shards of this run: numbers, or region codes. They stay the same until the run ends."""
        ordered = in_order(self._run.names)
        return tuple(ordered) if self._run.shards.function == "region" else tuple(map(int, ordered))

    @property
    def epoch(self) -> int:
        """The version of the shard map. A sink that keeps the highest one of a shard, and refuses lower ones, takes no
        row from a former owner."""
        return self._run.shards.epoch

    @property
    def start_offset(self) -> int:
        """Where to go on: everything up to here is scanned in every shard of the run."""
        return self._run.at

    @property
    def ahead_offset(self) -> int:
        """Up to where rows may come again: the offset of the shard that was ahead of all when the run began."""
        return self._run.ahead

    def is_stopped(self) -> bool:
        """Return whether to return after this batch: the shards have moved, or the node stops."""
        return self._run.is_stopped()

    def owns(self, key: object) -> bool:
        """Return whether a row with this key belongs to this run. Raises BadKey."""
        return self._run.owns(key)

    def require(self, key: object) -> None:
        """Raise ShardElsewhere for a record that does not belong here, and write a line for the audit."""
        self._run.require(key)

    def mine(
        self, rows: Iterable[Row], *, key: Reader, offset: Reader | None = None, refuse: bool = False
    ) -> list[Row]:
        """Return the rows that belong to this run. `key`, `offset`: the name of a field, a place in a tuple, or a
        function. With `offset`, rows are left out that their shard has passed. With `refuse`, each row of another
        zone is a line for the audit, for rows that may not be in this zone at all. Raises RunEnded if the run is to
        end."""
        return self._run.mine(rows, key, offset, refuse=refuse)


class ZoneContext(ZoneScope):
    """Of `async` code."""

    async def save(self, offset: int) -> None:
        """Store that everything up to `offset` was scanned, kept or not. Raises RunEnded if another run has the shards
        now: then nothing counts, and the rows of this batch come again."""
        await self._run.save(offset)

    async def pause(self, seconds: float | None = None) -> None:
        """Wait before the next batch, by default the job's `pause`. A stop ends the wait."""
        with anyio.move_on_after(self._pause_s if seconds is None else seconds):
            await self._run.stopped.wait()


class PlainZoneContext(ZoneScope):
    """Of a plain function, which runs in a thread of its own."""

    def __init__(self, run: ShardRun, pause_s: float) -> None:
        super().__init__(run, pause_s)
        self._loop = asyncio.get_running_loop()
        self._async = ZoneContext(run, pause_s)

    def save(self, offset: int) -> None:
        """Store that everything up to `offset` was scanned, kept or not. Raises RunEnded if another run has the shards
        now: then nothing counts, and the rows of this batch come again."""
        asyncio.run_coroutine_threadsafe(self._async.save(offset), self._loop).result()

    def pause(self, seconds: float | None = None) -> None:
        """Wait before the next batch, by default the job's `pause`. A stop ends the wait."""
        asyncio.run_coroutine_threadsafe(self._async.pause(seconds), self._loop).result()
