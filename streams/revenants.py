"""What a killed server has brought back: messages of a work queue that were acknowledged long ago.

nats-server 2.15.1 keeps what was acknowledged and what was removed in different files. After a crash it may know the
one and have forgotten the other. The message then lies below its consumer's ack floor: it is handed out to nobody, and
takes its subject for ever, so that an id cannot be added again, and a slice not offered. What is below the floor was
settled, so it can go.
"""

from streams.backlog import consumer_states
from streams.connection import Connection
from streams.log import delete_entry, next_entry

__all__ = ["remove_revenants"]


async def remove_revenants(connection: Connection, stream: str) -> int:
    """Remove what lies below the ack floor of its consumer in a work queue; return how much it was.

    Safe beside all that goes on, and for several at once. Costs a question for the list of consumers, and one a filter.
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
