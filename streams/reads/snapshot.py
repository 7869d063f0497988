"""Reads the last message of many subjects with one request (the server's batched direct get, ADR-31 of NATS).

The server answers with one message for each subject, then a status. It refuses above 1,024 subjects, and cuts an answer
that is too large for its buffers. A second page would miss changes made meanwhile, so the result of both is None.
"""

from collections.abc import Sequence

from streams.link.connection import Connection
from streams.link.frames import Message
from streams.reads.direct_get import NONE, TOO_MANY, get_batch
from streams.reads.log import Behind

MOST = 1024


async def last_of_each(
    connection: Connection,
    stream: str,
    subjects: Sequence[str],
    *,
    timeout_s: float,
    least_seq: int = 0,
    domain: str = "",
) -> list[Message] | None:
    """Return the last message of each subject that matches one of these, by sequence. None: they are too many for one
    answer.

    Raises NoStream, Disconnected when no whole answer came in time, and Behind if the replica that answers is not known
    to have what is stored up to `least_seq`.
    """
    request = {"multi_last": list(subjects), "batch": MOST}
    found, end = await get_batch(connection, stream, request, timeout_s=timeout_s, domain=domain)
    if end.status != TOO_MANY and int(end.headers.get("Nats-UpTo-Sequence", 0)) < least_seq:
        raise Behind(f"{stream}: the replica that answered may not have what is stored up to {least_seq}")
    if end.status == NONE:
        return []
    is_whole = end.status != TOO_MANY and end.headers.get("Nats-Num-Pending", "0") == "0"
    return found if is_whole else None
