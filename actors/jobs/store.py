"""The operations on jobs in the broker, without any policy: the caller decides which one to apply.

A job is one message of JOBS. Each change is one conditional publish on the job's identity (streams/jobs/moves.py), so
an id exists once, whatever is repeated or lost. The operations stand in adds.py, removals.py, reads.py, reserves.py
(handing jobs out), reservations.py (jobs that a client holds by receipt) and deliveries.py (jobs that a node received).
This class gives them one name.
"""

from actors.jobs.adds import JobAdds
from actors.jobs.deliveries import JobDeliveries
from actors.jobs.reads import JobReads
from actors.jobs.removals import JobRemovals
from actors.jobs.reservations import JobReservations
from actors.jobs.reserves import JobReserves
from actors.jobs.stream import JobStream
from streams.clock import Clock
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.subjects import Namespace


class JobStore:
    """Jobs in the broker. Many callers may use it at once. `clock` is the server's clock."""

    def __init__(self, connection: Connection, publisher: Publisher, namespace: Namespace, clock: Clock) -> None:
        self._jobs = jobs = JobStream(connection, publisher, namespace, clock)
        self._reads = reads = JobReads(jobs)
        self.check = jobs.check
        self.store_mark = jobs.store_mark
        adds, removals, deliveries = JobAdds(jobs, reads), JobRemovals(jobs, reads), JobDeliveries(jobs)
        reserves, held = JobReserves(jobs, deliveries), JobReservations(jobs, reads, deliveries)

        self.add_many = adds.add_many
        self.start_add = adds.start
        self.added = adds.added
        self.end_add = adds.ended
        self.add_absent = adds.add_absent
        self.kept_out = adds.kept_out
        self.delete = removals.delete
        self.kick_delayed = removals.kick_delayed
        self.make_overdue_ready = removals.make_overdue_ready

        self.find = reads.find
        self.find_key = reads.find_key
        self.find_many = reads.find_many
        self.find_everywhere = reads.find_everywhere
        self.count = reads.count
        self.count_many = reads.count_many
        self.ready_since_ms = reads.ready_since_ms
        self.list_jobs = reads.list_jobs

        self.reserve_many = reserves.reserve_many
        self.by_delivery = reserves.by_delivery
        self.write_down = reserves.write_down
        self.finish_delivered = held.finish_delivered
        self.finish_many = held.finish_many
        self.finish_named = held.finish_named
        self.touch_many = held.touch_many
        self.release_many = held.release_many
        self.bury_many = held.bury_many

        self.retry_deliveries = deliveries.retry_deliveries
        self.give_back = deliveries.give_back
        self.put_off = deliveries.put_off
        self.end_deliveries = deliveries.end_deliveries
        self.whose = deliveries.whose
        self.may_be_over = deliveries.may_be_over
        self.finish_deliveries = deliveries.finish_deliveries
        self.bury_deliveries = deliveries.bury_deliveries
        self.bury_malformed = deliveries.bury_malformed

    @property
    def clock(self) -> Clock:
        return self._jobs.clock
