"""Opens the handler, for a node's job worker, that makes the callbacks of batches."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.batch.callback_transport import open_callback_transport
from actors.batch.callbacks import ATTEMPTS, TOPIC, TRIES, TTR_MS, CallbackJob, CallbackSender
from actors.batch.instances import Instances
from actors.batch.rules.callbacks import parse_allowed
from actors.jobs.worker.handler import Handler
from actors.jobs.worker.job import Bury, Job, Retry
from actors.runtime.secrets import resolve_reference
from penstock.errors import UsageError
from penstock.node.node import Node
from streams.backoff import Backoff
from streams.chance import chance

__all__ = ["open_callbacks"]

SHORTEST_SECRET = 16


@asynccontextmanager
async def open_callbacks(node: Node, tries: Backoff = TRIES) -> AsyncIterator[tuple[Handler, ...]]:
    """Give the handler of callbacks, or none if the operator allows no calls or the node has another role. Raises
    UsageError for a secret that cannot be read or is too short."""
    config = node.config
    if not config.callback_hosts or not config.has_role("worker"):
        yield ()
        return
    if len(config.secret("callback_secret")) < SHORTEST_SECRET:
        raise UsageError(
            f"callback_secret: shorter than {SHORTEST_SECRET} characters; `openssl rand -hex 32` makes one"
        )
    allowed = parse_allowed(config.callback_hosts)
    async with open_callback_transport(allowed) as transport:
        caller = CallbackSender(
            instances=Instances(node.bucket("INSTANCES")),
            transport=transport,
            allowed=allowed,
            secret=lambda: resolve_reference(config.callback_secret).reveal(),
            publisher=node.publisher,
            namespace=node.connection.namespace,
            clock=node.clock,
            chance=chance,
            tries=tries,
        )
        yield (_handler(caller),)


def _handler(caller: CallbackSender) -> Handler:
    async def call(job: Job) -> None:
        not_taken = await caller.call(job.read(CallbackJob), job.attempt)
        if not_taken is None:
            return
        if not_taken.delay_ms is None:
            raise Bury(not_taken.reason)
        raise Retry(not_taken.delay_ms / 1000, not_taken.reason)

    return Handler(topic=TOPIC, name="batch callbacks", take=call, is_async=True, ttr_ms=TTR_MS, attempts=ATTEMPTS)
