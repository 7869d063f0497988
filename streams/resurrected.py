"""Resurrected messages: messages of a work queue that are stored although they lie below their consumer's ack floor.

nats-server 2.15.1 keeps acknowledgements in other files than messages and removals. After a crash it may have one and
not the other. The message then lies below the ack floor: the server delivers it to no client, and it keeps its subject
for ever. So its id cannot be added again, or its slice cannot be offered.

What to do depends on the crash. A killed process loses nothing that it acknowledged: the message was settled, and
`remove_resurrected` deletes it. A machine that lost its power loses the end of its files, and so all that followed from
the message. Then the message is all that is left, and `hand_out_again` has it delivered again.
"""

from collections.abc import Sequence

import anyio

from streams.link.connection import Connection
from streams.pull.backlog import ConsumerState, consumer_states
from streams.reads.log import count_of, delete_entry, next_entry

LOOKS, STILL_S = 3, 0.3
"""A consumer is suspect if so many looks in a row find it. One look may meet messages that come and go."""
GOES_S, GOES_ALONE_S, GOES_LOOK_S = 5.0, 1.0, 0.2
"""How long a cluster, and a server alone, may take to remove what was delivered before the looks and is acknowledged,
and how often that is looked at."""


async def remove_resurrected(connection: Connection, stream: str) -> int:
    """Delete the messages of a work queue below the ack floor of their consumer, and return their number.

    Call it only if the server has lost nothing that it acknowledged. It is safe beside other clients, and when several
    nodes call it at once. It costs one request for the list of consumers, and one for each filter.
    Raises NoStream, Refused, Disconnected, OutcomeUnknown: call it again."""
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
    """Reset each consumer that has stored messages below its ack floor, and return the number of consumers.

    A reset consumer delivers all messages of its filter again, also those that a client has in hand. In a cluster
    another server removes what is acknowledged, a moment later. With some hundred messages a second each look finds
    more stored than there should be, and so it may on a busy machine. So only a consumer is reset of which a message
    stays that was delivered before, and that no client has in hand.
    Raises the same errors as `remove_resurrected`: call it again."""
    first = {state.name: state for state in await consumer_states(connection, stream)}
    suspects = await _suspects(connection, stream)
    for _ in range(LOOKS - 1):
        if suspects:
            await anyio.sleep(STILL_S)
            suspects &= await _suspects(connection, stream)
    if suspects:
        suspects = await _staying(connection, stream, [first[name] for name in suspects & first.keys()])
    for name in sorted(suspects):
        await connection.api(f"CONSUMER.RESET.{stream}.{name}", {"seq": 1})
    return len(suspects)


async def _staying(connection: Connection, stream: str, states: Sequence[ConsumerState]) -> set[str]:
    """Return the consumers of which a message that was delivered before stays, and that no client has in hand."""
    staying: dict[str, ConsumerState] = {}
    with anyio.move_on_after(GOES_S if connection.is_clustered else GOES_ALONE_S):
        while True:
            for state in states:
                if await _stored_before(connection, stream, state, 1):
                    staying[state.name] = state
                else:
                    staying.pop(state.name, None)
            states = list(staying.values())
            if not states:
                return set()
            await anyio.sleep(GOES_LOOK_S)
    now = {state.name: state for state in await consumer_states(connection, stream)}
    return {
        name
        for name, state in staying.items()
        if name in now and await _is_passed_over(connection, stream, state, now[name])
    }


async def _is_passed_over(connection: Connection, stream: str, state: ConsumerState, now: ConsumerState) -> bool:
    """Return whether one of those delivered before lies below the ack floor, or more are stored than are in hand."""
    seqs = await _stored_before(connection, stream, state, now.in_hand + 1)
    return bool(seqs) and (min(seqs) <= now.ack_floor or len(seqs) > now.in_hand)


async def _stored_before(connection: Connection, stream: str, state: ConsumerState, most: int) -> list[int]:
    """Return the sequences of stored messages that had been delivered by the time of `state`: the first `most`."""
    seqs: list[int] = []
    for subject in state.subjects:
        entry = await next_entry(connection, stream, subject)
        while entry is not None and entry.seq <= state.upto_seq and len(seqs) < most:
            seqs.append(entry.seq)
            entry = await next_entry(connection, stream, subject, start_seq=entry.seq + 1)
    return seqs


async def _suspects(connection: Connection, stream: str) -> set[str]:
    """Return the consumers whose pending and unacknowledged messages are fewer than the stored messages of their
    filter.

    Both are counted before and after, since other clients add and settle meanwhile."""
    before = await _accounted(connection, stream)
    there = {name: await _count(connection, stream, state.subjects) for name, (state, _) in before.items()}
    after = await _accounted(connection, stream)
    return {name for name in before.keys() & after.keys() if there[name] > max(before[name][1], after[name][1])}


async def _accounted(connection: Connection, stream: str) -> dict[str, tuple[ConsumerState, int]]:
    states = await consumer_states(connection, stream)
    return {state.name: (state, state.pending + state.in_hand) for state in states}


async def _count(connection: Connection, stream: str, subjects: Sequence[str]) -> int:
    return sum([await count_of(connection, stream, subject) for subject in subjects])
