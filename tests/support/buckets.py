"""Buckets for tests, made as the topology makes them."""

from typing import TypeVar

from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.topology.specs import BucketSpec
from tests.support.server import copies

T = TypeVar("T")


async def add_bucket(connection: Connection, short: str, *, has_ttl: bool = False, history: int = 1) -> str:
    """Create a bucket of the connection's namespace and return its full name."""
    name = connection.namespace.bucket(short)
    about, replicas = "for a test", copies(connection)
    spec = BucketSpec(name=name, about=about, has_ttl=has_ttl, history=history, replicas=replicas).stream()
    await connection.api(f"STREAM.CREATE.{spec.name}", spec.config())
    return name


async def bucket_of(
    connection: Connection, publisher: Publisher, type_: type[T], *, has_ttl: bool = False, history: int = 1
) -> Bucket[T]:
    """Return a fresh bucket for values of one type."""
    name = await add_bucket(connection, "TEST", has_ttl=has_ttl, history=history)
    return Bucket(connection, publisher, name, type_)
