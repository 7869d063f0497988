"""The delayed jobs of JOBS as a timer reads them: all due times in one sweep, single jobs shortly before their time.

The sweep is fast because it requests payloads alone (`no_hdr`). With headers the server writes six more into each
answer, which costs it four times as much as finding the message (1,000,000 jobs: 22 s of the server's time, without
them 5.5 s). The payload's first fields name the job and its due time. The sweep needs no sequences, since a job is read
by its name. It does not filter by state either: the server counts through a filter anew for each page (45 ms for a
million subjects). So payloads of other states come along and must do no harm: their time has passed, or no delayed job
is found when it has come. Only if few of many messages are delayed jobs does the sweep request those alone.

The sweep requests two pages at a time, one of the earlier and one of the later half, so that the server looks for one
while we read the other. A page is one request: other requests of this link wait behind it. Once any message was removed
from the middle of the stream, the server also counts its subjects through for each page, filter or not, and writes to
the stream wait for that. So there are some `PAGES` of them, however much is stored (1,000,000 jobs in pages of 1,000:
55 s).

The program that delays a job publishes it on `due.<partition>`, a plain message that may get lost. The server itself
fires a job that no timer knows. Names in a notice are checked, since they become subjects.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio
import msgspec

from streams.clock import monotonic_s
from streams.errors import Disconnected, MalformedMessage, Refused, no_responders
from streams.link.connection import Connection, Subscription
from streams.link.frames import Message, parse_headers, publish_frame, status_of
from streams.link.server_clock import server_time_s
from streams.messages.jobs import decode_job
from streams.reads.direct_get import get_batch
from streams.subjects import Namespace, token_of

log = logging.getLogger(__name__)

PAGES = 50
SHORTEST_PAGE, LONGEST_PAGE = 8_000, 20_000
"""The server needs some 50 ms for a page besides its messages, if 60,000 subjects are there."""
PAGE_BYTES = 16 * 1024 * 1024
"""Bounds a page beside the number of messages: the server closes a link on which more than 64 MB wait."""
TAKEN = 500
"""Jobs that are passed on at a time, while their page still arrives."""
SPARSE = 4
"""If delayed jobs are less than this share of the stream's messages, the sweep requests them alone."""
PAGE_S = 5.0
SWEEP_S = 30.0
READ_S = 1.0
_NONE, _NOBODY = 404, 503
_HEAD = re.compile(rb'\{"topic":"([A-Za-z0-9_-]+)","id":"(?!h_)([A-Za-z0-9_-]{1,64})","due_ms":(\d{1,15}),')
_NAME = re.compile(rb"[A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64}")
_AT = "@at "
_Take = Callable[[list[tuple[int, bytes]]], object]
_notices = msgspec.msgpack.Decoder(list[tuple[int, int, str]])
_crowds = msgspec.msgpack.Decoder(tuple[str, list[tuple[int, int, int]]])


class WaitingJob(NamedTuple):
    """A delayed job as it is stored. `server_ms`: when the server fires it by itself. `own`: its headers without the
    server's, ready to send."""

    name: bytes
    due_ms: int
    seq: int
    server_ms: float
    target: str
    own: str
    payload: bytes


class DelayedJobs:
    """Reads delayed jobs over one connection."""

    def __init__(self, connection: Connection, namespace: Namespace) -> None:
        self._connection = connection
        self._namespace = namespace
        self._all = namespace.jobs_patterns("delayed", ">")
        self._prefix_of_answers = ""
        self._reads: dict[int, _Reading] = {}
        self._last_read = 0

    # ---- the sweep

    async def sweep(self, stream: str, take: _Take, *, after_seq: int = 0, rest: float = 0.0) -> int:
        """Read the jobs of a stream that may be delayed and were stored after `after_seq`. Call `take`, some at a time,
        with the due time and name of each. Return the last sequence that was read. Jobs stored during the sweep are
        left out: at a thousand jobs a second it would not come to an end, and each page takes the server's time.
        `rest`: by how many times the time of a page it pauses after it.

        Raises NoStream, Disconnected, Refused."""
        state = (await self._connection.api(f"STREAM.INFO.{stream}"))["state"]
        first, last = max(after_seq + 1, int(state["first_seq"])), int(state["last_seq"])
        if first > last:
            return after_seq
        asked = await self._what_to_ask(stream, int(state["messages"]))
        page = min(max(SHORTEST_PAGE, int(state["messages"]) // PAGES), LONGEST_PAGE)
        middle, ends = (first + last) // 2, [last]
        try:
            async with anyio.create_task_group() as lanes:
                sweep = _Sweep(stream, take, asked, page, rest)
                lanes.start_soon(self._lane, sweep, first, middle, ends)
                lanes.start_soon(self._lane, sweep, middle + 1, last, ends)
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return max(ends)

    async def _what_to_ask(self, stream: str, messages: int) -> dict[str, object]:
        one = {"seq": 1, "next_by_subj": self._all[stream], "batch": 1}
        found, end = await get_batch(self._connection, stream, one, timeout_s=PAGE_S)
        delayed = len(found) + int(end.headers.get("Nats-Num-Pending", 0))
        asked: dict[str, object] = {"no_hdr": True, "max_bytes": PAGE_BYTES}
        if delayed * SPARSE < messages:
            asked["next_by_subj"] = self._all[stream]
        return asked

    async def _lane(self, sweep: "_Sweep", seq: int, last: int, ends: list[int]) -> None:
        """Read from one sequence to another, page by page."""
        while seq <= last:
            began_s = monotonic_s()
            batch = min(sweep.page, last - seq + 1)
            status = await self._page(sweep, {**sweep.asked, "seq": seq, "batch": batch})
            end, left = _end_of_page(status, sweep.stream)
            ends.append(end)
            if not left or end < seq:
                return
            seq = end + 1
            await anyio.sleep(sweep.rest * (monotonic_s() - began_s))

    async def _page(self, sweep: "_Sweep", request: dict[str, object]) -> bytes:
        """Read one page and return the status that ended it. A page that is cut short is read again from its
        beginning."""
        deadline_s = monotonic_s() + SWEEP_S
        while True:
            await self._connection.connected_by(deadline_s)
            try:
                async with asyncio.timeout(PAGE_S):
                    return await self._page_once(sweep, request)
            except TimeoutError:
                if monotonic_s() > deadline_s:
                    raise Disconnected(f"{sweep.stream}: a page was not read within {SWEEP_S:g} s") from None

    async def _page_once(self, sweep: "_Sweep", request: dict[str, object]) -> bytes:
        ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        found: list[tuple[int, bytes]] = []

        def deliver(subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
            nonlocal found
            if block is not None and status_of(block)[0]:
                if not ended.done():
                    ended.set_result(block)
            elif job := _quick_due_of(payload):
                found.append(job)
                if len(found) == TAKEN:
                    sweep.take(found)
                    found = []

        inbox = self._connection.new_inbox()
        sid = self._connection.listen(inbox, deliver)
        try:
            await self._connection.publish_core(
                f"$JS.API.DIRECT.GET.{sweep.stream}", msgspec.json.encode(request), reply=inbox
            )
            status = await ended
        finally:
            self._connection.unlisten(sid)
        sweep.take(found)
        return status

    # ---- news

    async def listen(self, partition: int, take: Callable[[list[tuple[int, int, bytes]]], None]) -> Subscription:
        """Call `take` with the jobs of each notice of a partition. Notices that do not decode are dropped."""

        def told(message: Message) -> None:
            try:
                take(read_notice(message.payload))
            except MalformedMessage as error:
                log.debug("timer.bad_notice", extra={"fields": {"partition": partition, "error": str(error)}})

        return await self._connection.subscribe(self._namespace.due(partition), told)

    # ---- single jobs

    async def read(self, names: Sequence[bytes]) -> tuple[list[WaitingJob], set[bytes]]:
        """Return the jobs of these names that are delayed now, and the names for which no answer came in time. Raises
        NoStream, Disconnected."""
        await self._connection.connected_by(monotonic_s() + READ_S)
        prefix = self._listening()
        self._last_read = number = self._last_read + 1
        self._reads[number] = reading = _Reading(names)
        try:
            for at, name in enumerate(names):
                self._connection.client.send(publish_frame(self._get(name), f"{prefix}{number}.{at}", b"", b""))
            if names:
                with suppress(TimeoutError):  # the caller gets the names without an answer
                    async with asyncio.timeout(READ_S):
                        await reading.ended
        finally:
            del self._reads[number]
        if reading.is_nobody_there:
            raise no_responders(self._get(names[0]))
        return reading.found, reading.unanswered

    def _get(self, name: bytes) -> str:
        """Return the subject of a request for a delayed job."""
        topic, _, key = name.decode().partition(".")
        stream, subject = self._namespace.jobs_stream(topic), self._namespace.job("delayed", topic, key)
        return f"$JS.API.DIRECT.GET.{stream}.{subject}"

    def close(self) -> None:
        """Listen no more. A later `read` listens anew."""
        if self._prefix_of_answers:
            self._connection.unlisten(self._sid)
            self._prefix_of_answers = ""

    def _listening(self) -> str:
        """Return the subject under which the answers come. All reads share one subscription: the server compares a new
        one, and one that ends, with a thousand subjects, which cost it more than the read itself."""
        if not self._prefix_of_answers:
            self._prefix_of_answers = f"{self._connection.new_inbox()}."
            self._sid = self._connection.listen(f"{self._prefix_of_answers}>", self._answered)
        return self._prefix_of_answers

    def _answered(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        number, _, at = subject[len(self._prefix_of_answers) :].partition(b".")
        reading = self._reads.get(int(number))
        if reading is not None:
            reading.take(int(at), payload, block)


class _Sweep(NamedTuple):
    """A sweep under way. `asked`: what each of its requests has. `page`, `rest`: how long a page is, and the pause
    after it."""

    stream: str
    take: _Take
    asked: dict[str, object]
    page: int
    rest: float


class _Reading:
    """A read under way."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._names = names
        self._waiting = set(range(len(names)))
        self.found: list[WaitingJob] = []
        self.is_nobody_there = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def unanswered(self) -> set[bytes]:
        return {self._names[at] for at in self._waiting}

    def take(self, at: int, payload: bytes, block: bytes | None) -> None:
        """Take the answer to one name. A second one is dropped."""
        if at not in self._waiting:
            return
        self._waiting.discard(at)
        status = status_of(block)[0]
        self.is_nobody_there = self.is_nobody_there or status == _NOBODY
        if not status and (job := _waiting_job(self._names[at], payload, block)):
            self.found.append(job)
        if not self._waiting and not self.ended.done():
            self.ended.set_result(None)


def due_of(payload: bytes) -> tuple[int, bytes] | None:
    """Return due time and name of the job in a payload, None if there is none in it."""
    try:
        job = decode_job(payload)
    except MalformedMessage:
        return None
    name = f"{job.topic}.{token_of(job.id)}".encode("utf-8", "replace")
    return (job.due_ms, name) if _NAME.fullmatch(name) else None


def _quick_due_of(payload: bytes) -> tuple[int, bytes] | None:
    """Do as `due_of`, without decoding if the job has an ordinary id."""
    found = _HEAD.match(payload)
    return due_of(payload) if found is None else (int(found[3]), b"%b.%b" % (found[1], found[2]))


def encode_notice(jobs: Sequence[tuple[int, int, str]]) -> bytes:
    """Return a notice of jobs of one partition that were delayed: due time, sequence, `topic.key`."""
    return msgspec.msgpack.encode(jobs)


def read_notice(payload: bytes) -> list[tuple[int, int, bytes]]:
    """Return the jobs of a notice, without entries that cannot be a job. Raises MalformedMessage."""
    try:
        told = _notices.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no notice of delayed jobs: {error}") from error
    named = ((due_ms, seq, name.encode("utf-8", "replace")) for due_ms, seq, name in told)
    return [job for job in named if _NAME.fullmatch(job[2])]


def encode_crowds(name: str, news: Sequence[tuple[int, int, int]]) -> bytes:
    """Return what a program tells of how many delayed jobs are due at once. `name`: its own."""
    return msgspec.msgpack.encode((name, news))


def read_crowds(payload: bytes) -> tuple[str, list[tuple[int, int, int]]]:
    """Return what `encode_crowds` was given. Raises MalformedMessage."""
    try:
        return _crowds.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"no news of crowds: {error}") from error


def _end_of_page(block: bytes, stream: str) -> tuple[int, int]:
    status, text = status_of(block)
    if status == _NOBODY:
        raise no_responders(f"$JS.API.DIRECT.GET.{stream}")
    if status == _NONE:
        return 0, 0
    headers = parse_headers(block)
    if "Nats-Last-Sequence" not in headers:
        raise Refused(text, subject=stream, code=status)
    return int(headers["Nats-Last-Sequence"]), int(headers.get("Nats-Num-Pending", 0))


def _waiting_job(name: bytes, payload: bytes, block: bytes | None) -> WaitingJob | None:
    """Return the delayed job in a direct get's answer. None: it holds no delayed job, or one without a single due
    time."""
    headers = parse_headers(block)
    due = _quick_due_of(payload)
    try:
        server_ms = server_time_s(headers.get("Nats-Schedule", "").removeprefix(_AT)) * 1000
    except MalformedMessage:
        return None
    target = headers.get("Nats-Schedule-Target", "")
    if due is None or not target:
        return None
    own = "".join(f"{key}: {value}\r\n" for key, value in headers.items() if not key.lower().startswith("nats-"))
    return WaitingJob(name, due[0], int(headers["Nats-Sequence"]), server_ms, target, own, payload)
