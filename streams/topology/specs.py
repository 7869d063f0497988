"""The wanted streams, buckets and consumers as plain data, each setting with its reason. Pure.

`topology.py` compares these with a server and applies them.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from streams.subjects import Namespace, check_token, kv_stream

Profile = Literal["safe", "fast"]
_S = 1_000_000_000  # nanoseconds, in which the server's settings count time
_DAY_S = 86_400
VERSION = 1
"""The version of the topology, in each stream's metadata. It is raised when an older node could not work with the new
one."""
VERSION_KEY = "penstock_topology"
PARTED = 2
"""The version of the streams of jobs where there are several: an older program would look for all jobs in the first."""
JOB_STREAMS_KEY = "penstock_job_streams"
MOST_JOB_STREAMS = 64


class StreamSpec(Struct, frozen=True, kw_only=True):
    """A stream as it has to be. A size of -1 and an age of 0 mean no limit. Ages are whole seconds."""

    name: str
    subjects: tuple[str, ...]
    about: str
    retention: Literal["limits", "workqueue"] = "limits"
    discard: Literal["old", "new"] = "new"
    discard_new_per_subject: bool = False
    max_msgs_per_subject: int = -1
    max_msgs: int = -1
    max_bytes: int = -1
    max_age_s: int = 0
    max_msg_bytes: int = -1
    replicas: int = 1
    duplicate_window_s: int = 120
    storage: Literal["file", "memory"] = "file"
    allow_atomic: bool = False
    allow_msg_ttl: bool = False
    allow_msg_schedules: bool = False
    allow_rollup_hdrs: bool = False
    deny_delete: bool = False
    max_consumers: int = 0
    """0: the server's own limit, which is 1,000."""
    holds_truth: bool = False
    """Its loss would lose orders or their state. It is never made again silently once the rest exists."""
    job_streams: int = 1
    """In how many streams the jobs are, in the metadata of each if there are several."""

    @property
    def version(self) -> int:
        """The version of the topology that has this stream."""
        return VERSION if self.job_streams == 1 else PARTED

    def metadata(self) -> dict[str, str]:
        """Return what the stream tells of itself to whoever connects."""
        parts = {} if self.job_streams == 1 else {JOB_STREAMS_KEY: str(self.job_streams)}
        return {VERSION_KEY: str(self.version)} | parts

    def config(self) -> dict[str, object]:
        """Return the stream's configuration as the server's API writes it (times in nanoseconds)."""
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "description": self.about,
            "retention": self.retention,
            "discard": self.discard,
            "discard_new_per_subject": self.discard_new_per_subject,
            "max_msgs_per_subject": self.max_msgs_per_subject,
            "max_msgs": self.max_msgs,
            "max_bytes": self.max_bytes,
            "max_age": self.max_age_s * _S,
            "max_msg_size": self.max_msg_bytes,
            "num_replicas": self.replicas,
            "duplicate_window": self.duplicate_window_s * _S,
            "storage": self.storage,
            "allow_direct": True,
            "allow_atomic": self.allow_atomic,
            "allow_msg_ttl": self.allow_msg_ttl,
            "allow_msg_schedules": self.allow_msg_schedules,
            "allow_rollup_hdrs": self.allow_rollup_hdrs or self.allow_msg_schedules,
            "deny_delete": self.deny_delete,
            "deny_purge": False,
            **({"max_consumers": self.max_consumers} if self.max_consumers else {}),
            "metadata": self.metadata(),
        }


class BucketSpec(Struct, frozen=True, kw_only=True):
    """A key-value bucket as it has to be, compatible with the `nats kv` command.

    `has_ttl`: each write may carry its own time to live. The bucket itself has none, and no limit markers: with them an
    expired key still answers, and cannot be created again until the marker is gone too.
    """

    name: str
    about: str
    history: int = 1
    has_ttl: bool = False
    max_value_bytes: int = -1
    replicas: int = 1
    holds_truth: bool = False

    def stream(self) -> StreamSpec:
        """Return the stream behind the bucket."""
        return StreamSpec(
            name=kv_stream(self.name),
            subjects=(f"$KV.{self.name}.>",),
            about=self.about,
            discard="new",  # a full bucket refuses, since otherwise it would forget keys
            max_msgs_per_subject=self.history,
            max_msg_bytes=self.max_value_bytes,
            replicas=self.replicas,
            allow_msg_ttl=self.has_ttl,
            allow_rollup_hdrs=True,
            deny_delete=True,
            holds_truth=self.holds_truth,
        )


SLICES_CONSUMERS, JOBS_CONSUMERS, WORK_CONSUMERS = 10_000, 30_000, 20_000
"""One for each platform's lane (a lane for each pin), one for each lane of 10,000 topics, two for each of 10,000 tasks.
Each costs the server some 26 kB. The other streams have one for each sink, or one in all."""
MAX_WAITING = 4_096
"""Standing pull requests of a consumer. A node has up to one for each free slot, and the server's default of 512 may be
too few for a large cluster."""


class ConsumerSpec(Struct, frozen=True, kw_only=True):
    """A durable pull consumer. The server never limits its deliveries: at the limit it would park a message
    silently."""

    stream: str
    name: str
    filter_subject: str
    about: str
    ack_wait_s: float
    max_ack_pending: int
    max_deliver: int = -1
    or_subject: str = ""
    """A second filter. The consumer delivers what matches either filter."""
    idle_s: float = 0.0
    """The server removes the consumer after so long without a pull. 0: never."""

    def config(self) -> dict[str, object]:
        """Return the consumer's configuration as the server's API writes it."""
        return {
            "durable_name": self.name,
            "name": self.name,
            "description": self.about,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "ack_wait": round(self.ack_wait_s * _S),
            "max_deliver": self.max_deliver,
            "max_ack_pending": self.max_ack_pending,
            "max_waiting": MAX_WAITING,
            **({"inactive_threshold": round(self.idle_s * _S)} if self.idle_s else {}),
            **self._filters(),
            "replay_policy": "instant",
        }

    def _filters(self) -> dict[str, object]:
        if self.or_subject:
            return {"filter_subjects": [self.filter_subject, self.or_subject]}
        return {"filter_subject": self.filter_subject}


class Topology(Struct, frozen=True, kw_only=True):
    """All that has to be on the server, in the order in which it is made.

    The order matters: if a late part exists, everything before it once existed too. So a missing stream that holds
    truth was deleted, and is made again only on request.
    """

    streams: tuple[StreamSpec, ...] = ()
    buckets: tuple[BucketSpec, ...] = ()
    consumers: tuple[ConsumerSpec, ...] = ()
    profile: Profile = "safe"

    def all_streams(self) -> tuple[StreamSpec, ...]:
        """Return the buckets' streams and the streams, in the order in which they are made."""
        return (*(bucket.stream() for bucket in self.buckets), *self.streams)


class Sizes(Struct, frozen=True, kw_only=True):
    """How much is kept, and for how long. An installation may change these values, and no other part of a spec."""

    orders_days: int = 7
    """Longer than any sink may be down. Older orders are dropped, whether or not a sink had them."""
    orders_bytes: int = -1
    """No limit of its own, since the server reserves it at once. In production, set it below the server's
    `max_file_store`: a full ORDERS then refuses, and the ledgers still have room."""
    dead_days: int = 90
    """Time for a person to act. Until then the dead letters are kept: a full DEAD refuses new ones and forgets none."""
    dead_messages: int = 1_000_000
    """If a cause buries more messages than this, a person must stop it."""
    events_days: int = 7
    """People read events within days. Metrics keep the rest."""
    events_messages: int = 10_000_000
    """A week of a thousand sources with slices of a minute, some 3 GB of disk. The oldest events go first, since
    nothing is decided from an event."""


def wanted(
    namespace: Namespace, *, profile: Profile = "safe", replicas: int = 1, sizes: Sizes | None = None
) -> Topology:
    """Return the topology of this version. `replicas`: 1, 3 or 5. The profile `safe` on three or more servers needs
    3."""
    if replicas not in (1, 3, 5):
        raise ValueError(f"replicas {replicas!r}: use 1, 3 or 5 (an even number survives no more losses than one less)")
    return Topology(
        streams=_streams(namespace, replicas, sizes or Sizes()),
        buckets=_buckets(namespace, replicas),
        profile=profile,
    )


def hub(namespace: Namespace, *, profile: Profile = "safe", replicas: int = 1) -> Topology:
    """Return the topology of the hub, the domain that joins several zones (ADR 46)."""

    def bucket(short: str, about: str, history: int) -> BucketSpec:
        name = namespace.bucket(short)
        return BucketSpec(name=name, about=about, history=history, replicas=replicas, holds_truth=True)

    return Topology(
        profile=profile,
        buckets=(
            bucket("HUB_ROUTING", "which zone owns which shard", 64),
            bucket("HUB_ZONES", "which zones are in, and which map each has taken", 1),
            bucket("HUB_OFFSETS", "copies of the zones' offsets", 1),
        ),
    )


def fetch_consumer(namespace: Namespace, platform: str, lane: str) -> ConsumerSpec:
    """Return the one consumer of a platform's lane. All fetchers share it, so thousands of sources stay cheap."""
    return ConsumerSpec(
        stream=namespace.stream("SLICES"),
        name=_joined("fetch", platform, lane),
        filter_subject=namespace.pattern("slices", platform, lane, ">"),
        about=f"slices of {platform}, lane {lane}",
        ack_wait_s=3.0,  # a live fetcher extends, and a dead one's slices are back within five seconds
        max_ack_pending=10_000,
    )


def sink_consumer(namespace: Namespace, name: str) -> ConsumerSpec:
    """Return the consumer that carries all orders to one sink."""
    return ConsumerSpec(
        stream=namespace.stream("ORDERS"),
        name=_joined("sink", name),
        filter_subject=namespace.pattern("orders", ">"),
        about=f"orders for the sink {name}",
        ack_wait_s=12.0,  # the sink extends every five seconds, and a killed one's batch is back within this
        max_ack_pending=20_000,
    )


_WITHOUT_LEADER_S = 15.0
"""The ack wait on three servers, where an election takes up to nine seconds and nobody hears an extension (ADR 38)."""
JOBS_IDLE_S = WORK_IDLE_S = 600.0
"""Seconds. The consumer of a topic or a task costs the server 26 kB, and each further one the more time, the more there
are of them (ADRs 65, 80). What waits stays when it goes, and the next pull makes it again: in some two milliseconds, in
a cluster in less than a tenth of a second."""


def job_consumer(
    namespace: Namespace, topic: str, priority: str = "normal", *, is_clustered: bool = False
) -> ConsumerSpec:
    """Return the consumer of a topic's ready jobs of one priority (`high`, `normal` or `low`), shared by all
    handlers and desks."""
    lane = "" if priority == "normal" else f"-{priority}"
    return ConsumerSpec(
        stream=namespace.jobs_stream(topic),
        name=_joined(f"jobs{lane}", topic),  # not after the topic, where a topic `mail_high` would meet `mail`
        filter_subject=namespace.jobs_in(f"ready{lane}", topic),
        about=f"ready jobs of {topic}, priority {priority}",
        ack_wait_s=job_ack_wait_s(is_clustered),
        max_ack_pending=20_000,
        idle_s=JOBS_IDLE_S,
    )


def job_ack_wait_s(is_clustered: bool) -> float:
    """Return after how long a job whose holder is silent comes again."""
    return _WITHOUT_LEADER_S if is_clustered else 3.0  # on one server a dead node's jobs are back within five seconds


def submit_consumer(namespace: Namespace) -> ConsumerSpec:
    """Return the consumer of the jobs that were submitted by a plain publish."""
    return ConsumerSpec(
        stream=namespace.stream("SUBMIT"),
        name="submit_job",
        filter_subject=namespace.pattern("submit", "job", ">"),  # an invalid topic is refused, not left in the stream
        or_subject=namespace.subject("submit", "job"),
        about="jobs handed in, to be checked and added",
        ack_wait_s=10.0,  # adding a page of them takes far less, and after it another node takes over a dead node's
        max_ack_pending=20_000,
    )


def submit_batch_consumer(namespace: Namespace) -> ConsumerSpec:
    """Return the consumer of the batches that were submitted by a plain publish."""
    return ConsumerSpec(
        stream=namespace.stream("SUBMIT"),
        name="submit_batch",
        filter_subject=namespace.pattern("submit", "batch", ">"),
        or_subject=namespace.subject("submit", "batch"),
        about="batches handed in, to be checked and made",
        ack_wait_s=10.0,
        max_ack_pending=1_000,
    )


def batch_consumers(
    namespace: Namespace, task: str, *, is_clustered: bool = False
) -> tuple[ConsumerSpec, ConsumerSpec]:
    """Return a task's two consumers, shared by all nodes that serve it: one for its splits and reduces, one for its
    chunks. So a long split blocks no chunk, and a task blocks no other task. Executors make them when an instance of
    the task is at work."""

    def consumer(short: str, ack_wait_s: float, first: str, second: str = "") -> ConsumerSpec:
        return ConsumerSpec(
            stream=namespace.stream("WORK"),
            name=_joined(f"batch-{short}", task),
            filter_subject=namespace.pattern("work", "batch", task, first, ">"),
            or_subject=namespace.pattern("work", "batch", task, second, ">") if second else "",
            about=f"{short} of batches of {task}",
            ack_wait_s=_WITHOUT_LEADER_S if is_clustered else ack_wait_s,
            max_ack_pending=10_000,
            idle_s=WORK_IDLE_S,
        )

    # A live executor extends. A dead one's chunks are back within five seconds, its steps within ten: after a pause of
    # some seconds its process keeps a step.
    return consumer("steps", 8.0, "split", "reduce"), consumer("chunks", 3.0, "map")


def _streams(namespace: Namespace, replicas: int, sizes: Sizes) -> tuple[StreamSpec, ...]:
    streams = (*_fetch_streams(namespace, sizes), *_job_streams(namespace), *_batch_streams(namespace))
    return tuple(replace(stream, replicas=replicas) for stream in streams)


def _fetch_streams(namespace: Namespace, sizes: Sizes) -> tuple[StreamSpec, ...]:
    return (
        StreamSpec(
            name=namespace.stream("ORDERS"),
            subjects=(namespace.pattern("orders", ">"),),
            about="every fetched order, for the sinks",
            max_age_s=sizes.orders_days * _DAY_S,
            max_bytes=sizes.orders_bytes,
            allow_atomic=True,  # a page of orders is stored whole or not at all
            holds_truth=True,
        ),
        StreamSpec(
            name=namespace.stream("DEAD"),
            subjects=(namespace.pattern("dead", ">"),),
            about="what was given up on, with its reason and history",
            max_age_s=sizes.dead_days * _DAY_S,
            max_msgs=sizes.dead_messages,
            holds_truth=True,
        ),
        StreamSpec(
            name=namespace.stream("SLICES"),
            subjects=(namespace.pattern("slices", ">"),),
            about="slices offered to fetchers; pointers into the ledgers",
            retention="workqueue",
            discard_new_per_subject=True,
            max_msgs_per_subject=1,  # the subject is the slice's identity: offering it twice is harmless
            max_msg_bytes=64 * 1024,
            max_consumers=SLICES_CONSUMERS,
            allow_atomic=True,
        ),
        StreamSpec(
            name=namespace.stream("EVENTS"),
            subjects=(namespace.pattern("events", ">"),),
            about="what happened, for people and the console",
            discard="old",
            max_age_s=sizes.events_days * _DAY_S,
            max_msgs=sizes.events_messages,
        ),
    )


def _job_streams(namespace: Namespace) -> tuple[StreamSpec, ...]:
    parts = (
        StreamSpec(
            name=name,
            subjects=(pattern,),
            about="every job, in the state that its subject says",
            job_streams=namespace.job_streams,
            retention="workqueue",
            # The server refuses `new` beside schedules. Since the stream has no limit of its own, it drops only the
            # earlier message on the same subject, which is the job itself as it was.
            discard="old",
            max_msgs_per_subject=1,
            # Longer than any client repeats an add by itself (a client's 30 s, then a desk's 20 s), and no longer: an
            # id costs the server some 195 bytes for this time, 470 MB at 40,000 adds a second (ADR 29).
            duplicate_window_s=60,
            allow_atomic=True,
            allow_msg_ttl=True,  # a finished job is known for a while
            allow_msg_schedules=True,
            max_consumers=JOBS_CONSUMERS,
            holds_truth=True,
        )
        for name, pattern in namespace.jobs_patterns(">").items()
    )
    return (
        *parts,  # the first of them tells how many there are, and is made first
        StreamSpec(
            name=namespace.stream("SUBMIT"),
            subjects=(namespace.pattern("submit", ">"),),
            about="what was handed in by a plain publish, to be checked",
            retention="workqueue",
            max_msg_bytes=512 * 1024,  # a refused message becomes a dead letter whole, a third longer
            holds_truth=True,
        ),
    )


def _batch_streams(namespace: Namespace) -> tuple[StreamSpec, ...]:
    files = namespace.bucket("FILES")
    return (
        StreamSpec(
            name=namespace.stream("ITEMS"),
            subjects=tuple(namespace.pattern(first, ">") for first in ("items", "results", "begun")),
            about="items of batches, and what became of them",
            max_msgs_per_subject=1,  # a chunk that is staged again is the same one
            holds_truth=True,
        ),
        StreamSpec(
            name=namespace.stream("WORK"),
            subjects=(namespace.pattern("work", ">"),),
            about="work let out to executors; pointers into records",
            retention="workqueue",
            discard_new_per_subject=True,
            max_msgs_per_subject=1,  # the subject is the work itself: offering it twice is harmless
            max_msg_bytes=64 * 1024,
            max_consumers=WORK_CONSUMERS,
        ),
        StreamSpec(
            name=f"OBJ_{files}",
            subjects=(f"$O.{files}.C.>", f"$O.{files}.M.>"),
            about="uploads and results",
            allow_msg_ttl=True,  # the record of a deleted file goes, too
            allow_rollup_hdrs=True,
            holds_truth=True,
        ),
    )


def _buckets(namespace: Namespace, replicas: int) -> tuple[BucketSpec, ...]:
    def bucket(short: str, about: str, *, history: int = 1, has_ttl: bool = False, truth: bool = False) -> BucketSpec:
        name = namespace.bucket(short)
        return BucketSpec(
            name=name, about=about, history=history, has_ttl=has_ttl, replicas=replicas, holds_truth=truth
        )

    return (
        bucket("LEDGERS", "one record a source: cut, open, complete, given up", truth=True),
        # Ten earlier values, so that a person can see who changed what, and put it back.
        bucket("SETTINGS", "settings: default, platform, source", history=10, truth=True),
        # With more than one revision an expired lease would reveal an older one.
        bucket("NODES", "the nodes that live", has_ttl=True),
        bucket("LEASES", "who does what only one may do", has_ttl=True),
        bucket("DIGESTS", "keys and versions of closed slices, for second looks", has_ttl=True),
        bucket("TOPICS", "settings of topics: default, topic", history=10, truth=True),
        bucket("TOKENS", "hashes of the gateway's tokens, and what each may do", truth=True),
        bucket("RECURRING", "jobs that are made again and again", history=10, truth=True),
        bucket("FLOWS", "flows: their settings, and how their latest rounds went", history=10, truth=True),
        bucket("ROUTING", "which zone owns which shard", history=64, truth=True),
        bucket("OFFSETS", "how far each zoned job has scanned each shard", truth=True),
        bucket("TASKS", "what applications declared of their tasks", history=10),
        bucket("INSTANCES", "one record a run of a task: how far it is", has_ttl=True, truth=True),
        bucket("BEATS", "long steps that are under way", has_ttl=True),
    )


def _joined(*tokens: str) -> str:
    return "_".join(check_token("consumer", token) for token in tokens)
