"""Leases on a real server: one holder, a fence that rises, takeover after silence, and loss that stops the work."""

import anyio
import anyio.lowlevel
import pytest
from anyio import Event, create_task_group, fail_after

from streams.buckets.bucket import Bucket
from streams.buckets.lease import Lease, acquire, lead, read_record
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.errors import Disconnected, LeaseLost, OutcomeUnknown
from streams.link.connection import Connection, connect
from streams.publish.publisher import Publisher
from tests.support.buckets import bucket_of
from tests.support.proxy import proxy

ONE_LOOP = pytest.mark.asyncio(loop_factories=["asyncio"])
"""For tests that wait for the server's clock: the loop makes no difference to them."""


@pytest.fixture
async def leases(connection: Connection, publisher: Publisher) -> Bucket[bytes]:
    return await bucket_of(connection, publisher, bytes, has_ttl=True)


async def held(bucket: Bucket[bytes], holder: str, ttl_s: int) -> Lease:
    """Acquire the lease `k`, which must be free."""
    lease = await acquire(bucket, "k", holder, ttl_s=ttl_s)
    assert lease is not None
    return lease


async def test_one_of_two_contenders_holds_it(leases: Bucket[bytes]) -> None:
    got: list[Lease | None] = []

    async def contend(holder: str) -> None:
        got.append(await acquire(leases, "k", holder, ttl_s=60))

    with fail_after(20):
        async with create_task_group() as tasks:
            for holder in ("a", "b", "c"):
                tasks.start_soon(contend, holder)
    (winner,) = [lease for lease in got if lease]
    assert winner.is_held()
    entry = await leases.get("k")
    assert entry is not None
    record = read_record(entry.raw)
    assert record is not None
    assert record.holder == winner.holder


async def test_the_token_stays_over_renewals_and_rises_with_each_holder(leases: Bucket[bytes]) -> None:
    first = await held(leases, "a", 60)
    token = first.token
    for _ in range(3):
        await first.renew()
    entry = await leases.get("k")
    assert entry is not None
    assert (first.token, entry.revision) == (token, token + 3)
    await first.release()
    second = await held(leases, "b", 60)
    assert second.token > entry.revision


async def test_a_released_lease_is_free_at_once_and_not_held(leases: Bucket[bytes]) -> None:
    first = await held(leases, "a", 60)
    await first.release()
    assert not first.is_held()
    with pytest.raises(LeaseLost):
        await first.renew()
    assert (await held(leases, "b", 60)).is_held()


async def test_a_late_release_does_not_free_the_next_holders_lease(leases: Bucket[bytes]) -> None:
    first = await held(leases, "a", 60)
    entry = await leases.get("k")
    assert entry is not None
    await leases.delete("k", revision=entry.revision)
    second = await held(leases, "b", 60)
    await first.release()
    assert await acquire(leases, "k", "c", ttl_s=60) is None
    await second.renew()
    assert second.is_held()


@ONE_LOOP
async def test_silence_ends_it_by_the_holders_own_clock_before_another_can_take_it(leases: Bucket[bytes]) -> None:
    """A holder that is stopped (SIGSTOP) and wakes: it must know by itself, before anybody tells it."""
    first = await held(leases, "a", 3)  # a busy machine may stand still for a second or two
    await first.renew()  # a renewal without a time to live would make the key permanent
    with fail_after(20):
        while (second := await acquire(leases, "k", "b", ttl_s=60)) is None:
            pass
        assert not first.is_held()
    assert second.token > first.token
    with pytest.raises(LeaseLost):
        await first.renew()
    assert second.is_held()


@ONE_LOOP
async def test_renewing_keeps_it_past_its_time_to_live(leases: Bucket[bytes]) -> None:
    first = await held(leases, "a", 3)  # a busy machine may stand still for a second or two
    begun_s = monotonic_s()
    with fail_after(20):
        while monotonic_s() - begun_s < 3.6:
            await first.renew()
            assert await acquire(leases, "k", "b", ttl_s=3) is None
    assert first.is_held()


@pytest.mark.parametrize("other", ["b", "a"], ids=["another holder", "the same one, started anew"])
async def test_a_lease_taken_over_is_lost_at_the_next_renewal(leases: Bucket[bytes], other: str) -> None:
    first = await held(leases, "a", 60)
    await leases.delete("k")
    second = await held(leases, other, 60)
    with pytest.raises(LeaseLost, match=f"a lost it; it is held by {other}"):
        await first.renew()
    assert not first.is_held()
    await second.renew()


@pytest.mark.parametrize("is_renewed", [False, True], ids=["acquired", "renewed"])
async def test_it_is_counted_from_when_it_was_asked_for_and_ends_a_margin_early(
    server: EmbeddedServer, connection: Connection, leases: Bucket[bytes], *, is_renewed: bool
) -> None:
    """The answer comes late. The server keeps the key for its time from when it stored it, and not from the answer."""
    got: list[Lease] = []
    async with (
        proxy(server.port) as wire,
        connect(wire.url, name="holder", namespace=connection.namespace) as link,
        Publisher(link) as publisher,
    ):
        own = Bucket(link, publisher, leases.name, bytes)
        if is_renewed:
            got.append(await held(own, "a", 60))
        before = await leases.get("k")

        async def ask() -> None:
            await (got[0].renew() if got else take())

        async def take() -> None:
            got.append(await held(own, "a", 60))

        wire.hold("client")
        with fail_after(20):
            async with create_task_group() as tasks:
                tasks.start_soon(ask)
                while (entry := await leases.get("k")) is None or entry == before:
                    await anyio.lowlevel.checkpoint()
                stored_s = monotonic_s()
                await wire.holds("client")
                wire.heal()
        assert monotonic_s() + got[0].left_s <= stored_s + 60 - 6


async def test_a_key_deleted_by_hand_is_lost(leases: Bucket[bytes]) -> None:
    first = await held(leases, "a", 60)
    await leases.delete("k")
    with pytest.raises(LeaseLost, match="it is free"):
        await first.renew()


async def test_an_own_renewal_whose_answer_was_lost_is_adopted(leases: Bucket[bytes]) -> None:
    first = await held(leases, "a", 60)
    entry = await leases.get("k")
    assert entry is not None
    await leases.compare_and_set("k", entry.value, entry.revision, ttl_s=60)  # as our renewal would have stored it
    await first.renew()
    assert first.is_held()


@pytest.mark.parametrize("ttl_s", [0, -1])
async def test_a_time_to_live_below_a_second_is_refused(leases: Bucket[bytes], ttl_s: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        await acquire(leases, "k", "a", ttl_s=ttl_s)


async def test_what_a_person_put_there_is_nobodys_and_respected(leases: Bucket[bytes]) -> None:
    await leases.put("k", b"maintenance")
    assert read_record(b"maintenance") is None
    assert await acquire(leases, "k", "a", ttl_s=1) is None


class Leader:
    """A contender whose body says when it leads and when it has ended."""

    def __init__(self, bucket: Bucket[bytes], holder: str, ttl_s: int) -> None:
        self.bucket, self.holder, self.ttl_s = bucket, holder, ttl_s
        self.began, self.ended = Event(), Event()
        self.lease: Lease | None = None

    async def body(self, lease: Lease) -> None:
        self.lease = lease
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.ended.set()

    async def run(self) -> None:
        await lead(self.bucket, "k", self.holder, ttl_s=self.ttl_s, body=self.body)


async def test_a_cancelled_leader_releases_and_another_follows_at_once(leases: Bucket[bytes]) -> None:
    first, second = Leader(leases, "a", 30), Leader(leases, "b", 1)
    with fail_after(20):
        async with create_task_group() as tasks:
            async with create_task_group() as firsts:
                firsts.start_soon(first.run)
                await first.began.wait()
                tasks.start_soon(second.run)
                firsts.cancel_scope.cancel()
            assert first.ended.is_set()
            await second.began.wait()
            tasks.cancel_scope.cancel()
    assert first.lease is not None
    assert second.lease is not None
    assert second.lease.token > first.lease.token
    assert not first.lease.is_held()


async def test_a_leader_whose_lease_is_taken_away_stops(leases: Bucket[bytes]) -> None:
    leader = Leader(leases, "a", 1)
    with fail_after(20):
        async with create_task_group() as tasks:
            tasks.start_soon(leader.run)
            await leader.began.wait()
            await leases.put("k", b"an operator's hand")
            await leader.ended.wait()
            tasks.cancel_scope.cancel()


@ONE_LOOP
async def test_a_leader_that_cannot_renew_stops_in_time_and_leads_again_later(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
        leader = Leader(await bucket_of(connection, publisher, bytes, has_ttl=True), "a", 1)
        with fail_after(90):
            async with create_task_group() as tasks:
                tasks.start_soon(leader.run)
                await leader.began.wait()
                await own_server.kill()
                killed_s = monotonic_s()
                await leader.ended.wait()
                assert monotonic_s() - killed_s < 30  # by its own clock; nobody else tells it
                leader.began = Event()
                await own_server.start()
                await leader.began.wait()
                tasks.cancel_scope.cancel()


async def test_a_body_that_returns_gives_the_lease_back(leases: Bucket[bytes]) -> None:
    terms: list[int] = []
    enough = Event()

    async def body(lease: Lease) -> None:
        terms.append(lease.token)
        if len(terms) == 2:
            enough.set()

    async def run() -> None:
        await lead(leases, "k", "a", ttl_s=1, body=body)

    with fail_after(20):
        async with create_task_group() as tasks:
            tasks.start_soon(run)
            await enough.wait()
            tasks.cancel_scope.cancel()
    assert terms == sorted(set(terms))


async def test_what_the_body_raises_comes_out_and_the_lease_is_free(leases: Bucket[bytes]) -> None:
    async def body(lease: Lease) -> None:
        raise KeyError("a fault of the work")

    with fail_after(20), pytest.raises(ExceptionGroup) as caught:
        await lead(leases, "k", "a", ttl_s=30, body=body)
    assert caught.group_contains(KeyError)
    assert (await held(leases, "b", 30)).is_held()


@ONE_LOOP
async def test_no_server_leaves_an_acquisition_unknown_or_unsent(own_server: EmbeddedServer) -> None:
    async with connect(own_server.url, name="test") as connection, Publisher(connection) as publisher:
        leases = await bucket_of(connection, publisher, bytes, has_ttl=True)
        await own_server.kill()
        with fail_after(20), pytest.raises((OutcomeUnknown, Disconnected)):
            await acquire(leases, "k", "a", ttl_s=1)
