"""A client of its own process that holds one job and settles it when it is told to: `python -m … URL TTR_S`.

It prints the job's id and receipt, waits for a line, then asks for each way to settle it in turn, the finish at last,
and prints the answers' codes.
"""

import sys
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from penstock.errors import Stale
from penstock.sdk.client import connect
from penstock.sdk.held_jobs import HeldJob
from tests.support.jobs_chaos import HELD


async def code_of(settle: Callable[[], Awaitable[None]]) -> str:
    try:
        await settle()
    except Stale:
        return "stale"
    return "ok"


async def hold(url: str, ttr_s: float) -> None:
    async with connect(url) as client:
        jobs: list[HeldJob] = []
        while not jobs:
            jobs = await client.jobs.reserve_many(HELD, wait=5, ttr=ttr_s)
        job = jobs[0]
        print(job.id, job.receipt, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "touch": job.touch,
            "release": job.release,
            "bury": job.bury,
            "finish": job.finish,
        }
        print(msgspec.json.encode({name: await code_of(way) for name, way in ways.items()}).decode(), flush=True)


if __name__ == "__main__":
    anyio.run(hold, sys.argv[1], float(sys.argv[2]))
