"""How a client sends its adds: to a desk, or to the server itself if it stores jobs directly."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import anyio
from msgspec import Raw
from msgspec.structs import replace

from actors.jobs.rules.job_answers import Added, NotAdded
from actors.runtime.rules.parts import parts_of
from actors.runtime.rules.spellings import unknown_option
from actors.runtime.supervisor import one_error
from actors.runtime.turns import Carriers, Deferred, Turns
from penstock.api.forms.jobs import JobOptions
from penstock.errors import Timeout, UsageError
from penstock.sdk.calls import BegunRequest, JudgedByDesk, ServiceClient, client_error
from penstock.sdk.client_forms import MILLISECONDS, too_large
from penstock.sdk.job_replies import add_answers, added_of, one_each, repeated_add
from streams.errors import StreamError
from streams.messages.jobs import MOST_JOBS, NewJob, body_of, encode_new_job, is_json
from streams.messages.nonces import fresh_hex, fresh_nonce

if TYPE_CHECKING:
    from penstock.sdk.direct_adds import DirectAdds

AT_ONCE = 8
"""Parts of a long list that are on their way at the same time."""
MOST_IN_PART = 128
"""Jobs in one request. While a node works on one part, the client writes and reads the others."""
MOST_DIRECT = 100
"""The same of jobs that the client stores by itself."""
ROOM = 4096
"""Bytes of a message that are left for the other fields."""


def new_job(topic: str, body: object = None, **options: Unpack[JobOptions]) -> NewJob:
    """Return a job for `add_many`. `body`: any JSON value, or `msgspec.Raw` for text that is JSON already.

    The options are those of `JobOptions`: `id`, `delay` or `due`, `ttr`, `priority`, `attempts`, `expires_in`,
    `on_same`, `nonce`. Raises UsageError."""
    if options and (unknown := options.keys() - JobOptions.__optional_keys__):
        raise TypeError(unknown_option("a job", min(unknown), sorted(JobOptions.__optional_keys__)))
    try:
        raw = body if isinstance(body, Raw) else body_of(body)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise UsageError(f"body: is not what JSON can hold: {error}") from error
    if isinstance(body, Raw) and not is_json(bytes(body)):
        raise UsageError("body: the text is no JSON")
    if not options:
        return NewJob(topic=topic, body=raw, id=fresh_hex())
    asked: dict[str, Any] = {"id": "" if options.get("nonce") else fresh_hex()}
    for name, value in options.items():
        if read := MILLISECONDS.get(name):
            is_default = value is None and name != "delay"
            asked[f"{name}_ms"] = None if is_default else read(name, value)
        elif value or name != "id":
            asked[name] = value
    return NewJob(topic=topic, body=raw, **asked)


def named(job: NewJob) -> NewJob:
    """Return the job with a nonce for this call."""
    return job if job.nonce else replace(job, nonce=fresh_nonce())


class ClientAdds:
    """The adds of one client. `direct`: set if it stores jobs by itself."""

    def __init__(self, service: ServiceClient, carriers: Carriers) -> None:
        self._service = service
        self.direct: DirectAdds | None = None
        self._turns = Turns(carriers, self._send, most_size=self.room, most=MOST_IN_PART, sends_now=True)

    def room(self) -> int:
        """Return how many bytes of jobs or receipts fit into one request."""
        return self._service.max_payload - ROOM

    async def add(self, job: NewJob) -> Added:
        """Add a named job. Raises the client's errors. A Timeout carries the job."""
        try:
            try:
                return added_of(too_large(job) or await self._sent(job))
            except JudgedByDesk:
                return added_of(await self._sent_there(job))
        except Timeout as lost:
            lost.job = job
            raise
        except StreamError as error:
            failure = client_error(error)
            if isinstance(failure, Timeout):
                failure.job = job
            raise failure from error

    def _sent(self, job: NewJob) -> Awaitable[Added | NotAdded]:
        """Send a job. The answer raises the client's errors, and StreamError."""
        if self.direct is not None and self.direct.takes(job):
            return self.direct.add_one(job)
        return self._sent_there(job)

    def _sent_there(self, job: NewJob) -> Awaitable[Added | NotAdded]:
        encoded = encode_new_job(job)
        return self._turns.call(encoded, size=len(encoded) + 1, kind=None)

    async def add_all(self, jobs: Sequence[NewJob]) -> list[Added | NotAdded]:
        """Add named jobs, and return the result of each, in order."""
        answers: list[Added | NotAdded | None] = [too_large(job) for job in jobs]
        direct = self.direct
        here = [at for at, job in enumerate(jobs) if direct and answers[at] is None and direct.takes(job)]
        is_here = set(here)
        there = [at for at, answer in enumerate(answers) if answer is None and at not in is_here]
        encoded = [encode_new_job(jobs[at]) for at in there]
        limiter = anyio.Semaphore(AT_ONCE)

        async def send(places: Sequence[int], add: Callable[[], Awaitable[Sequence[Added | NotAdded]]]) -> None:
            async with limiter:
                for at, answer in zip(places, await add(), strict=True):
                    answers[at] = answer

        with one_error():
            async with anyio.create_task_group() as tasks:
                for part in parts_of([len(job) + 1 for job in encoded], self.room(), MOST_IN_PART):
                    tasks.start_soon(send, there[part], partial(self._send, None, encoded[part]))
                for part in parts_of([1] * len(here), MOST_JOBS, MOST_DIRECT):
                    tasks.start_soon(send, here[part], partial(self._add_here, [jobs[at] for at in here[part]]))
        return [answer for answer in answers if answer is not None]

    async def _add_here(self, jobs: Sequence[NewJob]) -> Sequence[Added | NotAdded]:
        assert self.direct is not None
        try:
            return await self.direct.add(jobs)
        except JudgedByDesk:
            encoded = [encode_new_job(job) for job in jobs]
            parts = parts_of([len(job) + 1 for job in encoded], self.room(), MOST_IN_PART)
            return [answer for part in parts for answer in await self._send(None, encoded[part])]

    def _send(self, _kind: None, jobs: Sequence[bytes]) -> Awaitable[list[Added | NotAdded]]:
        """Send jobs at once. Whoever waits gets the answers."""
        payload = b"[%b]" % b",".join(jobs)
        return Deferred(partial(self._added_there, payload, len(jobs), self._service.begin("add", payload)))

    async def _added_there(self, payload: bytes, count: int, begun: BegunRequest) -> list[Added | NotAdded]:
        answered = await self._service.request("add", payload, begun=begun)
        answers = one_each(add_answers(answered.payload), count)
        return [repeated_add(answer) for answer in answers] if answered.is_repeated else answers
