"""What is in hand is extended well before anybody else would get it."""

import pytest

from actors.batch.executor import executor
from actors.fetch import sink
from actors.fetch.fetcher import lanes
from actors.jobs.worker import hold
from actors.runtime import submissions
from streams.subjects import Namespace
from streams.topology.specs import (
    ConsumerSpec,
    batch_consumers,
    fetch_consumer,
    job_consumer,
    sink_consumer,
    submit_batch_consumer,
    submit_consumer,
)

OURS = Namespace("penstock")
ELECTION_S = 9.0
"""The longest that servers wait for a leader before they elect another one (nats-server 2.15)."""


@pytest.mark.parametrize(
    ("every_s", "spec"),
    [
        (sink.KEEP_ALIVE_S, sink_consumer(OURS, "main")),
        (lanes.KEEP_ALIVE_S, fetch_consumer(OURS, "mall", "tail")),
        (hold.EVERY_S, job_consumer(OURS, "mail")),
        (ELECTION_S / 2, job_consumer(OURS, "mail", is_clustered=True)),
        (executor.KEEP_ALIVE_S, batch_consumers(OURS, "task")[0]),
        (executor.KEEP_ALIVE_S, batch_consumers(OURS, "task")[1]),
        *((ELECTION_S / 2, spec) for spec in batch_consumers(OURS, "task", is_clustered=True)),
        (submissions.KEEP_ALIVE_S, submit_consumer(OURS)),
        (submissions.KEEP_ALIVE_S, submit_batch_consumer(OURS)),
    ],
    ids=lambda value: value.name if isinstance(value, ConsumerSpec) else "",
)
def test_a_word_may_get_lost_before_the_ack_wait_is_over(every_s: float, spec: ConsumerSpec) -> None:
    assert 2 * every_s < spec.ack_wait_s
