"""The application of chaos nodes with many topics: one handler for all of them, which writes down each job."""

import os

import penstock
from tests.support.jobs_handlers import note


async def noted(job: penstock.Job) -> None:
    note(job.json()["notes"], "ended", job)


for number in range(int(os.environ["MANY_TOPICS"])):
    penstock.job(f"many{number}")(noted)
