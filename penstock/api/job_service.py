"""The job desk as a service on NATS: `nats req penstock.api.jobs.add '{"topic": "mail", "body": {"to": 7}}'`.

In: JSON on `<namespace>.api.jobs.<endpoint>`, forms in forms/jobs.py. Out: JSON; errors by the protocol of NATS micro
services, `{"error": {"code", "reason", "field"}}`. State: none, so every node answers every question.
What is malformed, too large or out of range is refused with its reason; one bad job of a list spoils no other. While
the broker takes nothing the answer is 503, certainly not done, or 504, perhaps done: ask again under the same id.
"""

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version

import anyio
from anyio.abc import TaskStatus

from actors.jobs.desk import JobDesk
from actors.jobs.rules.job_answers import HTTP_CODES, Added, Answer, NotAdded
from penstock.api.forms.jobs import (
    Answers,
    BuryAsk,
    CountAsk,
    DeleteAsk,
    FinishAsk,
    KickAsk,
    Kicked,
    ListAsk,
    PeekAsk,
    ReleaseAsk,
    ReserveAsk,
    ReservedJobs,
    TopicAsk,
    TopicViews,
    TouchAsk,
    read_jobs,
)
from penstock.api.forms.reading import Asked, Malformed, read_ask
from penstock.api.replies import encode, guarded, guarded_request, refused
from streams.connection import Connection
from streams.frames import Message
from streams.job_messages import AGE_HEADER, MEMORY_HEADER, MOST_JOBS, FirstTry
from streams.micro import WHO, Endpoint, RequestRefused, Service

__all__ = ["JobService"]

NAME = "penstock-jobs"
MOST_WAITING = 4_096
"""Long polls that one node holds; each is a request at the server and some kilobytes here."""
MOST_SHORT = 512
ROOM = 16 * 1024
"""Bytes of an answer that are left for what stands beside the jobs."""
ROOM_EACH = 400
"""Bytes by which a job handed out may be longer than the job as it is stored: its receipt, above all."""

_Settle = Callable[[Sequence[str]], Awaitable[list[Answer]]]


class JobService:
    """One node's instance. It answers until the node stops, and then ends the long polls."""

    def __init__(self, desk: JobDesk, connection: Connection, stop: anyio.Event) -> None:
        self._desk = desk
        self._connection = connection
        self._stop = stop

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Answer until the node's stop is set and what is in hand is answered."""
        service = Service(
            self._connection,
            name=NAME,
            version=version("penstock"),
            about="delayed jobs: add, reserve, finish and the rest, in JSON",
            endpoints=self._endpoints(),
            metadata={"namespace": self._connection.namespace.name},
            who=self._connection.namespace.api("jobs", WHO),
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_waits)
            await service.serve(self._stop, task_status=task_status)

    async def _end_waits(self) -> None:
        await self._stop.wait()
        self._desk.end_waits()

    def _endpoints(self) -> list[Endpoint]:
        """Return the endpoints; what hands out new work is bounded apart, so that it never holds up what ends some."""
        answers = {
            "finish": self._finish,
            "touch": self._touch,
            "release": self._release,
            "bury": self._bury,
            "kick": self._kick,
            "delete": self._delete,
            "peek": self._peek,
            "list": self._list,
            "count": self._count,
            "topics": self._topics,
            "topic": self._topic,
        }
        subject = self._connection.namespace.api
        reserve = guarded(self._reserve)
        return [
            Endpoint("add", subject("jobs", "add"), guarded_request(self._add), most=MOST_SHORT),
            Endpoint("reserve", subject("jobs", "reserve"), reserve, most=MOST_WAITING, is_undone=True),
            *(
                Endpoint(name, subject("jobs", name), guarded(answer), most=MOST_SHORT)
                for name, answer in answers.items()
            ),
        ]

    async def _add(self, request: Message) -> bytes:
        jobs, is_single = read_jobs(request.payload)
        asked = [job for job in jobs if not isinstance(job, NotAdded)]
        added = iter(await self._desk.add(asked, first=_first_try(request)))
        answers = [job if isinstance(job, NotAdded) else next(added) for job in jobs]
        return _only(answers) if is_single else encode({"answers": answers})

    async def _reserve(self, payload: bytes) -> bytes:
        ask = read_ask(payload, ReserveAsk)
        jobs = await self._desk.reserve(
            ask.topic,
            most=ask.most,
            wait_ms=ask.wait_ms,
            ttr_ms=ask.ttr_ms,
            holder=ask.holder,
            most_bytes=self._connection.max_payload - ROOM - ROOM_EACH * min(max(ask.most, 0), MOST_JOBS),
        )
        return encode(ReservedJobs(jobs))

    async def _finish(self, payload: bytes) -> bytes:
        ask = read_ask(payload, FinishAsk)
        if ask.id and not ask.receipt and not ask.receipts:
            return _only([await self._desk.finish_by_id(ask.id)])
        return await _settled(ask, self._desk.finish)

    async def _touch(self, payload: bytes) -> bytes:
        ask = read_ask(payload, TouchAsk)
        return await _settled(ask, lambda receipts: self._desk.touch(receipts, ttr_ms=ask.ttr_ms))

    async def _release(self, payload: bytes) -> bytes:
        ask = read_ask(payload, ReleaseAsk)

        async def release(receipts: Sequence[str]) -> list[Answer]:
            return await self._desk.release(receipts, delay_ms=ask.delay_ms, reason=ask.reason, counts=ask.counts)

        return await _settled(ask, release)

    async def _bury(self, payload: bytes) -> bytes:
        ask = read_ask(payload, BuryAsk)
        return await _settled(ask, lambda receipts: self._desk.bury(receipts, reason=ask.reason))

    async def _kick(self, payload: bytes) -> bytes:
        ask = read_ask(payload, KickAsk)
        return encode(Kicked(await self._desk.kick(ask.topic, ask.id, most=ask.most)))

    async def _delete(self, payload: bytes) -> bytes:
        ask = read_ask(payload, DeleteAsk)
        return _only([await self._desk.delete(ask.topic, ask.id, nonce=ask.nonce)])

    async def _peek(self, payload: bytes) -> bytes:
        ask = read_ask(payload, PeekAsk)
        job = await self._desk.peek(ask.topic, ask.id)
        if job is None:
            raise refused("not_found", f"topic {ask.topic!r} has no job of this id")
        return encode(job)

    async def _list(self, payload: bytes) -> bytes:
        ask = read_ask(payload, ListAsk)
        page = await self._desk.list(
            ask.topic,
            state=ask.state,
            after=ask.after,
            limit=ask.limit,
            due_after_ms=ask.due_after_ms,
            due_before_ms=ask.due_before_ms,
            most_bytes=self._connection.max_payload - ROOM,
        )
        return encode(page)

    async def _count(self, payload: bytes) -> bytes:
        return encode(await self._desk.count(read_ask(payload, CountAsk).topic))

    async def _topics(self, payload: bytes) -> bytes:
        read_ask(payload, Asked)
        return encode(TopicViews(await self._desk.topics()))

    async def _topic(self, payload: bytes) -> bytes:
        ask = read_ask(payload, TopicAsk)
        return encode(await self._desk.change_topic(ask.topic, ask.set))


def _first_try(request: Message) -> FirstTry:
    """Return when a request was asked first."""
    told = request.headers.get(AGE_HEADER, "")
    age_s = int(told) / 1000 if told.isascii() and told.isdigit() and len(told) < 12 else 0.0
    return FirstTry(age_s, request.headers.get(MEMORY_HEADER, ""))


async def _settled(ask: FinishAsk | TouchAsk | ReleaseAsk | BuryAsk, settle: _Settle) -> bytes:
    """Settle the one receipt, or each of several."""
    if bool(ask.receipt) == bool(ask.receipts):
        raise Malformed("give either `receipt` or `receipts`")
    if len(ask.receipts) > MOST_JOBS:
        raise Malformed(f"receipts: {len(ask.receipts)}, at most {MOST_JOBS} in one call")
    if ask.receipt:
        return _only(await settle([ask.receipt]))
    return encode(Answers(await settle(ask.receipts)))


def _only(answers: Sequence[Added | NotAdded | Answer]) -> bytes:
    """Return the one answer; what was not done is an error."""
    [answer] = answers
    if isinstance(answer, Added) or answer.code == "ok":
        return encode(answer)
    raise RequestRefused(HTTP_CODES[answer.code], answer.reason, encode({"error": answer}))
