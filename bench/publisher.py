"""How fast one process stores 200-byte messages, each acknowledged and with an id: ours, and nats-py's."""

import asyncio
import statistics

import nats
from nats.js import JetStreamContext

from bench.harness import Result, fresh_server, in_turns, reached
from streams.link.connection import connect
from streams.publish.publisher import Outgoing, Publisher

NAME = "publisher"
ROUNDS = 3
PAGES, CALLS, THEIRS = 50_000, 25_000, 12_500
"""Messages a round: by pages, by single calls, and by nats-py."""
PAGE, AT_A_TIME = 5_000, 256
PAYLOAD = b"x" * 200


async def run() -> Result:
    """Publish by `publish_many`, then by 256 tasks that `publish`, each in turns with nats-py's gathers of 256."""
    async with fresh_server() as server, connect(server.url, name="bench") as connection:
        await connection.api("STREAM.CREATE.BENCH", {"name": "BENCH", "subjects": ["bench.>"], "storage": "file"})
        client = await nats.connect(server.url)
        try:
            async with Publisher(connection) as publisher:
                context = client.jetstream()
                pages = await in_turns(
                    lambda number: _pages(publisher, number),
                    lambda number: _theirs(context, f"a{number}"),
                    rounds=ROUNDS,
                )
                calls = await in_turns(
                    lambda number: _calls(publisher, number),
                    lambda number: _theirs(context, f"b{number}"),
                    rounds=ROUNDS,
                )
        finally:
            await client.close()
        stored = (await connection.api("STREAM.INFO.BENCH"))["state"]["messages"]
    return reached(
        "messages of 200 B stored and acknowledged, one process",
        pages,
        reach=80_000,
        or_ratio=1.8,
        is_sound=stored == (ROUNDS + 1) * (PAGES + CALLS + 2 * THEIRS),
        by_single_calls=round(statistics.median(calls.ours)),
        by_single_calls_ratio=round(calls.ratio, 2),
    )


async def _pages(publisher: Publisher, number: int) -> int:
    for start in range(0, PAGES, PAGE):
        page = [Outgoing(f"bench.a.{n}", PAYLOAD, f"pages-{number}-{n}") for n in range(start, start + PAGE)]
        await publisher.publish_many(page)
    return PAGES


async def _calls(publisher: Publisher, number: int) -> int:
    async def worker(first: int) -> None:
        for n in range(first, CALLS, AT_A_TIME):
            await publisher.publish(f"bench.a.{n}", PAYLOAD, message_id=f"calls-{number}-{n}")

    await asyncio.gather(*(worker(first) for first in range(AT_A_TIME)))
    return CALLS


async def _theirs(context: JetStreamContext, turn: str) -> int:
    for start in range(0, THEIRS, AT_A_TIME):
        numbers = range(start, min(start + AT_A_TIME, THEIRS))
        headers = [{"Nats-Msg-Id": f"{turn}-{n}"} for n in numbers]
        await asyncio.gather(
            *(context.publish(f"bench.a.{n}", PAYLOAD, headers=one) for n, one in zip(numbers, headers, strict=True))
        )
    return THEIRS
