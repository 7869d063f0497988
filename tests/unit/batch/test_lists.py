"""A page of a list of batches costs what is in it, and a search through all leaves the event loop its turns."""

from typing import cast

from actors.batch.desk import BatchDesk
from actors.batch.instances import Instances
from actors.batch.items import BatchItems
from actors.batch.rules.record import Instance
from actors.batch.tasks import Tasks
from streams.buckets.bucket import Bucket
from streams.buckets.files import Files
from streams.clock import SYSTEM
from tests.support.loop_turns import longest_turn_ms

COUNT = 50_000
NONE = cast(Bucket[bytes], None)


class Counted(Instances):
    """Instances that nobody stored, and how many of them were read."""

    def __init__(self) -> None:
        super().__init__(NONE)
        self.read = 0
        for at in range(COUNT):
            record = Instance(instance_id=f"i{at}", task="t", created_ms=at, state="failed" if at == 7 else "done")
            self._live.learn(record.instance_id, record, at + 1)

    def seen(self, instance_id: str) -> Instance | None:
        self.read += 1
        return super().seen(instance_id)


async def test_a_page_of_a_long_list_costs_what_is_in_it_and_a_search_leaves_the_loop_its_turns() -> None:
    instances = Counted()
    desk = BatchDesk(
        tasks=Tasks(NONE),
        instances=instances,
        items=cast(BatchItems, None),
        files=cast(Files, None),
        beats=NONE,
        clock=SYSTEM,
    )
    first, place = await desk.all(most=10)
    second, _ = await desk.all(most=10, after=place)
    newest = [f"i{at}" for at in range(COUNT - 1, COUNT - 21, -1)]
    assert [view.instance_id for view in (*first, *second)] == newest
    assert instances.read < 30
    async with longest_turn_ms() as longest_ms:
        [failed], place = await desk.all(state="failed")
        assert longest_ms() < 15
    assert (failed.instance_id, place) == ("i7", "")
    assert instances.read > COUNT
