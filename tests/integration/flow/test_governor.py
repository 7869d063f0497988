"""The governor on a real server: one rate over all nodes, whoever joins, dies, is cut off or stands still."""

from __future__ import annotations

import itertools
import logging
import math
from itertools import pairwise

import anyio
import msgspec
import pytest

from actors.flow import governor
from actors.runtime.rates import requests as rate_requests
from actors.runtime.rates.requests import RateRequest, WantedRate
from actors.runtime.rules.pacing import Rate
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Change
from streams.buckets.lease import read_record
from streams.clock import monotonic_s
from streams.embedded.server import EmbeddedServer
from streams.link.connection import Connection
from streams.link.frames import Message
from streams.messages.rates import LIFE_S, SECOND_S, AskShares, KeyAsk
from streams.publish.publisher import Publisher
from tests.support.flow import WITHIN_S, FlowHand, FlowTown, flow_town
from tests.support.moments import a_moment
from tests.support.server import Reachable
from tests.support.slots import stand_again

RATE = 200
STEADY = 2 * RATE
"""How many make two seconds' worth."""


def holds(town: FlowTown) -> bool:
    """By the moments of the permissions, while nodes join and die (docs/guarantees.md, 9)."""
    return town.fullest() <= RATE + len(town.hands)


async def test_one_node_alone_has_the_whole_rate_and_the_first_item_starts_at_once(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with flow_town(server, connection, RATE) as town:
        hand = await town.join("a")
        await hand.has_begun(STEADY)
        took_s = hand.began[STEADY - 1] - hand.began[0]
        assert took_s >= 1.9
        with anyio.fail_after(60):
            while took_s > 2.4:  # the machine was busy: look at the next ones
                before = len(hand.began)
                await hand.begins(STEADY)
                took_s = hand.began[before + STEADY - 1] - hand.began[before]
        assert holds(town)
        hand.idle()
        waited_s, numbers = math.inf, itertools.count()
        with anyio.fail_after(WITHIN_S):
            while waited_s >= 0.25:  # the machine was busy at it
                asked, count = monotonic_s(), len(hand.began)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(hand.spend, f"another {next(numbers)}")
                    await hand.has_begun(count + 1)
                    hand.idle()
                waited_s = hand.began[count] - asked


async def test_a_request_without_a_share_goes_on_when_the_governor_has_replied(
    server: EmbeddedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_requests, "TOLD_MS", 1_000_000)
    async with flow_town(server, connection, RATE) as town:
        rates = (await town.join("a", spends=False)).rates._rates
        for number in range(3):
            wanted = WantedRate(f"source.{number}", Rate(RATE, 1))
            with anyio.fail_after(WITHIN_S), RateRequest([(rates, wanted)]) as request:
                assert request.take() == 1_000_000
                while (wait_ms := request.take()) > 0:
                    await request.wait(wait_ms)


async def test_a_governor_without_requests_renews_its_lease_each_second_and_with_them_three_times(
    server: EmbeddedServer, connection: Connection, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governor, "IDLE_S", 0.05)
    leases = Bucket(connection, publisher, connection.namespace.bucket("LEASES"), bytes)
    async with flow_town(server, connection, RATE) as town:
        hand = await town.join("a", spends=False)
        stored_ms = [0, 0]
        with anyio.fail_after(WITHIN_S):
            async with leases.watch(governor.LEASE) as changes, anyio.create_task_group() as tasks:
                tasks.start_soon(stand_again, hand.governor)  # without requests nobody else has it stand for election
                async for change in changes:
                    if not isinstance(change, Change) or change.entry is None:
                        continue
                    stored_ms.append(change.entry.stored_ms)
                    pause_ms = stored_ms[-1] - stored_ms[-2]
                    if hand.began and pause_ms < 600:
                        break
                    if not hand.began and 700 < pause_ms < 10_000:
                        monkeypatch.setattr(governor, "IDLE_S", 10.0)
                        tasks.start_soon(hand.spend)
                        await hand.has_begun(1)
                tasks.cancel_scope.cancel()


async def test_a_governor_that_lost_its_lease_holds_the_next_one_for_longer(
    server: EmbeddedServer, connection: Connection, publisher: Publisher
) -> None:
    """Else a machine without a free core takes it away again and again."""
    leases = Bucket(connection, publisher, connection.namespace.bucket("LEASES"), bytes)
    async with flow_town(server, connection, RATE) as town:
        hand = await town.join("a")
        await hand.has_begun(RATE)
        hand.link.freeze()
        with anyio.fail_after(WITHIN_S):
            while hand.governor.elected.is_set():  # noqa: ASYNC110 # a lease ends by the clock
                await anyio.sleep(0.02)
        hand.link.heal()
        stored_ms, marks = [0], [""]
        with anyio.fail_after(WITHIN_S):
            await hand.governor.elected.wait()
            async with leases.watch(governor.LEASE) as changes:
                async for change in changes:
                    record = None
                    if isinstance(change, Change) and change.entry is not None:
                        record = read_record(change.entry.raw)
                    if record is None or not isinstance(change, Change) or change.entry is None:
                        continue
                    stored_ms.append(change.entry.stored_ms)
                    marks.append(record.mark)
                    if marks[-1] == marks[-2] and stored_ms[-1] - stored_ms[-2] > 900 * governor.LEASE_TTL_S:
                        break  # one of a second is renewed three times in it, and would be lost by then
        assert holds(town)


async def has_all(town: FlowTown, one: FlowHand) -> None:
    """Wait until the hands that still live begin nine tenths of the rate together."""
    with anyio.fail_after(WITHIN_S):
        while True:
            began = monotonic_s()
            await one.begins(RATE)
            ended = monotonic_s()
            if sum(hand.between(began, ended) for hand in town.hands) >= RATE * 0.9 * (ended - began):
                return


async def has_equal_parts(town: FlowTown, one: FlowHand) -> bool:
    """Measure for as long as one of three hands begins a second's worth of all."""
    began = monotonic_s()
    await one.begins(RATE)
    ended = monotonic_s()
    parts = [hand.between(began, ended) / (ended - began) for hand in town.hands]
    return sum(parts) >= RATE * 0.9 and max(parts) <= RATE / 2


@pytest.mark.three_servers
async def test_nodes_that_join_and_die_never_take_the_rate_above_and_come_to_equal_parts(
    server: Reachable, connection: Connection
) -> None:
    async with flow_town(server, connection, RATE) as town:
        first = await town.join("a")
        await first.has_begun(RATE)
        second, third = await town.join("b", governs=False), await town.join("c", governs=False)
        await third.has_begun(RATE)
        with anyio.fail_after(WITHIN_S):
            while not await has_equal_parts(town, second):
                await a_moment()
        third.die()
        await has_all(town, first)
        assert holds(town)


async def test_a_node_that_stops_hands_back_its_share(server: EmbeddedServer, connection: Connection) -> None:
    async with flow_town(server, connection, RATE) as town:
        first = await town.join("a")
        await first.has_begun(RATE)
        second = await town.join("b", governs=False)
        await second.has_begun(RATE)
        second.leave()
        await has_all(town, first)
        assert holds(town)


async def test_a_node_that_is_cut_off_spends_nothing_once_its_share_has_ended(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with flow_town(server, connection, RATE) as town:
        first = await town.join("a")
        second = await town.join("b", governs=False)
        await second.has_begun(RATE)
        second.link.freeze()
        cut = monotonic_s()
        await first.begins(STEADY)
        assert second.between(cut + LIFE_S + 0.1, monotonic_s()) == 0
        second.link.heal()
        await second.begins(RATE // 2)
        assert holds(town)


async def test_a_governor_that_is_cut_off_is_followed_and_does_not_deal_when_it_is_back(
    server: EmbeddedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governor, "LEASE_TTL_S", 4)  # a busy machine does not end its successor's lease
    async with flow_town(server, connection, RATE) as town:
        first = await town.join("a")
        await first.governor.elected.wait()
        second, third = await town.join("b"), await town.join("c", governs=False)
        await third.has_begun(RATE // 2)
        first.link.freeze()
        cut = monotonic_s()
        with anyio.fail_after(WITHIN_S):
            await second.governor.elected.wait()
        await third.begins(RATE)
        again = next(at_s for at_s in third.began if at_s > cut + LIFE_S + 0.1)
        assert again - cut <= governor.LEASE_TTL_S + 30
        first.link.heal()
        await first.begins(RATE // 4)
        assert not first.governor.elected.is_set()
        assert holds(town)


@pytest.mark.three_servers
async def test_a_governor_that_loses_its_lease_and_has_it_again_goes_on_at_once_unless_another_governed(
    server: Reachable, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A new governor would give nothing for `LIFE_S` + `SECOND_S`, once the shares have ended."""
    caplog.set_level(logging.INFO, "actors.flow.governor")

    async def elected(hand: FlowHand) -> bool:
        """Wait until it is the governor. Return whether it goes on with what it knew."""
        with anyio.fail_after(WITHIN_S):
            await hand.governor.elected.wait()
        told = [record.fields for record in caplog.records if record.message == "governor.leads"]  # type: ignore[attr-defined] # as `fields` puts it
        return bool([one["goes_on"] for one in told if one["node"] == hand.name][-1])

    async with flow_town(server, connection, RATE) as town:
        first = await town.join("a")
        assert not await elected(first)
        other = await town.join("b", governs=False)
        await other.has_begun(RATE // 2)
        waited_s = math.inf
        with anyio.fail_after(WITHIN_S):
            while waited_s >= LIFE_S + SECOND_S:  # the machine was busy: a new governor would always be so late
                first.link.freeze()
                while first.governor.elected.is_set() or other.rates.share("t"):  # noqa: ASYNC110 # shares end by the clock
                    await anyio.sleep(0.02)
                first.link.heal()
                assert await elected(first)
                back, count = monotonic_s(), len(other.began)
                await other.has_begun(count + 1)
                waited_s = other.began[count] - back
        second = await town.join("c")
        first.link.freeze()
        assert not await elected(second)
        first.link.heal()
        second.leave()
        assert not await elected(first)
        assert holds(town)


async def test_a_governor_that_leaves_is_followed_without_a_pause(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with flow_town(server, connection, RATE) as town:
        await town.join("a")
        pause_s, names = math.inf, itertools.count()
        with anyio.fail_after(WITHIN_S):
            was_led = False
            while pause_s >= LIFE_S or not was_led:  # the machine was busy
                first, second = await town.governor(), await town.join(f"b{next(names)}")
                await second.has_begun(RATE)
                was_led = first.governor.elected.is_set()
                first.leave()
                left = monotonic_s()
                await second.begins(STEADY)
                began = [at_s for at_s in second.began if at_s >= left]
                pause_s = max(later - earlier for earlier, later in pairwise(began))
        assert holds(town)


async def test_a_rate_that_changes_holds_within_seconds(server: EmbeddedServer, connection: Connection) -> None:
    async with flow_town(server, connection, RATE) as town:
        first, second = await town.join("a"), await town.join("b")
        await second.has_begun(RATE // 2)
        with anyio.fail_after(WITHIN_S):
            since = 0.0
            while town.fullest(since) > RATE / 4 + 2:
                town.rate, since = RATE / 4, monotonic_s()
                await first.begins(RATE // 4)  # two seconds' worth of its part
            share = 0.0
            while share < RATE * 0.85:
                town.rate, since = RATE, monotonic_s()
                await second.begins(STEADY)
                now = monotonic_s()
                share = sum(hand.between(since, now) for hand in town.hands) / (now - since)
        assert holds(town)


async def test_a_low_rate_gives_single_turns(server: EmbeddedServer, connection: Connection) -> None:
    async with flow_town(server, connection, 2.0) as town:
        hands = [await town.join(name, governs=name == "a") for name in ("a", "b", "c", "d")]
        per_s = 0.0
        with anyio.fail_after(WITHIN_S):
            while per_s < 2 * 0.7:
                since = monotonic_s()
                for hand in hands:
                    await hand.begins(2)
                began = sorted(at_s for hand in hands for at_s in hand.began if at_s >= since)
                per_s = (len(began) - 1) / (began[-1] - began[0])
        assert town.fullest() <= 3


async def test_bytes_that_are_no_request_do_the_governor_no_harm(
    server: EmbeddedServer, connection: Connection
) -> None:
    async with flow_town(server, connection, RATE) as town:
        hand = await town.join("a")
        await hand.governor.elected.wait()
        empty = msgspec.json.encode(AskShares(node="x", run="x", number=1, keys=(KeyAsk("nokind"), KeyAsk("q.x"))))
        for payload in (b"", b"\xff", b"[]", b'{"type":"ask_shares"}', empty):
            await connection.publish_core(connection.namespace.rates(), payload)
        await hand.has_begun(RATE)


async def test_a_thousand_keys_travel_in_one_request(server: EmbeddedServer, connection: Connection) -> None:
    asked: list[int] = []
    changed = anyio.Event()

    def heard(message: Message) -> None:
        asked.append(len(msgspec.json.decode(message.payload, type=AskShares).keys))
        changed.set()

    async with flow_town(server, connection, RATE) as town:
        hand = await town.join("a")
        await hand.has_begun(1)
        subscription = await connection.subscribe(connection.namespace.rates(), heard)
        await connection.flush()
        for number in range(999):
            hand.rates.take(f"t{number}", 1)
        with anyio.fail_after(WITHIN_S):
            while not asked or asked[-1] < 1_000:
                changed = anyio.Event()
                await changed.wait()
        await subscription.unsubscribe()
        assert len(asked) <= 4
