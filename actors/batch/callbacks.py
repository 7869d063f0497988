"""Batch callbacks: report what happened to an instance, by an event, and by a call to the URL of its submitter.

In: moments that an instance's record owes (actors/batch/rules/moments.py), from the conductor that tends it. The bodies
of jobs of `batch-callbacks`, one for each call. Out: stored events on `events.batch.<moment>.<task>.<instance>`. Those
jobs, submitted on `submit.job`. Signed POSTs. State: none. The instance's record holds the state of each call. Under
redelivery: the event and the job carry the moment's id, and a call that was taken is not made again. A call whose end
was not recorded is made again, with the same id. When it cannot go on: the queue of jobs tries a call again, ever less
often for some hours. Then it is given up, which is an event, a line in the log, a dead letter that can be replayed, and
a note in the record.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from actors.batch.callback_transport import BadCallback, check_callback
from actors.batch.instances import Instances, UnknownInstance
from actors.batch.rules import moments
from actors.batch.rules.callbacks import Allowed, signature, tenant_secret
from actors.batch.rules.moments import CallState
from actors.batch.rules.record import Instance, Moment
from actors.runtime.failpoints import reach
from actors.runtime.logs import fields
from actors.runtime.secrets import BadReference
from actors.runtime.transport import PlatformDown, TooMuch, Transport, shown_url
from platforms.adapter import Request
from streams.backoff import Backoff, next_delay_ms
from streams.clock import Clock
from streams.errors import Refused
from streams.messages.batch import BatchEvent, encode_message
from streams.messages.jobs import NewJob, encode_new_job
from streams.publish.publisher import Outgoing, Publisher
from streams.subjects import Namespace

log = logging.getLogger(__name__)

TOPIC = "batch-callbacks"
TRIES = Backoff(retries=11, growth="exponential", base_ms=5_000, cap_ms=3_600_000)
"""Twelve tries within three hours. A receiver takes less time to be deployed or repaired by day."""
ATTEMPTS = TRIES.retries + 6
"""Attempts of the job. A node that dies at a call uses one up. Some are to spare, so that the last try is recorded."""
TIMEOUT_S = 10.0
TTR_MS = 60_000
CALLS_AT_ONCE = 4
"""To one receiver, over all nodes. One that hangs then keeps no call to another from its place."""
MOST_BYTES = 65_536
"""Limit of a response in bytes. Only its status matters."""


class CallbackJob(msgspec.Struct, frozen=True):
    """A job's body: the moment to report. The record holds everything else. `created_ms`: of the instance, since a
    later one of its id is another. 0: the job is of an older version, which did not name it. `receiver`: the host that
    is called, whose calls are bounded."""

    instance_id: str
    name: str
    pass_no: int
    created_ms: int = 0
    receiver: str = ""


class CallbackFailed(NamedTuple):
    """Why a call failed, and when to try again. `delay_ms` is `None`: it is given up."""

    reason: str
    delay_ms: int | None


class Moments:
    """Reports what instances owe: as events, and as jobs for the callbacks."""

    def __init__(self, instances: Instances, publisher: Publisher, namespace: Namespace) -> None:
        self._instances = instances
        self._publisher = publisher
        self._namespace = namespace

    async def tell(self, record: Instance) -> None:
        """Report what the record owes, and record that. Raises the broker's errors. Then it is owed as before."""
        owed = moments.owed(record)
        outgoing = [each for moment in owed for each in self._outgoing(record, moment)]
        for answer in await self._publisher.publish_many(outgoing):
            if isinstance(answer, Refused):
                raise answer
        reach("batch.tell")
        await self._instances.move_own(record, lambda before: moments.mark_reported(before, owed))

    def _outgoing(self, record: Instance, moment: Moment) -> list[Outgoing]:
        event = moments.event_of(record, moment)
        found = [outgoing_event(self._namespace, event)]
        if record.callback:
            receiver = urlsplit(record.callback).netloc.rpartition("@")[2]
            call = CallbackJob(record.instance_id, moment.name, moment.pass_no, record.created_ms, receiver)
            body = msgspec.Raw(msgspec.json.encode(call))
            job = NewJob(topic=TOPIC, id=event.event_id, body=body, attempts=ATTEMPTS)
            found.append(
                Outgoing(self._namespace.subject("submit", "job", TOPIC), encode_new_job(job), f"{event.event_id}.call")
            )
        return found


def outgoing_event(namespace: Namespace, event: BatchEvent) -> Outgoing:
    """Return the message of an event. It is stored once within the server's duplicate window."""
    subject = namespace.event("batch", event.event, event.task, event.instance_id)
    return Outgoing(subject, encode_message(event), event.event_id)


class CallbackSender:
    """Makes the calls that are due. It reads `secret` again for each call."""

    def __init__(
        self,
        *,
        instances: Instances,
        transport: Transport,
        allowed: Allowed,
        secret: Callable[[], str],
        publisher: Publisher,
        namespace: Namespace,
        clock: Clock,
        chance: Callable[[], float],
        tries: Backoff,
    ) -> None:
        self._instances = instances
        self._transport = transport
        self._allowed = allowed
        self._secret = secret
        self._publisher = publisher
        self._namespace = namespace
        self._clock = clock
        self._chance = chance
        self._tries = tries

    async def call(self, job: CallbackJob, attempt: int) -> CallbackFailed | None:
        """Make a call, if it is still due. Return None if nothing is left to do. Raises the broker's errors."""
        try:
            record = await self._instances.get(job.instance_id)
        except UnknownInstance:
            return None
        if job.created_ms not in (0, record.created_ms):
            return None
        moment = moments.find(record, job.name, job.pass_no)
        if moment is None or moment.state == "taken" or not record.callback:
            return None
        facts = fields(instance=record.instance_id, moment=moment.name, tries=attempt)
        why = await self._post(record, moment)
        if not why:
            reach("batch.called")
            await self._record(record, moment, "taken", attempt)
            log.info("callback.taken", extra=facts)
            return None
        if self._tries.is_last(attempt):
            await self._record(record, moment, "given_up", attempt, why)
            await self._report_given_up(record, moment, why)
            log.error("callback.given_up", extra=facts)
            return CallbackFailed(why, None)
        await self._record(record, moment, "waiting", attempt, why)
        return CallbackFailed(why, next_delay_ms(attempt + 1, self._tries, chance=self._chance()))

    async def _post(self, record: Instance, moment: Moment) -> str:
        """Post a moment. Return why the receiver did not take it, empty if it did."""
        url, event = record.callback, _for_submitter(moments.event_of(record, moment))
        body = encode_message(event)
        try:
            check_callback(url, self._allowed)
            secret = tenant_secret(self._secret(), event.tenant)
            headers = (
                ("Content-Type", "application/json"),
                ("Penstock-Event-Id", event.event_id),
                ("Penstock-Signature", signature(secret, body, self._clock.now_ms() // 1000)),
            )
            answer = await self._transport.send(
                Request("POST", url, headers=headers, body=body), timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES
            )
        except (BadCallback, BadReference, PlatformDown, TooMuch) as error:
            return str(error).replace(shown_url(url), "the callback")  # a path may be a password
        return (
            ""
            if 200 <= answer.status < 300
            else f"the callback answers {answer.status}; a status from 200 to 299 is needed"
        )

    async def _record(self, record: Instance, moment: Moment, state: CallState, tries: int, info: str = "") -> None:
        def move(before: Instance) -> Instance:
            return moments.called(before, moment, state, tries=tries, info=info)

        try:
            await self._instances.move_own(record, move)
        except UnknownInstance:
            return  # it was removed meanwhile, after its time

    async def _report_given_up(self, record: Instance, moment: Moment, why: str) -> None:
        event = moments.event_of(record, moment)
        given_up = replace(event, event_id=f"{event.event_id}.given_up", event="callback_given_up", reason=why)
        message = outgoing_event(self._namespace, given_up)
        await self._publisher.publish(message.subject, message.payload, message_id=message.message_id)


def _for_submitter(event: BatchEvent) -> BatchEvent:
    """Return the event with the instance's id as its tenant knows it. The gateway puts the tenant before it."""
    prefix = f"{event.tenant}--"
    return replace(event, instance_id=event.instance_id.removeprefix(prefix)) if event.tenant else event
