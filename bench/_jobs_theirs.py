"""What plain nats-py makes of the same: messages added, and taken through the states that a job has, 256 at a time.

Less than a job: no id that holds in every state, no priority, no attempts, no receipt that outlives a touch.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from nats.aio.client import Client
from nats.js import JetStreamContext

from streams.link.connection import Connection

AT_A_TIME = 256
PAYLOAD = b"x" * 200
TTR = timedelta(seconds=60)


class Theirs:
    """The streams THEIRS, of messages that are added, and TAKEN, of which each is reserved and finished."""

    def __init__(self, client: Client) -> None:
        self._context: JetStreamContext = client.jetstream()

    async def prepare(self, connection: Connection) -> None:
        """Make the streams, as JOBS is made, and the consumer."""
        await connection.api("STREAM.CREATE.THEIRS", {"name": "THEIRS", "subjects": ["theirs.>"]})
        taken = {
            "name": "TAKEN",
            "subjects": ["taken.>"],
            "retention": "workqueue",
            "max_msgs_per_subject": 1,
            "allow_direct": True,
            "allow_msg_ttl": True,
            "allow_msg_schedules": True,
        }
        await connection.api("STREAM.CREATE.TAKEN", taken)
        self._ready = await self._context.pull_subscribe("taken.ready.>", "ready", "TAKEN")

    async def add(self, turn: int, count: int) -> int:
        """Add messages, each under an id of its own."""
        await self._publish_all([(f"theirs.{n}", {"Nats-Msg-Id": f"{turn}-{n}"}) for n in range(count)])
        return count

    async def fill(self, count: int) -> None:
        """Have messages ready."""
        await self._publish_all([(f"taken.ready.{n}", {}) for n in range(count)])

    async def take(self, count: int) -> int:
        """Reserve and finish what is ready: the reservation must not exist, and the end names it by its sequence."""
        taken = 0
        while taken < count:
            messages = await self._ready.fetch(AT_A_TIME, timeout=5)
            until = (datetime.now(UTC) + TTR).strftime("%Y-%m-%dT%H:%M:%SZ")
            names = [message.subject.rpartition(".")[2] for message in messages]
            held = await self._publish_all([(f"taken.reserved.{name}", _reserved(name, until)) for name in names])
            await asyncio.gather(*(message.ack() for message in messages))
            ends = [(f"taken.done.{name}", _done(name, seq)) for name, seq in zip(names, held, strict=True)]
            taken += len(await self._publish_all(ends))
        return taken

    async def _publish_all(self, messages: list[tuple[str, dict[str, str]]]) -> list[int]:
        """Return the sequences."""
        found: list[int] = []
        for start in range(0, len(messages), AT_A_TIME):
            some = messages[start : start + AT_A_TIME]
            publishes = (self._context.publish(subject, PAYLOAD, headers=headers) for subject, headers in some)
            found += [stored.seq for stored in await asyncio.gather(*publishes)]
        return found


def _reserved(name: str, until: str) -> dict[str, str]:
    return {
        "Nats-Schedule": f"@at {until}",
        "Nats-Schedule-Target": f"taken.ready.{name}",
        "Nats-Expected-Last-Subject-Sequence": "0",
    }


def _done(name: str, seq: int) -> dict[str, str]:
    reserved = f"taken.reserved.{name}"
    return {
        "Nats-Scheduler": reserved,
        "Nats-Schedule-Next": "purge",
        "Nats-Expected-Last-Subject-Sequence": str(seq),
        "Nats-Expected-Last-Subject-Sequence-Subject": reserved,
        "Nats-TTL": "3600s",
    }
