"""The client of other programs: `async with penstock.connect("nats://…") as client: await client.jobs.add(…)`.

It talks to the service of the nodes (`nats micro ls` shows it) and needs no rights but to ask it, so it works through
any node that has the desk's role, and from any account that may publish to `<namespace>.api.>`.

A question whose answer was lost is asked again until `timeout_s` is over; each is so made that asking twice is harmless
(an added job has its id before it is sent). What a caller may catch is in penstock/errors.py.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock.errors import NotAccepted
from penstock.sdk.calls import ServiceClient, client_error
from penstock.sdk.client_batches import Batches
from penstock.sdk.client_jobs import Jobs
from streams.connection import Connection
from streams.connection import connect as connect_to_server
from streams.credentials import Credentials
from streams.errors import MalformedSubject, StreamError
from streams.subjects import Namespace

__all__ = ["Client", "Credentials", "connect"]


class Client:
    """What `connect` opens."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self.jobs = Jobs(ServiceClient(connection, "jobs", timeout_s))
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
) -> AsyncIterator[Client]:
    """Connect, and close at the end. `url` may list several servers of one cluster, parted by commas.

    `timeout_s`: how long a call may take, repeats included, on top of what it waits for by its own wish. Raises
    Unavailable when no server answers, NotAccepted when the login is refused."""
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
        yield Client(connection, timeout_s)
    finally:
        await opened.__aexit__(None, None, None)


def _namespace(name: str) -> Namespace:
    try:
        return Namespace(name)
    except MalformedSubject as error:
        raise NotAccepted(str(error), code="bad", field="namespace") from error
