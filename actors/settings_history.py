"""Earlier values of a settings key, as far back as the bucket keeps them: where the last good one is found."""

import base64
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from streams.connection import Connection
from streams.errors import Refused
from streams.frames import parse_headers
from streams.subjects import kv_stream, kv_subject

__all__ = ["Earlier", "earlier_values"]

MOST = 64
"""Revisions of one key that a bucket can keep, by the server's own limit."""
_NO_MESSAGE = 10037


class Earlier(NamedTuple):
    """A value that the key had at a revision."""

    revision: int
    text: bytes


def earlier_values(connection: Connection, bucket: str) -> Callable[[str], Awaitable[list[Earlier]]]:
    """Return a function from a key of `bucket` to its kept values, newest first; deletions are left out.
    It raises StreamError. One request a value, so it is for the rare key that went wrong."""

    async def read(key: str) -> list[Earlier]:
        found: list[Earlier] = []
        after = 1
        for _ in range(MOST):
            message = await _next(connection, bucket, key, after)
            if message is None:
                break
            revision, headers, text = message
            after = revision + 1
            if "KV-Operation" not in headers:
                found.append(Earlier(revision, text))
        return found[::-1]

    return read


async def _next(connection: Connection, bucket: str, key: str, after: int) -> tuple[int, dict[str, str], bytes] | None:
    request = {"seq": after, "next_by_subj": kv_subject(bucket, key)}
    try:
        answer = await connection.api(f"STREAM.MSG.GET.{kv_stream(bucket)}", request)
    except Refused as refused:
        if refused.err_code == _NO_MESSAGE:
            return None
        raise
    message = answer["message"]
    headers = parse_headers(base64.b64decode(message.get("hdrs", "")))
    return message["seq"], dict(headers), base64.b64decode(message.get("data", ""))
