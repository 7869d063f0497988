"""An installation of the delay queue under attack: nodes by role, jobs added and held by a client, and the verdict.

Half of the jobs are `handled` by an app in worker nodes (tests/support/jobs_handlers.py), which notes in a file what it
was given; the others are `held`: reserved and finished by receipt, through the desks. Everything runs on one machine,
so its clock is the server's, and what comes early is seen to the millisecond.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec

from actors.jobs.rules.job_answers import Added
from penstock.errors import PenstockError
from penstock.sdk.client import Client
from penstock.sdk.client import connect as connect_client
from penstock.sdk.client_adds import new_job
from penstock.sdk.held_jobs import HeldJob
from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s, now_ms
from streams.embedded.server import EmbeddedServer, embedded_server
from streams.errors import StreamError
from streams.link.connection import Connection, connect
from streams.messages.jobs import NewJob
from streams.publish.publisher import Publisher
from streams.reads.log import read_log
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.chaos import Form, eventually
from tests.support.chaos_nodes import ChaosNode
from tests.support.jobs_handlers import TOPIC as HANDLED
from tests.support.letters import dead_letters

HELD = "held"
DOOMED_EVERY, SUBMITTED_EVERY = 25, 10
"""Of the held jobs, one in so many is buried by whoever gets it; one in so many is handed in by a plain publish."""
APP = "tests.support.jobs_handlers"
SLACK_MS = 500
"""How much a desk's idea of the server's clock may be behind, at the worst; nodes' own clocks are off by more."""
FIRST_MS = 350
"""An answer that comes sooner is the first: a client that hears nothing asks another desk after 0.4 s."""
PAGE = 50
"""Jobs that are added, or held, by one call."""
TTR_S = 1
SETTINGS = {"attempts": 1_000, "backoff": "100ms", "backoff_cap": "500ms"}
"""So many attempts that no kill makes a dead letter."""


class Note(NamedTuple):
    """What a handler wrote down."""

    what: str
    id: str
    attempt: int
    due_ms: int
    at_ms: int
    pid: int


class JobsVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all jobs. A run is whole when nothing went wrong and nothing is left."""

    scenario: str
    seed: int
    is_long: bool
    seconds: float
    added: int
    ended: int
    lost: int
    early: int
    doubled: int
    left: dict[str, int]
    letters: int
    letters_astray: int
    """Doomed jobs without a dead letter, and dead letters of others."""
    kills: dict[str, int]
    facts: dict[str, Any]
    examples: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_whole(self) -> bool:
        faults = (self.lost, self.early, self.doubled, sum(self.left.values()), self.letters_astray)
        return not self.reason and not any(faults) and self.ended == self.added > 0

    def line(self) -> str:
        """Return one JSON object on one line, without what is empty."""
        told = {"verdict": "ok" if self.is_whole else "FAILED", **msgspec.to_builtins(self)}
        return msgspec.json.encode({name: value for name, value in told.items() if value not in ((), "", {})}).decode()


OVER = {"done", "gone"}


class JobsWorld:
    """One installation. `facts` go into the verdict."""

    def __init__(
        self,
        folder: Path,
        server: EmbeddedServer,
        connection: Connection,
        publisher: Publisher,
        client: Client,
        stack: AsyncExitStack,
    ) -> None:
        self.folder = folder
        self.server = server
        self.connection = connection
        self.client = client
        self.nodes: dict[str, ChaosNode] = {}
        self.roles: dict[str, str] = {}
        self.server_kills = 0
        self.facts: dict[str, Any] = {}
        self.due_ms: dict[str, dict[str, int]] = {HANDLED: {}, HELD: {}}
        """When each accepted job is due, at the earliest, by topic and id."""
        self.held: list[tuple[str, str, int]] = []
        """Id, receipt and moment of each reservation."""
        self.finished: defaultdict[str, set[str]] = defaultdict(set)
        """The receipts by which each job was finished."""
        self.hasty: list[str] = []
        """Jobs that were made due before their delay was over."""
        self.buried: set[str] = set()
        """Doomed jobs whose burial was confirmed."""
        self._notes = folder / "notes"
        self._publisher = publisher
        self._topics = Bucket(connection, publisher, connection.namespace.bucket("TOPICS"), bytes)
        self._stack = stack
        self._began_s = monotonic_s()

    # ---- what it is made of

    def new_node(self, name: str, roles: str) -> ChaosNode:
        """Return a node of some roles that is not started yet."""
        app = ("--app", APP) if "worker" in roles else ()
        node = self.nodes[name] = ChaosNode(name, ["--nats", self.server.url, "--roles", roles, *app], self.folder)
        self.roles[name] = roles
        self._stack.push_async_callback(node.close)
        return node

    def notes(self) -> list[Note]:
        """Return what the handlers have written down."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [Note(what, key, *map(int, numbers)) for what, key, *numbers in map(str.split, lines)]

    async def set_topic(self, topic: str, **settings: object) -> None:
        """Set a topic's settings, or those of all by `default`."""
        await self._topics.put(topic, msgspec.json.encode({**SETTINGS, **settings}))

    # ---- what is done to it

    def body(self, **more: object) -> dict[str, object]:
        """Return a handled job's body, of some 200 bytes."""
        return {"notes": str(self._notes), "fill": "x" * 100, **more}

    async def add(
        self, topic: str, count: int, *, over_s: float, latest_s: float, chance: random.Random, until: anyio.Event
    ) -> None:
        """Add jobs at an even pace, so many over a time, each due within `latest_s`, and go on at that pace until
        `until` is set; return once all are accepted."""
        began_s, added = monotonic_s(), 0
        while added < count or not until.is_set():
            page = [
                self._new_job(topic, f"{topic}-{number}", latest_s, chance) for number in range(added, added + PAGE)
            ]
            if topic == HELD:
                await self._submit(page[::SUBMITTED_EVERY])
                del page[::SUBMITTED_EVERY]
            await self._add(page)
            added += PAGE
            await anyio.sleep(max(0.0, began_s + over_s * added / count - monotonic_s()))

    def _new_job(self, topic: str, job_id: str, latest_s: float, chance: random.Random) -> NewJob:
        body = self.body(fails=int(chance.random() < 0.1))
        delay_s = chance.choice((0.0, chance.uniform(0.0, latest_s)))
        return new_job(topic, body, id=job_id, delay=delay_s, ttr=TTR_S, nonce=job_id)  # added again until accepted

    async def _add(self, jobs: Sequence[NewJob]) -> None:
        """Add jobs through a desk, again until each is accepted."""
        left = {job.id: job for job in jobs}
        asked_ms = now_ms()
        while left:
            with suppress(PenstockError):
                answers = await self.client.jobs.add_many(list(left.values()))
                is_first = now_ms() - asked_ms < FIRST_MS and not self.server_kills
                for answer in answers:
                    if isinstance(answer, Added):
                        self._accept(left.pop(answer.id), answer, asked_ms, is_first)

    def _accept(self, job: NewJob, answer: Added, asked_ms: int, is_first: bool) -> None:
        """Take down when a job is due. Where an answer may have got lost, the job may have failed and be due again by
        now: then it may come when its delay is over."""
        least_ms = asked_ms + job.delay_ms - SLACK_MS
        self.due_ms[job.topic][job.id] = answer.due_ms if is_first else least_ms
        if 0 < answer.due_ms < least_ms:  # of what has ended it is not known any more
            self.hasty.append(f"{job.id} is due {least_ms - answer.due_ms} ms early")

    async def _submit(self, jobs: Sequence[NewJob]) -> None:
        """Hand jobs in by plain publishes; the server's receipt accepts them."""
        for job in jobs:
            due_ms = now_ms() + job.delay_ms
            asked = {"id": job.id, "due_ms": due_ms, "ttr_ms": job.ttr_ms, "body": job.body}
            subject, payload = self.connection.namespace.submit_job(job.topic), msgspec.json.encode(asked)
            while True:
                with suppress(StreamError):
                    await self._publisher.publish(subject, payload, message_id=job.id)
                    break
            self.due_ms[job.topic][job.id] = due_ms

    async def hold(self, chance: random.Random) -> None:
        """Reserve and finish, for ever; now and then touch first, let it lapse, or give it back."""
        while True:
            try:
                jobs = await self.client.jobs.reserve_many(HELD, most=PAGE, wait=1)
                at_ms = now_ms()
                self.held += [(job.id, job.receipt, at_ms) for job in jobs]
                kept = []
                for job in jobs:
                    fate = chance.random() if job.attempt == 1 else 1.0
                    if fate < 0.1:
                        await job.release(delay=0.2, reason="given back")
                    elif is_doomed(job.id):
                        await job.bury("doomed")
                        self.buried.add(job.id)
                    elif fate > 0.15:
                        kept.append(job)
                        if fate < 0.4:
                            await job.touch()
                await self.finish(kept)
            except PenstockError:
                await anyio.sleep(0.05)

    async def finish(self, jobs: Sequence[HeldJob]) -> list[str]:
        """Finish jobs by their receipts; return the answers' codes."""
        answers = await self.client.jobs.finish_many(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            if answer.code == "ok":
                self.finished[job.id].add(job.receipt)
        return [answer.code for answer in answers]

    # ---- what became of it

    async def states(self, topic: str) -> dict[str, set[str]]:
        """Return the ids of a topic's jobs by the token of their state."""
        stream = self.connection.namespace.stream("JOBS")
        mine = self.connection.namespace.pattern("jobs", "*", topic, "*")
        info = await self.connection.api(f"STREAM.INFO.{stream}", {"subjects_filter": mine}, timeout_s=10)
        found: dict[str, set[str]] = defaultdict(set)
        for subject in info["state"].get("subjects") or {}:
            *_, state, _, key = subject.split(".")
            found[state].add(key)
        return found

    async def sequences(self, topic: str, key: str) -> dict[str, int]:
        """Return where the messages of one job stand in the stream, by subject."""
        stream = self.connection.namespace.stream("JOBS")
        subject = self.connection.namespace.job_in_any_state(topic, key)
        found = {}
        async for entry in read_log(self.connection, stream, subject):
            found[entry.subject] = entry.seq
        return found

    async def is_over(self) -> bool:
        """True once nothing is handed in any more, nothing waits and nothing is held."""
        handed_in = self.connection.namespace.stream("SUBMIT")
        if (await self.connection.api(f"STREAM.INFO.{handed_in}", timeout_s=10))["state"]["messages"]:
            return False
        for topic in (HANDLED, HELD):
            states = await self.states(topic)
            if set(states) - OVER:
                return False
        return True

    async def letters(self) -> list[str]:
        """Return the ids of the jobs of all dead letters."""
        return [letter.id for letter in await dead_letters(self.connection)]

    async def verdict(self, scenario: str, form: Form, *, within_s: float = 150.0) -> JobsVerdict:
        """Wait for the end, and judge."""
        reason = ""
        try:
            await eventually(self.is_over, within_s, "not every job has ended")
        except TimeoutError as late:
            reason = str(late)
        states = {topic: await self.states(topic) for topic in (HANDLED, HELD)}
        notes = self.notes()
        ended = {note.id for note in notes if note.what == "ended"} | states[HELD].get("done", set())
        due_ms = {**self.due_ms[HANDLED], **self.due_ms[HELD]}
        begun = [(note.id, note.at_ms) for note in notes if note.what == "begun"]
        taken = begun + [(key, at_ms) for key, _, at_ms in self.held]
        letters = await self.letters()
        doomed = {key for key in self.due_ms[HELD] if is_doomed(key)}
        lost = sorted(set(due_ms) - ended)
        early = self.hasty + sorted(
            f"{key} by {due_ms[key] - at_ms} ms" for key, at_ms in taken if at_ms < due_ms.get(key, 0)
        )
        doubled = sorted(key for key, receipts in self.finished.items() if len(receipts) > 1)
        left: Counter[str] = Counter()
        for by_state in states.values():
            left.update({state: len(keys) for state, keys in by_state.items() if state not in OVER})
        kills = Counter({"server": self.server_kills} if self.server_kills else {})
        for name, node in self.nodes.items():
            kills[self.roles[name]] += node.kills
        return JobsVerdict(
            scenario=scenario,
            seed=form.seed,
            is_long=form.is_long,
            seconds=round(monotonic_s() - self._began_s, 1),
            added=len(due_ms),
            ended=len(ended & set(due_ms)),
            lost=len(lost),
            early=len(early),
            doubled=len(doubled),
            left=dict(left),
            letters=len(letters),
            letters_astray=len(set(letters) ^ doomed),
            kills=dict(kills),
            facts=self.facts | {"repeats": _repeats(begun), "late_ms": _late_ms(taken, due_ms)},
            examples=tuple(
                f"{what} {one}"
                for what, some in (("lost", lost), ("early", early), ("doubled", doubled))
                for one in some[:3]
            ),
            reason=reason,
        )


def is_doomed(job_id: str) -> bool:
    """True of a held job that is to be buried, whoever gets it."""
    topic, _, number = job_id.rpartition("-")
    return topic == HELD and int(number) % DOOMED_EVERY == 3


def _repeats(begun: Iterable[tuple[str, int]]) -> int:
    """Return how often a handler was given a job that it, or another, had begun before."""
    return sum(count - 1 for count in Counter(key for key, _ in begun).values())


def _late_ms(taken: Iterable[tuple[str, int]], due_ms: dict[str, int]) -> dict[str, int]:
    """Return how late jobs were first handed out."""
    first: dict[str, int] = {}
    for key, at_ms in taken:
        first[key] = min(at_ms, first.get(key, at_ms))
    late = sorted(at_ms - due_ms[key] for key, at_ms in first.items() if key in due_ms) or [0]
    return {"p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100], "max": late[-1]}


@asynccontextmanager
async def open_jobs_world(folder: Path) -> AsyncIterator[JobsWorld]:
    """Open an installation in a folder, on a server of its own; end it at the end."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_server(folder / "server"))
        connection = await stack.enter_async_context(connect(server.url, name="chaos", namespace=Namespace()))
        await apply(connection, wanted(connection.namespace, profile="fast"))
        publisher = await stack.enter_async_context(Publisher(connection))
        client = await stack.enter_async_context(connect_client(server.url, timeout_s=60))
        world = JobsWorld(folder, server, connection, publisher, client, stack)
        await world.set_topic("default")
        await world.set_topic(HELD, remember="1h")  # a finish by receipt leaves nothing else to judge by
        yield world
