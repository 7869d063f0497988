"""Several timers: how they share the partitions, take them over, and give each other what they know."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

from actors.jobs.delay_timer import partitions, shared_times
from actors.jobs.delay_timer.shared_times import SharedTimes
from actors.jobs.delay_timer.timer import LEAD_MS
from actors.jobs.rules.due_times import PARTITIONS
from actors.runtime.rules.placement import ranking
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer
from streams.jobs.delayed import DelayedJobs, encode_notice
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from streams.subjects import token_of
from tests.support.moments import a_moment
from tests.support.timers import (
    delay,
    running_timer,
    timer_beside,
    until_complete,
    until_ready,
)

pytestmark = pytest.mark.timeout(300)

WITHIN_S = 180
HOUR_MS = 3_600_000
BACKSTOP_MS = 15_000
"""By when the server fires what no timer has fired, where a busy machine may need seconds to find out who is gone. A
timer leaves to the server whatever is later than that."""


async def test_two_timers_share_the_partitions_and_one_takes_all_when_the_other_leaves(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher, name="first") as first:
            await until_complete(first.timer)
            async with timer_beside(server, connection, "second") as second:
                while not second.timer.held or len(first.timer.held) + len(second.timer.held) < PARTITIONS:
                    await a_moment()
                assert not first.timer.held & second.timer.held
                assert first.timer.held
            await until_complete(first.timer)


async def test_the_jobs_of_a_killed_timer_are_taken_over_within_five_seconds(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    """The one that is killed loses its link, so it neither releases nor says good-bye."""
    with anyio.fail_after(WITHIN_S):
        async with connect(server.url, name="doomed", namespace=connection.namespace) as link:
            async with anyio.create_task_group() as tasks:
                is_up = anyio.Event()

                async def doomed() -> None:
                    with suppress(BaseExceptionGroup):
                        async with Publisher(link) as own, running_timer(link, own, name="doomed") as firer:
                            await until_complete(firer.timer)
                            is_up.set()
                            await anyio.sleep_forever()

                tasks.start_soon(doomed)
                await is_up.wait()
                await delay(connection, publisher, "job", now_ms() + 6_000)
                await link.close()
                killed_s = monotonic_s()
                async with running_timer(connection, publisher, name="heir") as heir:
                    await until_complete(heir.timer)
                    took_s = monotonic_s() - killed_s
                    (ready,) = await until_ready(connection, 1)
                    assert heir.heard.left == 0
                    assert ready.stored_ms >= ready.due_ms
    assert took_s < 5 + 20  # five, and what a busy machine adds


async def test_the_next_in_line_fires_for_a_holder_whose_link_is_gone(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before the lease ends: only the server tells that nobody listens any more."""
    monkeypatch.setattr(partitions, "TTL_S", WITHIN_S)
    monkeypatch.setattr("actors.jobs.delay_timer.timer.BACKSTOP_MS", BACKSTOP_MS)
    with anyio.fail_after(WITHIN_S):
        async with (
            connect(server.url, name="holder", namespace=connection.namespace) as link,
            anyio.create_task_group() as tasks,
        ):
            is_up = anyio.Event()

            async def holder() -> None:
                with suppress(BaseExceptionGroup):
                    async with Publisher(link) as own, running_timer(link, own, name="holder", ttl_s=WITHIN_S) as firer:
                        await until_complete(firer.timer)
                        is_up.set()
                        await anyio.sleep_forever()

            tasks.start_soon(holder)
            await is_up.wait()
            async with running_timer(connection, publisher, name="next", ttl_s=WITHIN_S) as firer:
                lines = {n: ranking(f"jobs.timer.{n}", ("holder", "next")) for n in range(PARTITIONS)}
                own = {n for n, line in lines.items() if line[0] == "next"}
                while len(firer.timer._swept) < PARTITIONS or firer.timer.held != own:  # it has those where it is first
                    await a_moment()
                held, due_ms = firer.timer.held, now_ms() + 2_000
                assert len(held) < PARTITIONS
                for n in range(60):
                    await delay(connection, publisher, f"standby {n}", due_ms + 10 * n, server_ms=due_ms + BACKSTOP_MS)
                while now_ms() < due_ms - 700:
                    await a_moment()
                await link.close()
                ready = await until_ready(connection, 60)
                assert firer.timer.held == held  # the leases stood all the time
                assert firer.heard.left == 0
                assert all(due_ms <= job.due_ms <= job.stored_ms < due_ms + BACKSTOP_MS for job in ready)


async def test_who_hands_a_partition_over_fires_what_is_due_until_the_other_one_has_read_its_jobs(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "HAND_OVER_MS", 1_000 * WITHIN_S)
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher, name="first") as first:
            await until_complete(first.timer)
            async with timer_beside(server, connection, "second") as second:
                while not second.timer._fired:
                    await a_moment()
                assert len(first.timer.held) == PARTITIONS
                for n in range(60):
                    await delay(connection, publisher, f"handed {n}", now_ms() + 500)
                ready = await until_ready(connection, 60)
                assert len({job.id for job in ready}) == len(ready)
                assert first.heard.left == 0


async def test_of_two_that_stand_by_one_fires_for_a_holder_whose_link_is_gone(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "TTL_S", WITHIN_S)
    monkeypatch.setattr("actors.jobs.delay_timer.timer.BACKSTOP_MS", BACKSTOP_MS)
    with anyio.fail_after(WITHIN_S):
        async with (
            connect(server.url, name="gone", namespace=connection.namespace) as link,
            connect(server.url, name="other", namespace=connection.namespace) as other,
            Publisher(other) as others_publisher,
            anyio.create_task_group() as tasks,
        ):
            is_up = anyio.Event()

            async def holder() -> None:
                with suppress(BaseExceptionGroup):
                    async with Publisher(link) as own, running_timer(link, own, name="gone", ttl_s=WITHIN_S) as firer:
                        await until_complete(firer.timer)
                        is_up.set()
                        await anyio.sleep_forever()

            tasks.start_soon(holder)
            await is_up.wait()
            async with (
                running_timer(connection, publisher, name="one", ttl_s=WITHIN_S) as one,
                running_timer(other, others_publisher, name="two", ttl_s=WITHIN_S) as two,
            ):
                while not (one.timer._swept == two.timer._swept == frozenset(range(PARTITIONS))) or not (
                    one.timer.held and two.timer.held
                ):
                    await a_moment()
                due_ms = now_ms() + 2_000
                for n in range(60):
                    await delay(connection, publisher, f"of two {n}", due_ms + 10 * n, server_ms=due_ms + BACKSTOP_MS)
                while now_ms() < due_ms - 700:
                    await a_moment()
                await link.close()
                is_in_time = now_ms() < due_ms  # else the holder has fired some itself
                ready = await until_ready(connection, 60)
                assert len({job.id for job in ready}) == len(ready)
                while is_in_time and len(one.heard.late_s) + len(two.heard.late_s) < 50:
                    await a_moment()
                assert one.heard.left == two.heard.left == 0
                while one.timer._fired & two.timer._fired:  # where one gives back what the other stands in for
                    await a_moment()


async def test_a_timer_that_knows_no_due_times_yet_is_not_handed_any(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher, name="first") as first:
            await until_complete(first.timer)
            may_read = anyio.Event()

            async def nobody(self: SharedTimes, n: int, take: Callable[..., object]) -> bool:
                return False

            sweep = DelayedJobs.sweep

            async def later(self: DelayedJobs, stream: str, take: Callable[..., object], **more: Any) -> int:
                await may_read.wait()
                return await sweep(self, stream, take, **more)

            monkeypatch.setattr(DelayedJobs, "sweep", later)
            monkeypatch.setattr(SharedTimes, "get", nobody)
            async with timer_beside(server, connection, "newcomer") as second:
                await delay(connection, publisher, "while it reads", now_ms() + 1_500)
                await until_ready(connection, 1)
                assert len(first.timer.held) == PARTITIONS
                may_read.set()
                while not second.timer.held:
                    await a_moment()


async def test_a_timer_that_starts_gets_the_due_times_from_another_and_reads_no_stream(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets those, too, that the first one has read ahead. Only a timer fires them within the test."""
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher, name="first") as first:
            await until_complete(first.timer)
            soon_ms = now_ms() + 8_000
            for n in range(30):
                await delay(connection, publisher, f"soon {n}", soon_ms + n)
                await delay(connection, publisher, f"late {n}", soon_ms + HOUR_MS)
            while (first.timer.known < 60 and now_ms() < soon_ms) or not first.timer._loaded:
                await a_moment()

            async def none(self: DelayedJobs, take: Callable[..., object], **more: Any) -> int:
                raise AssertionError("it reads the stream")

            monkeypatch.setattr(DelayedJobs, "sweep", none)
            monkeypatch.setattr(shared_times, "A_REPLY", 3)
            async with timer_beside(server, connection, "newcomer") as second:
                while len(second.timer._swept) < PARTITIONS:
                    await a_moment()
                known = 60 if now_ms() < soon_ms - 1_000 else 30  # on a busy machine it may come when they are fired
                while second.timer.known < known:
                    await a_moment()
                assert {job.id for job in await until_ready(connection, 30)} == {f"soon {n}" for n in range(30)}


async def test_a_timer_that_starts_hears_of_what_another_is_reading(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of that only by the other's replies: it does not read the stream."""
    read, may_read, is_reading = DelayedJobs.read, anyio.Event(), anyio.Event()

    async def later(self: DelayedJobs, names: Any) -> Any:
        is_reading.set()
        await may_read.wait()
        return await read(self, names)

    async def none(self: DelayedJobs, take: Callable[..., object], **more: Any) -> int:
        raise AssertionError("it reads the stream")

    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher, name="first") as first:
            await until_complete(first.timer)
            monkeypatch.setattr(DelayedJobs, "read", later)
            monkeypatch.setattr(DelayedJobs, "sweep", none)
            await delay(connection, publisher, "job", now_ms() + 1_000)
            await is_reading.wait()
            async with timer_beside(server, connection, "newcomer") as second:
                while len(second.timer._swept) < PARTITIONS:
                    await a_moment()
                heard = [due.name for n in range(PARTITIONS) for due in second.timer._known_after(n, None, 10) or ()]
                assert len(heard) == 1
                may_read.set()
                await until_ready(connection, 1)


async def test_jobs_that_are_due_soon_after_one_another_are_read_together(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read takes those along that need not be read yet. It reads as many at once on a machine of any pace."""
    read, ahead_ms, dues = DelayedJobs.read, list[int](), dict[bytes, int]()

    async def noted(self: DelayedJobs, names: Any) -> Any:
        ahead_ms.append(max(dues[name] for name in names) - now_ms())
        return await read(self, names)

    monkeypatch.setattr(DelayedJobs, "read", noted)
    monkeypatch.setattr("actors.jobs.delay_timer.timer.READ_S", 60.0)
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            start_ms = now_ms() + 5_000
            for n in range(200):
                dues[f"mail.{token_of(f'job-{n}')}".encode()] = due_ms = start_ms + 10 * n
                await delay(connection, publisher, f"job-{n}", due_ms)
            await until_ready(connection, 200)
    assert max(ahead_ms) > LEAD_MS + 50  # the clocks agree to some milliseconds


async def test_a_job_whose_read_has_no_answer_is_read_again(
    connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a timer fires it within the test."""
    read, asked = DelayedJobs.read, list[set[bytes]]()

    async def unanswered_at_first(self: DelayedJobs, names: Any) -> Any:
        asked.append(set(names))
        return ([], asked[0]) if len(asked) == 1 else await read(self, names)

    monkeypatch.setattr(DelayedJobs, "read", unanswered_at_first)
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            due_ms = now_ms() + 5_000
            await delay(connection, publisher, "job", due_ms)
            while len(asked) < 2:
                await a_moment()
    assert asked[0] == asked[1] == {b"mail.job"}


async def test_a_request_for_due_times_that_is_none_does_no_harm(connection: Connection, publisher: Publisher) -> None:
    with anyio.fail_after(WITHIN_S):
        async with running_timer(connection, publisher) as firer:
            await until_complete(firer.timer)
            await delay(connection, publisher, "job", now_ms() + 1_000)
            for payload in (b"{", b"\xff", encode_notice([(1, 0, "no name at all")])):
                await connection.publish_core(connection.namespace.due_known(0), payload, reply=connection.new_inbox())
            await until_ready(connection, 1)
