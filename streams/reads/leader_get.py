"""Reads one message from the stream's leader, which has the current state. A replica may be a moment behind.

Any replica answers a direct get. On three servers a message that was just stored (a batch, a file, a bucket's key) was
"not there" in a few of a hundred reads. The leader's answer costs about twice the time of a direct get (0.6 and 0.3 ms
on three servers). During an election there is no answer, so the request is repeated until there is one.

A leader that stood still does not know at once that another one has followed. For some milliseconds it answers what its
clients have asked meanwhile, from before (6 of 12 reads, after stops of five to nine seconds). So on three servers an
answer that comes late is not taken. The request is sent once more.
"""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

import anyio

from streams.clock import monotonic_s
from streams.errors import NO_LEADER, OutcomeUnknown, Refused
from streams.link.connection import Connection
from streams.link.frames import parse_headers

TRY_S = 1.0
"""Seconds of one try. A server that has just died does not answer, and the next one does."""
ELECTED_S = 10.0
"""By then three servers have a leader, if most of them are there."""
PAUSE_S = 0.1
HEARD_S = 3.0
"""A leader hears the others each second. Without them it goes on as leader for up to twenty."""
LATE_S = 0.25
"""An answer that took so long is late. A leader that another one has followed stood still for four seconds at least."""
_GONE = (10037, 10043, 10057)
"""Errors: no message found, sequence not found, and what a delete in an emptied stream ends with."""


class StoredMessage(NamedTuple):
    """One stored message. `time` is the server's text."""

    seq: int
    subject: str
    time: str
    headers: Mapping[str, str]
    payload: bytes


async def get_of_leader(
    connection: Connection, stream: str, asked: Mapping[str, object], *, timeout_s: float, domain: str = ""
) -> StoredMessage | None:
    """Return the requested message (`seq`, `last_by_subj`, `next_by_subj`), None if there is none. `domain`: where the
    stream is, if not in the server's own.

    Raises Disconnected, OutcomeUnknown (no answer in time), NoStream, Refused.
    """
    answer = await _in_time(connection, f"STREAM.MSG.GET.{stream}", asked, timeout_s, domain)
    return None if answer is None else _stored(answer)


async def last_of_leader(
    connection: Connection, stream: str, pattern: str, *, timeout_s: float, domain: str
) -> int | None:
    """Return the sequence of the stream's last message, None if no message is on a subject that matches. Raises as
    `get_of_leader`."""
    asked = {"subjects_filter": pattern} if pattern else {}
    answer = await _in_time(connection, f"STREAM.INFO.{stream}", asked, timeout_s, domain)
    state = answer["state"] if answer is not None else {}
    return int(state["last_seq"]) if state.get("subjects" if pattern else "messages") else None


async def info_of_leader(connection: Connection, stream: str, *, timeout_s: float) -> dict[str, Any]:
    """Return what the leader tells of a stream. Raises as `get_of_leader`."""
    answer = await _in_time(connection, f"STREAM.INFO.{stream}", {}, timeout_s, "")
    if answer is None:
        raise OutcomeUnknown("there is no answer about the stream", subject=stream)
    return answer


async def led_info(connection: Connection, stream: str, asked: Mapping[str, object] = {}) -> dict[str, Any]:
    """Return what is told of a stream that has a leader, which may be cut off from the others. Raises as
    `get_of_leader`."""
    answer, _ = await ask_until_led(connection, f"STREAM.INFO.{stream}", asked)
    if answer is None:
        raise OutcomeUnknown("there is no answer about the stream", subject=stream)
    return answer


def is_of_most(info: Mapping[str, Any]) -> bool:
    """Return whether the leader that tells of a stream has heard so many others that they are most."""
    others = info["cluster"].get("replicas") or () if info["config"]["num_replicas"] > 1 else ()
    heard = sum(other["active"] < HEARD_S * 1e9 for other in others)
    return 2 * int(heard) >= len(others)


async def _in_time(
    connection: Connection, request: str, asked: Mapping[str, object], timeout_s: float, domain: str
) -> dict[str, Any] | None:
    begun_s = monotonic_s()
    answer, _ = await ask_until_led(connection, request, asked, timeout_s, domain)
    took_s = monotonic_s() - begun_s
    if not (connection.is_clustered or domain) or took_s < LATE_S:
        return answer
    await anyio.sleep(PAUSE_S)
    return (await ask_until_led(connection, request, asked, max(TRY_S, timeout_s - took_s), domain))[0]


async def ask_until_led(
    connection: Connection,
    request: str,
    asked: Mapping[str, object],
    timeout_s: float = ELECTED_S,
    domain: str = "",
    try_s: float = 0.0,
) -> tuple[dict[str, Any] | None, bool]:
    """Repeat a request to a stream's leader until there is an answer. Return it, None if there is no such message, and
    whether an earlier try may have been carried out. `try_s`: for one try, else `TRY_S`. Raises as `get_of_leader`."""
    deadline_s, is_repeated = monotonic_s() + timeout_s, False
    while True:
        left_s = deadline_s - monotonic_s()
        try:
            answer = await connection.api(request, asked, timeout_s=min(try_s or TRY_S, left_s), domain=domain)
            if _is_led(answer):
                return answer, is_repeated
            if left_s <= PAUSE_S:
                raise OutcomeUnknown("it has no leader", subject=request)
            await anyio.sleep(PAUSE_S)
        except OutcomeUnknown:
            is_repeated = True
            if monotonic_s() >= deadline_s:
                raise
        except Refused as refused:
            if refused.err_code in _GONE:
                return None, is_repeated
            if refused.err_code != NO_LEADER:
                raise
            is_repeated = True  # so says a server that knows of no leader, and the leader may have heard it too
            if left_s <= PAUSE_S:
                raise OutcomeUnknown("it has no leader", subject=request) from refused
            await anyio.sleep(PAUSE_S)


def _is_led(answer: Mapping[str, Any]) -> bool:
    """Return False for what a server tells of a stream that has no leader. A message comes from a leader alone."""
    return bool(answer.get("cluster", {"leader": "itself"}).get("leader"))


def _stored(answer: Mapping[str, Mapping[str, object]]) -> StoredMessage:
    message = answer["message"]
    block = base64.b64decode(str(message.get("hdrs") or ""))
    payload = base64.b64decode(str(message.get("data") or ""))
    return StoredMessage(
        int(str(message["seq"])), str(message["subject"]), str(message["time"]), parse_headers(block), payload
    )
