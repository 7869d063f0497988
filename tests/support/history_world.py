"""An installation under a history check: one server or three, nodes behind wires of their own, callers at all doors,
and faults of all kinds, one after the other and at the same time."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, get_args

import anyio
import msgspec
from aiohttp import ClientSession, ClientTimeout

from penstock.sdk.client import Client
from penstock.sdk.client import connect as connect_client
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.link.connection import connect
from streams.messages.jobs import FREE_TOKEN
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.chaos import Form, eventually
from tests.support.chaos_nodes import ChaosNode
from tests.support.history_callers import CROWD, HANDLED, HELD, Caller, Crowd, History, runs_of
from tests.support.history_doors import ClientDoor, Door, PublishDoor, QueueDoor, RestDoor, ServiceDoor
from tests.support.job_history import Broken, Kill, judge
from tests.support.processes import Links, ServerProcess, cluster, free_ports, open_links
from tests.support.proxy import Proxy, proxy

APP = "tests.support.history_handlers"
ROLES = "timer,desk,gateway,worker"
SETTINGS = {"attempts": 1_000, "backoff": "100ms", "backoff_cap": "500ms"}
PARTED = ("parted", "deaf", "mute", "bridged")
"""What may befall the links between three servers."""
Hurt = Literal["nodes", "wires", "servers"]
CALL_S = 12.0
"""After this a caller over HTTP gives up: unknown."""
EMPTY_S = 300.0
"""Generous: an hour of faults leaves thousands of jobs, which one caller finishes."""


class HistoryVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a run. It is whole when nothing is broken and all came to its end."""

    scenario: str
    seed: int
    seconds: float
    calls: dict[str, int]
    told: dict[str, int]
    faults: dict[str, int]
    broken: dict[str, int]
    history: str
    examples: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        return not self.broken and not self.reason and self.calls.get("run", 0) > 0

    def line(self) -> str:
        told = {"verdict": "ok" if self.is_whole else "FAILED", **msgspec.to_builtins(self)}
        return msgspec.json.encode({name: value for name, value in told.items() if value not in ((), "", {})}).decode()


class Hurting(Protocol):
    async def __call__(self, how: str, seconds: float, at: int) -> None: ...


class Servers:
    """One server, or three; `hurt` does something to one of them."""

    def __init__(self, ports: Sequence[int], hurt: Hurting) -> None:
        self.ports = ports
        self.hurt = hurt


class HistoryWorld:
    """One installation under attack."""

    def __init__(self, folder: Path, form: Form, servers: Servers, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.form = form
        self.servers = servers
        self.nodes: list[ChaosNode] = []
        self.wires: list[list[Proxy]] = []
        """Of each node, and of the callers on NATS at last: one to each server."""
        self.faults: Counter[str] = Counter()
        self.kills: list[Kill] = []
        self.history = History(folder / "history.jsonl")
        self.notes = folder / "handlers.jsonl"
        self._faults = stack.enter_context((folder / "faults.txt").open("w", buffering=1))
        self.mutant = ""
        self._stack = stack
        self._began_s = monotonic_s()
        self._chance = form.chance("faults")

    # ---- what it is made of

    async def wired(self) -> str:
        """Return an address through wires of its own."""
        wires = [await self._stack.enter_async_context(proxy(port)) for port in self.servers.ports]
        self.wires.append(wires)
        return ",".join(wire.url for wire in wires)

    async def open(self, mutant: str = "") -> None:
        """Start nodes and connect callers."""
        self.mutant = mutant
        urls = ",".join(f"nats://127.0.0.1:{port}" for port in self.servers.ports)
        self._stack.callback(self.history.close)
        self._connection = await self._stack.enter_async_context(connect(urls, name="history", namespace=Namespace()))
        replicas = len(self.servers.ports)
        await apply(self._connection, wanted(self._connection.namespace, profile="fast", replicas=replicas))
        publisher = await self._stack.enter_async_context(Publisher(self._connection))
        topics = Bucket(self._connection, publisher, self._connection.namespace.bucket("TOPICS"), bytes)
        await topics.put("default", msgspec.json.encode(SETTINGS))
        self._client = await self._stack.enter_async_context(connect_client(urls, timeout_s=10))
        ports = free_ports(2)
        for number, port in enumerate(ports):
            told = ["--nats", await self.wired(), "--roles", ROLES, "--http", f"127.0.0.1:{port}", "--app", APP]
            node = ChaosNode(f"n{number}", told, self.folder, HISTORY_NOTES=str(self.notes))
            self._stack.push_async_callback(node.close)
            self.nodes.append(node)
            await node.start(mutant=mutant)
        for node in self.nodes:
            await node.logged("gateway.listens")
        doors = await self._doors([f"http://127.0.0.1:{port}" for port in ports])
        self._callers = [Caller(door, self.history, self.form.chance(f"caller {at}")) for at, door in enumerate(doors)]

        self._crowd = Crowd(ClientDoor("crowd", self._client), self._rest, self.history)

    async def _doors(self, http: list[str]) -> list[Door]:
        session = await self._stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=CALL_S)))
        url = await self.wired()
        wired = await self._stack.enter_async_context(connect(url, name="callers", namespace=Namespace()))
        publisher = await self._stack.enter_async_context(Publisher(wired, attempt_timeout_s=1.0))
        clients: list[Client] = [
            await self._stack.enter_async_context(connect_client(url, timeout_s=10)),
            await self._stack.enter_async_context(connect_client(url, timeout_s=3)),
            await self._stack.enter_async_context(connect_client(url, timeout_s=3, direct=True)),
        ]
        chance = self.form.chance("doors")
        self._rest = RestDoor("rest", session, http, chance)
        return [
            self._rest,
            RestDoor("rest", session, http, chance),
            RestDoor("rest", session, http, chance),
            QueueDoor("queue", session, http, chance),
            ServiceDoor("service", wired),
            ServiceDoor("service", self._connection),
            ClientDoor("client", clients[0]),
            ClientDoor("client", clients[1]),
            ClientDoor("direct", clients[2]),
            PublishDoor("publish", self._client, wired, publisher),
        ]

    # ---- what is done to it

    async def run(self, seconds: float, hurt: Sequence[Hurt] = get_args(Hurt)) -> HistoryVerdict:
        """Let callers and faults at it for so long, let it come to rest, and judge."""
        ways = {"nodes": self._hurt_nodes, "wires": self._hurt_wires, "servers": self._hurt_servers}
        are_over = anyio.Event()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as callers:
                for caller in self._callers:
                    callers.start_soon(caller.run, are_over)
                with anyio.move_on_after(seconds):
                    async with anyio.create_task_group() as faults:
                        faults.start_soon(anyio.sleep_forever)
                        for what in hurt:
                            faults.start_soon(ways[what])
                scope.shield = True
                await self._heal()
                are_over.set()
        return await self._verdict()

    async def _hurt_nodes(self) -> None:
        chance, longest_s = self._chance, self.form.pick(4, 30)
        while True:
            await anyio.sleep(chance.uniform(0.5, 3))
            node = chance.choice(self.nodes)
            if chance.random() < 0.5 or not node.is_running:  # it ends by itself where it finds no server
                self._fault("node killed")
                self.kills.append(Kill(now_ms(), node.pid))
                await node.kill()
                await anyio.sleep(chance.uniform(0, 1))
                await node.start(mutant=self.mutant)
                await anyio.sleep(chance.uniform(0, self.form.pick(3, 6)))  # some are killed again while they start
            else:
                self._fault("node stopped")
                self.kills.append(Kill(now_ms(), node.pid))
                with suppress(ProcessLookupError):  # it has just ended by itself
                    node.signal(signal.SIGSTOP)
                    await anyio.sleep(chance.choice((chance.uniform(0.2, 2), chance.uniform(2, longest_s))))
                    node.signal(signal.SIGCONT)

    def _fault(self, what: str) -> None:
        self.faults[what] += 1
        self._faults.write(f"{now_ms()} {what}\n")

    async def _hurt_wires(self) -> None:
        chance, longest_s = self._chance, self.form.pick(4, 20)
        while True:
            await anyio.sleep(chance.uniform(0.3, 2))
            wires = chance.choice(self.wires)
            kind, how_long_s = chance.choice(("cut", "hold", "hold", "hold")), chance.uniform(0.2, longest_s)
            side, end = chance.choice(("client", "server", "both")), chance.choice(("heal", "cut"))
            self._fault(f"wire {kind}, {side}, {end}" if kind == "hold" else "wire cut")
            if kind == "hold":
                for wire in wires:
                    wire.freeze() if side == "both" else wire.hold("client" if side == "client" else "server")
                await anyio.sleep(how_long_s)
            for wire in wires:
                wire.cut() if "cut" in (kind, end) else wire.heal()

    async def _hurt_servers(self) -> None:
        chance, is_alone = self._chance, len(self.servers.ports) == 1
        ways = ("killed", "stopped", "stopped") if is_alone else ("killed", "stopped", "stopped", *PARTED)
        while True:
            await anyio.sleep(chance.uniform(2, self.form.pick(6, 15)))
            how, at = chance.choice(ways), chance.randrange(len(self.servers.ports))
            self._fault(f"server {how}")
            if how == "killed" and is_alone:
                self.kills.append(Kill(now_ms()))
            if how == "stopped" and chance.random() < 0.5:
                await self._crowd.meet(partial(self.servers.hurt, "stopped", at=at))
                continue
            longest_s = self.form.pick(4, 25) if how in PARTED else self.form.pick(2, 8)
            await self.servers.hurt(how, chance.uniform(0.2, longest_s), at)

    async def _heal(self) -> None:
        """Undo what is still wrong; servers are whole again after each fault of theirs."""
        for wires in self.wires:
            for wire in wires:
                wire.heal()
        for node in self.nodes:
            if node.is_running:
                node.signal(signal.SIGCONT)
            else:
                await node.start(mutant=self.mutant)

    # ---- what became of it

    async def _verdict(self) -> HistoryVerdict:
        reason = ""
        with anyio.CancelScope(shield=True):
            await anyio.sleep(self.form.pick(0, 35))  # so long a publisher repeats
            try:
                await eventually(self._is_empty, EMPTY_S, "not every job has come to its end")
            except TimeoutError as late:
                reason = str(late)
        ops = [*self.history.ops, *runs_of(self.notes)]
        broken = judge(ops, is_over=not reason, kills=self.kills)
        path = self._written(broken)
        return HistoryVerdict(
            scenario=f"history, {len(self.servers.ports)} servers" + (f", {self.mutant}" if self.mutant else ""),
            seed=self.form.seed,
            seconds=round(monotonic_s() - self._began_s, 1),
            calls=Counter(op.what for op in ops),
            told=Counter(op.told for op in ops),
            faults=self.faults,
            broken=Counter(one.rule for one in broken),
            history=str(path),
            examples=tuple(map(str, _shortest(broken))),
            reason=reason,
        )

    def _written(self, broken: Sequence[Broken]) -> Path:
        self.history.write()
        (self.folder / "broken.txt").write_text("\n\n".join(map(str, broken)))
        return self.history.path

    async def _is_empty(self) -> bool:
        """Take and finish what is there; true once nothing is handed in, waits, or is held."""
        await self._callers[-1].take_all()
        stream = self._connection.namespace.stream("SUBMIT")
        if (await self._connection.api(f"STREAM.INFO.{stream}", timeout_s=10))["state"]["messages"]:
            return False
        return not await self._left()

    async def _left(self) -> int:
        stream, namespace = self._connection.namespace.stream("JOBS"), self._connection.namespace
        count = 0
        for topic in (HELD, HANDLED, CROWD):  # all states at once: a hold that ends meanwhile is ready then
            pattern = namespace.pattern("jobs", "*", topic, "*")
            info = await self._connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": pattern}, timeout_s=10)
            states = [subject.split(".")[-3] for subject in info["state"].get("subjects") or {}]
            count += sum(state not in ("done", FREE_TOKEN) for state in states)
        return count


def _shortest(broken: Sequence[Broken]) -> list[Broken]:
    """Return the shortest of each rule."""
    first: dict[str, Broken] = {}
    for one in sorted(broken, key=lambda one: len(one.shown)):
        first.setdefault(one.rule, one)
    return list(first.values())


@asynccontextmanager
async def open_history(folder: Path, form: Form, *, servers: int = 1, mutant: str = "") -> AsyncIterator[HistoryWorld]:
    """Open an installation on one server of its own, or on three."""
    async with AsyncExitStack() as stack:
        if servers == 1:
            made = _alone(await stack.enter_async_context(embedded_server(folder / "server", port=free_ports(1)[0])))
        else:
            links = await stack.enter_async_context(open_links())
            made = _together(await stack.enter_async_context(cluster(folder, links=links)), links)
        world = HistoryWorld(folder, form, made, stack)
        await world.open(mutant)
        yield world


def _alone(server: EmbeddedServer) -> Servers:
    async def hurt(how: str, seconds: float, at: int) -> None:
        if how == "killed":
            await server.kill()
            await anyio.sleep(seconds)
            await server.start()
        else:
            server.send_signal(signal.SIGSTOP)
            await anyio.sleep(seconds)
            server.send_signal(signal.SIGCONT)

    return Servers([server.port], _whole(hurt))


def _together(servers: list[ServerProcess], links: Links) -> Servers:
    async def hurt(how: str, seconds: float, at: int) -> None:
        one, other = (number for number in range(3) if number != at)
        match how:
            case "killed":
                servers[at].kill()
            case "stopped":
                servers[at].send_signal(signal.SIGSTOP)
            case "parted":  # from both others, while its clients still reach it
                links.part(at, one)
                links.part(at, other)
            case "deaf" | "mute":  # one direction alone
                links.cut_off_one_way(at, is_deaf=how == "deaf")
            case "bridged":  # two do not reach each other, and the third reaches both
                links.part(one, other)
        await anyio.sleep(seconds)
        match how:
            case "killed":
                servers[at].start()
            case "stopped":
                servers[at].send_signal(signal.SIGCONT)
            case _:
                links.join()

    return Servers([server.port for server in servers], _whole(hurt))


def _whole(hurt: Hurting) -> Hurting:
    """Return what is done to its end, even if nobody waits for it any more."""

    async def done(how: str, seconds: float, at: int) -> None:
        with anyio.CancelScope(shield=True):
            await hurt(how, seconds, at)

    return done
