"""A network that cuts, delays, loses one direction, dribbles and garbles: nodes come back, and nothing piles up."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import pytest

from tests.chaos.conftest import AssertWhole
from tests.support.chaos import Form, World, eventually, open_world
from tests.support.chaos_nodes import ChaosNode
from tests.support.proxy import Proxy, proxy

GROWN = 3
"""Tasks that a node may have more of than before: what a slice under way takes."""


async def cut(link: Proxy) -> None:
    link.cut()


async def delay(link: Proxy) -> None:
    link.delay(0.2)
    await anyio.sleep(1.0)
    link.heal()


async def lose_answers(link: Proxy) -> None:
    link.lose("client")
    await anyio.sleep(1.5)
    link.cut()


async def lose_requests(link: Proxy) -> None:
    link.lose("server")
    await anyio.sleep(1.5)
    link.cut()


async def dribble(link: Proxy) -> None:
    link.dribble(0.2)
    await anyio.sleep(1.0)
    link.cut()


async def half_a_frame(link: Proxy) -> None:
    link.say(b"MSG _INBOX.x 1 5000\r\nabc", "client")
    link.cut()


async def nonsense_to_client(link: Proxy) -> None:
    link.say(b"\x00\xff\x16\x03 HTTP/1.1 400 Bad Request\r\n\r\n", "client")


async def nonsense_to_server(link: Proxy) -> None:
    link.say(b"\x00\xff GET / HTTP/1.1\r\n\r\n", "server")


TROUBLES: tuple[Callable[[Proxy], Awaitable[None]], ...] = (
    cut,
    delay,
    lose_answers,
    lose_requests,
    dribble,
    half_a_frame,
    nonsense_to_client,
    nonsense_to_server,
)


async def attack(world: World, link: Proxy, form: Form, rounds: int, share: slice) -> None:
    """Do to one node's link what there is, in a random order, each time until the node is back."""
    for number in range(rounds):
        chance = form.chance(f"network/{number}")
        for trouble in chance.sample(TROUBLES, len(TROUBLES))[share]:
            await trouble(link)
            before = await world.takes()

            async def goes_on(before: int = before) -> bool:
                return link.open_links > 0 and await world.takes() > before + 1

            await eventually(goes_on, 30, f"the node does not come back after {trouble.__name__}")


async def counts(nodes: Sequence[ChaosNode]) -> dict[str, dict[str, int]]:
    return {node.name: await node.counts() for node in nodes}


def told(counted: dict[str, dict[str, int]]) -> dict[str, tuple[int, int]]:
    """Return what goes into the report: tasks, and files that are no sockets."""
    return {name: (found["tasks"], found["files"]) for name, found in counted.items()}


async def has_grown(node: ChaosNode, before: dict[str, int], port: int) -> bool:
    """True if the node has more than it had, or more than one link to the server."""
    now = await node.counts()
    is_more = now["tasks"] > before["tasks"] + GROWN or now["files"] > before["files"]
    return is_more or now[f"port {port}"] != 1


@pytest.mark.timeout(1800)
async def test_bad_network_loses_nothing_and_leaks_nothing(
    tmp_path: Path, form: Form, assert_whole: AssertWhole
) -> None:
    async with open_world(tmp_path) as world, proxy(world.server.port) as one, proxy(world.server.port) as other:
        links = {"n1": one, "n2": other}
        nodes = [await world.node(name, url=link.url, skew_ms=0) for name, link in links.items()]
        await world.add_mall(shops=4, orders=200, history_ms=10_000, ago_ms=5_000)
        assert await world.finish() == ""
        before = await counts(nodes)
        rounds = form.pick(1, 8)
        await world.add_mall(wave="w", shops=2, orders=form.pick(400, 4_000), live_ms=form.pick(4_000, 120_000))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(attack, world, one, form, rounds, slice(0, form.pick(4, 8)))
            tasks.start_soon(attack, world, other, form, rounds, slice(form.pick(4, 0), 8))
        verdict = await world.verdict("network", form)
        accepted = sum(link.accepted for link in links.values())
        world.facts |= {"links": accepted, "before": told(before), "after": told(await counts(nodes))}
        assert_whole(verdict)
        for node in nodes:
            assert node.is_running

            async def is_back(node: ChaosNode = node) -> bool:
                return not await has_grown(node, before[node.name], links[node.name].port)

            await eventually(is_back, 10, f"{node.name} has more tasks or files than before")
