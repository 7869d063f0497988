"""All values of the settings' levels that the bucket keeps. The last good ones are found there."""

from collections.abc import Awaitable, Callable

from actors.fetch.settings.levels import PREFIX
from actors.fetch.settings.replay import Kept
from streams.link.connection import Connection
from streams.reads.log import read_messages
from streams.subjects import kv_stream

History = Callable[[], Awaitable[list[Kept]]]


def kept_values(connection: Connection, bucket: str) -> History:
    """Return a function that reads every kept value of every level, deletions included, oldest first.
    It raises StreamError. It reads the whole history, so use it only after something went wrong."""
    prefix = f"$KV.{bucket}."

    async def read() -> list[Kept]:
        found: list[Kept] = []
        async for message in read_messages(connection, kv_stream(bucket), f"{prefix}{PREFIX}.>"):
            headers = message.headers
            is_gone = "KV-Operation" in headers or "Nats-Marker-Reason" in headers
            key = headers["Nats-Subject"].removeprefix(prefix)
            found.append(Kept(int(headers["Nats-Sequence"]), key, None if is_gone else message.payload))
        return found

    return read
