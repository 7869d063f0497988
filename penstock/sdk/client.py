"""The client for other programs: `async with penstock.connect("nats://…") as client: await client.jobs.add(…)`.

The client sends requests to the service of the nodes (`nats micro ls` shows it) and needs no other rights. So it works
through any node with the role `desk`, and from any account that may publish to `<namespace>.api.>`.

A request whose reply was lost is sent again until `timeout_s` is over. Each request is harmless to repeat: a job, for
example, has its id before it is sent. penstock/errors.py has the exceptions that a caller may catch.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.runtime.tracing import traces
from penstock.errors import NotAccepted
from penstock.sdk.calls import ServiceClient, client_error
from penstock.sdk.client_batches import Batches
from penstock.sdk.client_flows import FlowCalls
from penstock.sdk.client_jobs import Jobs
from penstock.sdk.client_rates import RateCalls
from penstock.sdk.client_schedules import Schedules
from penstock.sdk.client_sources import SourceCalls
from penstock.sdk.client_zones import ZoneCalls
from streams.errors import MalformedSubject, StreamError
from streams.link.connection import Connection
from streams.link.connection import connect as connect_to_server
from streams.link.credentials import Credentials
from streams.subjects import Namespace

__all__ = ["Client", "Credentials", "connect"]


class Client:
    """The client that `connect` opens."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self.jobs = Jobs(ServiceClient(connection, "jobs", timeout_s))
        self.schedules = Schedules(ServiceClient(connection, "schedules", timeout_s))
        self.flows = FlowCalls(ServiceClient(connection, "flow", timeout_s))
        self.rates = RateCalls(ServiceClient(connection, "rates", timeout_s))
        self.zones = ZoneCalls(ServiceClient(connection, "zones", timeout_s))
        self.sources = SourceCalls(ServiceClient(connection, "sources", timeout_s))
        self.batches = Batches(ServiceClient(connection, "batch", timeout_s), connection)


@asynccontextmanager
async def connect(
    url: str = "nats://127.0.0.1:4222",
    *,
    namespace: str = "penstock",
    name: str = "penstock-client",
    credentials: Credentials | None = None,
    timeout_s: float = 30.0,
    connect_timeout_s: float = 10.0,
    direct: bool = False,
    monitor: str = "",
) -> AsyncIterator[Client]:
    """Connect, and close at the end of the block. `url` may list several servers of one cluster, separated by commas.

    `timeout_s`: the limit of a call with its repeats, on top of the call's own `wait`. `direct`: this program itself
    stores the jobs that it adds, without a desk in between. It needs the rights of a node for that. `monitor`: then the
    monitoring address of the server, as nodes have it, so that adds stop before the server's store is full.

    If the program has set a provider of tracers of OpenTelemetry before, its adds and submissions are traced.

    Raises Unavailable if no server answers, NotAccepted if the server refuses the login."""
    traces.follow_provider()
    opened = connect_to_server(
        url,
        name=name,
        namespace=_namespace(namespace),
        credentials=credentials,
        connect_timeout_s=connect_timeout_s,
    )
    try:
        connection = await opened.__aenter__()
    except StreamError as error:
        raise client_error(error) from error
    try:
        client = Client(connection, timeout_s)
        try:
            if direct:
                await client.jobs.store_directly(monitor)
            yield client
        finally:
            await client.jobs.carriers.close()
    finally:
        await opened.__aexit__(None, None, None)


def _namespace(name: str) -> Namespace:
    try:
        return Namespace(name)
    except MalformedSubject as error:
        raise NotAccepted(str(error), code="bad", field="namespace") from error
