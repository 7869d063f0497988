"""How many messages wait for the consumers of a stream, and whether the consumers get any."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from streams.link.connection import Connection


class ConsumerState(NamedTuple):
    """One consumer as the server counts. `pending`: not delivered yet. `in_hand`: delivered and not acknowledged.
    `pulls`: requests that wait for messages now. `delivered`: deliveries so far, with repeats. `ack_floor`: every
    message of its `subjects` up to this sequence is acknowledged. `upto_seq`: no message behind it was delivered."""

    name: str
    pending: int
    in_hand: int
    pulls: int
    delivered: int
    ack_floor: int
    subjects: tuple[str, ...]
    upto_seq: int = 0


async def consumer_states(connection: Connection, stream: str) -> list[ConsumerState]:
    """Return the state of each consumer of the stream. Raises NoStream, Disconnected, OutcomeUnknown."""
    return [
        ConsumerState(
            name=one["name"],
            pending=one["num_pending"],
            in_hand=one["num_ack_pending"],
            pulls=one.get("num_waiting", 0),
            delivered=one["delivered"]["consumer_seq"],
            ack_floor=one["ack_floor"]["stream_seq"],
            subjects=_subjects(one["config"]),
            upto_seq=one["delivered"]["stream_seq"],
        )
        async for one in _consumers(connection, stream)
    ]


def _subjects(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the filters of a consumer. A single filter has a field of its own."""
    return tuple(config.get("filter_subjects") or (config.get("filter_subject") or ">",))


async def consumers_pending(connection: Connection, stream: str) -> dict[str, int]:
    """Return, by consumer, the messages not yet delivered and those delivered and not yet acknowledged.
    Raises NoStream, Disconnected, OutcomeUnknown."""
    states = await consumer_states(connection, stream)
    return {state.name: state.pending + state.in_hand for state in states}


async def _consumers(connection: Connection, stream: str) -> AsyncIterator[dict[str, Any]]:
    seen, total = 0, 1
    while seen < total:
        answer = await connection.api(f"CONSUMER.LIST.{stream}", {"offset": seen})
        page = answer.get("consumers") or []
        for one in page:
            yield one
        seen += len(page)
        total = answer.get("total", 0) if page else 0
