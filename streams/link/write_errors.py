"""Asks a stream whether it could not be written. Such a stream of nats-server 2.15 takes nothing until the server is
started again. It leaves publishes unanswered, but it answers a purge at once, with the error. A purge of a subject that
no message has removes nothing. So this needs no monitoring address."""

from streams.errors import Refused, StreamError
from streams.link.connection import Connection
from streams.subjects import api_prefix

ANSWER_S = 2.0
NO_SUBJECT = "penstock-none"
_PURGE_FAILED = 10051


async def write_error(connection: Connection, stream: str) -> str:
    """Return why a stream takes nothing, without the server's paths. Empty: it takes messages, or it does not answer,
    or this login may not ask it. Raises nothing of ours."""
    request = f"STREAM.PURGE.{stream}"
    try:
        with connection.risking(api_prefix() + request):
            await connection.api(request, {"filter": NO_SUBJECT}, timeout_s=ANSWER_S)
    except Refused as refused:
        return refused.description.rpartition(": ")[2] if refused.err_code == _PURGE_FAILED else ""
    except StreamError:
        return ""
    return ""
