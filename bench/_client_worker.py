"""A program that takes jobs one by one, through `penstock.connect` alone.

`python -m bench._client_worker URL TOPIC CALLERS [direct]`: from the first line of its input on each caller reserves a
job and finishes it, until none is ready. It prints how many it finished. `direct`: without a desk.
"""

import asyncio
import sys

import uvloop

import penstock


async def work(url: str, topic: str, callers: int, *, direct: bool) -> None:
    async with penstock.connect(url, direct=direct) as client:
        await client.jobs.count(topic)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(sum(await asyncio.gather(*(_take(client, topic) for _ in range(callers)))), flush=True)


async def _take(client: penstock.Client, topic: str) -> int:
    done = 0
    while held := await client.jobs.reserve_many(topic):
        for job in held:
            await job.finish()
            done += 1
    return done


if __name__ == "__main__":
    uvloop.run(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), direct="direct" in sys.argv[4:]))
