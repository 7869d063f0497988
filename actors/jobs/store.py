"""All that can be done to jobs on the broker, without any policy: what to do is decided by whoever calls.

A job is one message of JOBS, and every change is one conditional publish on its identity (streams/moves.py), so an id
is there once, whatever happens on the way. What can be done stands in job_adds.py, job_removals.py, job_reads.py,
job_reservations.py (by receipt) and job_deliveries.py (in the hands of a node), and is hung up here under one name.
"""

from actors.jobs.adds import Clash, JobAdds, Stored
from actors.jobs.deliveries import FailedAttempt, JobDeliveries
from actors.jobs.reads import BadCursor, Found, JobPage, JobReads, TopicCounts
from actors.jobs.removals import JobRemovals
from actors.jobs.reservations import Handed, JobReservation, JobReservations, JobSettled, JobStale
from actors.jobs.stream import PARTITIONS, JobStream, partition_of
from streams.clock import Clock
from streams.connection import Connection
from streams.publisher import Publisher
from streams.subjects import Namespace

__all__ = [
    "PARTITIONS",
    "BadCursor",
    "Clash",
    "FailedAttempt",
    "Found",
    "Handed",
    "JobPage",
    "JobReservation",
    "JobSettled",
    "JobStale",
    "JobStore",
    "Stored",
    "TopicCounts",
    "partition_of",
]


class JobStore:
    """Jobs on the broker. Safe for many callers at once; `clock` is the server's."""

    def __init__(self, connection: Connection, publisher: Publisher, namespace: Namespace, clock: Clock) -> None:
        self._jobs = jobs = JobStream(connection, publisher, namespace, clock)
        self._reads = reads = JobReads(jobs)
        adds, removals, deliveries = JobAdds(jobs, reads), JobRemovals(jobs, reads), JobDeliveries(jobs)
        held = JobReservations(jobs, reads, deliveries)

        self.add_many = adds.add_many
        self.delete = removals.delete
        self.kick_delayed = removals.kick_delayed
        self.make_overdue_ready = removals.make_overdue_ready

        self.find = reads.find
        self.find_key = reads.find_key
        self.find_everywhere = reads.find_everywhere
        self.count = reads.count
        self.list_jobs = reads.list_jobs

        self.reserve_many = held.reserve_many
        self.finish_many = held.finish_many
        self.touch_many = held.touch_many
        self.release_many = held.release_many
        self.bury_many = held.bury_many

        self.retry_deliveries = deliveries.retry_deliveries
        self.give_back = deliveries.give_back
        self.stands = deliveries.stands
        self.may_be_over = deliveries.may_be_over
        self.finish_deliveries = deliveries.finish_deliveries
        self.bury_deliveries = deliveries.bury_deliveries
        self.bury_malformed = deliveries.bury_malformed

    @property
    def clock(self) -> Clock:
        return self._jobs.clock
