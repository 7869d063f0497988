"""What waits for a place is taken in turn, and a place that waits is woken for each job."""

import asyncio

from actors.jobs.worker.ready import ReadyJobs
from streams.link.frames import Message
from streams.messages.jobs import Priority
from streams.pull.delivery import Delivery


class Holder:
    def send(self, frame: bytes) -> None: ...
    def settled(self, delivery: Delivery) -> None: ...
    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message:
        raise NotImplementedError


def delivery(name: str) -> Delivery:
    return Delivery(Holder(), f"jobs.{name}".encode(), b"$JS.ACK.JOBS.c.1.17.42.1.9", b"", None)


def filled(*lanes: tuple[Priority, int], limit: int | None = None) -> ReadyJobs:
    ready = ReadyJobs(lambda most: most if limit is None else min(most, limit))
    ready.is_limited = limit is not None
    for priority, count in lanes:
        ready.lane(priority).extend(delivery(f"{priority}.{n}") for n in range(count))
    return ready


def names(deliveries: list[Delivery]) -> list[str]:
    return [each.subject.removeprefix("jobs.") for each in deliveries]


def test_single_lane_is_taken_in_order_and_up_to_what_is_asked_for() -> None:
    ready = filled(("normal", 5))
    assert names(ready.take(3)) == ["normal.0", "normal.1", "normal.2"]
    assert names(ready.take(3)) == ["normal.3", "normal.4"]
    assert ready.take(3) == []
    assert len(ready) == 0


def test_every_eighth_turn_begins_with_the_lowest_lane() -> None:
    ready = filled(("low", 20), ("high", 20), ("normal", 20))
    taken = [names(ready.take(1))[0].partition(".")[0] for _ in range(16)]
    assert taken.count("low") == 2
    assert taken.count("high") == 14


def test_no_more_is_taken_than_may_be_begun() -> None:
    assert names(filled(("normal", 5), limit=2).take(4)) == ["normal.0", "normal.1"]
    assert filled(("normal", 5), limit=0).take(4) == []


def test_what_comes_last_is_given_up_first() -> None:
    ready = filled(("high", 2), ("normal", 2), ("low", 2))
    assert names(ready.remove_last(3)) == ["low.1", "low.0", "normal.1"]
    assert len(ready) == 3
    assert names(ready.remove_last(10)) == ["normal.0", "high.1", "high.0"]


def test_what_is_meant_is_removed_from_its_lane() -> None:
    ready = filled(("high", 2), ("normal", 2))
    assert names(ready.remove(lambda each: each.subject.endswith(".1"))) == ["high.1", "normal.1"]
    assert names(list(ready.waiting())) == ["high.0", "normal.0"]
    assert names(ready.remove_all()) == ["high.0", "normal.0"]


async def places(ready: ReadyJobs, count: int, taken: list[str]) -> list[asyncio.Task[None]]:
    """Start places that take one job after the other, and do nothing with it."""

    async def serve() -> None:
        while True:
            found = ready.take(1)
            if found:
                ready.wake_next()
                taken.extend(names(found))
                await asyncio.sleep(0)
            else:
                await ready.turn()

    tasks = [asyncio.create_task(serve()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_each_job_finds_a_place_however_few_are_woken() -> None:
    ready, taken = ReadyJobs(lambda most: most), list[str]()
    queue = ready.lane("normal")
    tasks = await places(ready, 3, taken)
    for number in range(50):
        queue.append(delivery(str(number)))
        ready.wake()
        if number % 7 == 0:
            await asyncio.sleep(0)
    for _ in range(60):
        await asyncio.sleep(0)
    await ended(tasks)
    assert sorted(map(int, taken)) == list(range(50))


async def test_place_that_is_cancelled_while_it_is_woken_leaves_its_turn_to_the_next() -> None:
    ready, taken = ReadyJobs(lambda most: most), list[str]()
    queue = ready.lane("normal")
    first, *others = await places(ready, 2, taken)
    queue.append(delivery("1"))
    ready.wake()
    first.cancel()  # in the same turn of the loop: it has been woken, and has not run yet
    for _ in range(5):
        await asyncio.sleep(0)
    assert taken == ["1"]
    queue.append(delivery("2"))
    ready.wake()
    for _ in range(5):
        await asyncio.sleep(0)
    assert taken == ["1", "2"]
    await ended(others)


async def test_cancelled_place_that_waits_is_not_woken() -> None:
    ready, taken = ReadyJobs(lambda most: most), list[str]()
    queue = ready.lane("normal")
    first, *others = await places(ready, 2, taken)
    first.cancel()
    queue.append(delivery("1"))
    ready.wake()  # the cancelled one still stands first in the line
    for _ in range(5):
        await asyncio.sleep(0)
    assert taken == ["1"]
    await ended(others)
