"""One machine that paces itself by a share of the rate from a configured number of machines: `FOLDER NAME RATE`."""

import asyncio
import os
import sys

from aiolimiter import AsyncLimiter

os.environ["FLOW_BENCH"] = sys.argv[1]

from bench._flow_app import note  # the folder is known only now


async def main(name: str, rate: float) -> None:
    limiter = AsyncLimiter(1, 1 / rate)
    print("ready", flush=True)
    while True:
        await limiter.acquire()
        note(name, 1)


asyncio.run(main(sys.argv[2], float(sys.argv[3])))
