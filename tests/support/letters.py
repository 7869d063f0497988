"""The dead letters of an installation."""

from streams.link.connection import Connection
from streams.messages.fetch import DeadLetter, decode_dead_letter
from streams.reads.log import read_log


async def letter_payloads(connection: Connection, *tokens: str) -> list[bytes]:
    """Return the messages of all dead letters, or of those whose subjects begin with these tokens."""
    stream, pattern = connection.namespace.stream("DEAD"), connection.namespace.pattern("dead", *tokens, ">")
    return [entry.payload async for entry in read_log(connection, stream, pattern)]


async def dead_letters(connection: Connection, *tokens: str) -> list[DeadLetter]:
    return [decode_dead_letter(payload) for payload in await letter_payloads(connection, *tokens)]
