"""Dead letters are counted while the event loop serves others."""

from typing import cast

import pytest

from actors.runtime import dead_counts
from actors.runtime.dead_counts import MOST_LISTED, DeadCounts
from streams.link.connection import Connection
from streams.reads.log import Extent
from streams.subjects import Namespace
from tests.support.loop_turns import longest_turn_ms


class Known:
    namespace = Namespace("penstock")


async def test_a_hundred_thousand_dead_letters_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = {Known.namespace.dead("jobs", f"t{at % 7}", f"j{at}"): 1 for at in range(MOST_LISTED)}

    async def extent_of(*_asked: object) -> Extent:
        return Extent(MOST_LISTED, 1, MOST_LISTED, 0)

    async def subjects_of(*_asked: object) -> dict[str, int]:
        return subjects

    monkeypatch.setattr(dead_counts, "extent_of", extent_of)
    monkeypatch.setattr(dead_counts, "subjects_of", subjects_of)
    async with longest_turn_ms() as longest_ms:
        counts = await DeadCounts(cast(Connection, Known), is_left_out=lambda engine, _id: engine == "fetch").look()
        assert longest_ms() < 15
    assert sum(counts.values()) == MOST_LISTED
