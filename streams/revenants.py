"""Messages of a work queue that its consumer has passed over, and that are there nevertheless.

nats-server 2.15.1 keeps what was acknowledged and what was stored or removed in different files. After a crash it may
know the one and have forgotten the other. The message then lies behind its consumer: it is handed out to nobody, and
takes its subject for ever, so that an id cannot be added again, and a slice not offered.

What to do with it depends on what crashed. A killed process loses nothing that it acknowledged: the message was
settled, and can go (`remove_revenants`). A machine that lost its power loses the end of its files, and with it what
followed from the message: it is all that is left, and has to be handed out again (`hand_out_again`).
"""

from collections.abc import Sequence

import anyio

from streams.backlog import ConsumerState, consumer_states
from streams.connection import Connection
from streams.log import count_of, delete_entry, next_entry

__all__ = ["hand_out_again", "remove_revenants"]

LOOKS, STILL_S = 3, 0.3
"""What each of so many looks finds is no passing moment of messages that come and go."""


async def remove_revenants(connection: Connection, stream: str) -> int:
    """Remove what lies below the ack floor of its consumer in a work queue; return how much it was.

    Only where the server has lost nothing of what it acknowledged. Safe beside all that goes on, and for several at
    once. Costs a question for the list of consumers, and one a filter.
    Raises NoStream, Refused, Disconnected, OutcomeUnknown: do it again."""
    removed = 0
    for consumer in await consumer_states(connection, stream):
        for subject in consumer.subjects:
            removed += await _remove(connection, stream, subject, consumer.ack_floor)
    return removed


async def _remove(connection: Connection, stream: str, subject: str, upto_seq: int) -> int:
    removed = 0
    entry = await next_entry(connection, stream, subject)
    while entry is not None and entry.seq <= upto_seq:
        removed += await delete_entry(connection, stream, entry.seq)
        entry = await next_entry(connection, stream, subject, start_seq=entry.seq + 1)
    return removed


async def hand_out_again(connection: Connection, stream: str) -> int:
    """Let each consumer that has passed over messages which are there begin anew; return how many did.

    It hands out all that its part of the stream holds, what somebody has in hand too. Raises as above: do it again."""
    suspects = await _suspects(connection, stream)
    for _ in range(LOOKS - 1):
        if suspects:
            await anyio.sleep(STILL_S)
            suspects &= await _suspects(connection, stream)
    for name in sorted(suspects):
        await connection.api(f"CONSUMER.RESET.{stream}.{name}", {"seq": 1})
    return len(suspects)


async def _suspects(connection: Connection, stream: str) -> set[str]:
    """Return the consumers before which fewer messages lie, or are in hand, than their part of the stream holds.

    They are counted before and after, since others add and settle meanwhile."""
    before = await _accounted(connection, stream)
    there = {name: await _count(connection, stream, state.subjects) for name, (state, _) in before.items()}
    after = await _accounted(connection, stream)
    return {name for name in before.keys() & after.keys() if there[name] > max(before[name][1], after[name][1])}


async def _accounted(connection: Connection, stream: str) -> dict[str, tuple[ConsumerState, int]]:
    states = await consumer_states(connection, stream)
    return {state.name: (state, state.pending + state.in_hand) for state in states}


async def _count(connection: Connection, stream: str, subjects: Sequence[str]) -> int:
    return sum([await count_of(connection, stream, subject) for subject in subjects])
