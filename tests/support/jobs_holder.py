"""A client of its own process that holds one job and settles it when it is told to: `python -m … URL TTR_S`, and
perhaps NAMESPACE, and `direct` for a client that takes the job by itself, and holds it by its delivery alone.

It prints the job's id and receipt, waits for a line with a way to settle the job, then asks for each way in turn, that
one first, and prints the answers' codes.
"""

import sys
from collections.abc import Awaitable, Callable

import anyio
import msgspec

from actors.jobs import unwritten
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


async def hold(url: str, ttr_s: float, namespace: str, is_direct: bool) -> None:
    async with connect(url, namespace=namespace, direct=is_direct) as client:
        jobs: list[HeldJob] = []
        while not jobs:
            jobs = await client.jobs.reserve_many(HELD, wait=5, ttr=ttr_s)
        job = jobs[0]
        print(job.id, job.receipt, flush=True)
        first = (await anyio.to_thread.run_sync(sys.stdin.readline)).strip()
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "touch": job.touch,
            "release": job.release,
            "bury": job.bury,
            "finish": job.finish,
        }
        order = sorted(ways, key=lambda name: name != first)
        print(msgspec.json.encode({name: await code_of(ways[name]) for name in order}).decode(), flush=True)


if __name__ == "__main__":
    _, url, ttr_s, *more = sys.argv
    unwritten.LASTS_S = -1.0  # the server was not started anew
    anyio.run(hold, url, float(ttr_s), more[0] if more else "penstock", "direct" in more[1:])
