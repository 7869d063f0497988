"""Opens the handler, for a node's job worker, that makes the callbacks of batches, and signs requests to programs."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from actors.batch.callback_transport import PLACES, open_callback_transport
from actors.batch.callbacks import ATTEMPTS, CALLS_AT_ONCE, TOPIC, TRIES, TTR_MS, CallbackJob, CallbackSender
from actors.batch.executor.external import Sign
from actors.batch.instances import Instances
from actors.batch.rules.callbacks import parse_allowed, signature, task_secret
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Bury, Job, Retry
from actors.runtime.rules.slot_keys import Slots
from actors.runtime.secrets import resolve_reference
from penstock.errors import UsageError
from penstock.node.config import Config
from penstock.node.node import Node
from streams.backoff import Backoff
from streams.chance import chance

__all__ = ["open_callbacks", "signer"]

SHORTEST_SECRET = 16


@asynccontextmanager
async def open_callbacks(node: Node, tries: Backoff = TRIES) -> AsyncIterator[tuple[Handler, ...]]:
    """Give the handler of callbacks, or none if the operator allows no calls or the node has another role. Raises
    UsageError for a secret that cannot be read or is too short."""
    config = node.config
    if not config.callback_hosts or not config.has_role("worker"):
        yield ()
        return
    secret = _secret(config)
    allowed = parse_allowed(config.callback_hosts)
    async with open_callback_transport(allowed) as transport:
        caller = CallbackSender(
            instances=Instances(node.bucket("INSTANCES")),
            transport=transport,
            allowed=allowed,
            secret=secret,
            publisher=node.publisher,
            namespace=node.connection.namespace,
            clock=node.clock,
            chance=chance,
            tries=tries,
        )
        yield (_handler(caller),)


def signer(node: Node) -> Sign:
    """Return what signs the requests to external programs. Raises UsageError as `open_callbacks`."""
    if not node.config.callback_secret:
        return lambda _task, _body: ""
    secret, clock = _secret(node.config), node.clock
    return lambda task, body: signature(task_secret(secret(), task), body, clock.now_ms() // 1000)


def _secret(config: Config) -> Callable[[], str]:
    """Return the function that reads the secret anew."""
    if len(config.secret("callback_secret")) < SHORTEST_SECRET:
        raise UsageError(
            f"callback_secret: shorter than {SHORTEST_SECRET} characters; `openssl rand -hex 32` makes one"
        )
    return lambda: resolve_reference(config.callback_secret).reveal()


def _handler(caller: CallbackSender) -> Handler:
    async def call(job: Job) -> None:
        not_taken = await caller.call(job.read(CallbackJob), job.attempt)
        if not_taken is None:
            return
        if not_taken.delay_ms is None:
            raise Bury(not_taken.reason)
        raise Retry(not_taken.delay_ms / 1000, not_taken.reason)

    return Handler(
        topic=TOPIC,
        name="batch callbacks",
        take=call,
        is_async=True,
        concurrency=PLACES,
        ttr_ms=TTR_MS,
        attempts=ATTEMPTS,
        slots=Slots(CALLS_AT_ONCE, key="receiver"),
    )
