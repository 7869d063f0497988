"""The differences between the wanted streams and consumers and those that a server has. Pure.

Only settings that matter to us are compared. Sizes and ages are the installation's business: a difference there is
reported and does not block, unless it would lose data. Abilities that are on without need are left alone.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from streams.topology.specs import JOB_STREAMS_KEY, PARTED, VERSION, VERSION_KEY, ConsumerSpec, StreamSpec, Topology

OLDEST_SERVER = (2, 15, 1)
ABILITIES = ("allow_direct", "allow_atomic", "allow_msg_ttl", "allow_msg_schedules", "allow_rollup_hdrs")

_IT = "it"
_INIT = "run `penstock init`"
_RESTORE = "restore it from a backup, or accept the loss with `penstock init --adopt`"
_NOT_OURS = ("name", "description", "durable_name")
_TUNABLE = ("max_msgs", "max_bytes", "max_age", "max_msg_size", "max_consumers", "duplicate_window")
_DROPPING = ("max_msgs", "max_bytes", "max_age")
_DURATIONS = ("max_age", "duplicate_window", "ack_wait", "subject_delete_marker_ttl")
_FIXED = ("storage", "sealed", "mirror")
WHY = {
    "metadata": "it does not say which version of Penstock made it",
    "subjects": "messages to the missing subjects would be refused",
    "retention": "work that is done would stay, or orders would be gone once read",
    "discard": "when full it would drop the oldest instead of refusing",
    "discard_new_per_subject": "a second offer of a slice would replace the first while it is being worked on",
    "max_msgs_per_subject": "the number of kept values decides what a key or a slice is",
    "max_msgs": "what is beyond is refused or dropped",
    "max_bytes": "what is beyond is refused or dropped",
    "max_age": "what is older is dropped",
    "max_msg_size": "larger messages are refused",
    "max_consumers": "with more topics or tasks, their nodes cannot run",
    "num_replicas": "acknowledged data would be lost with one server",
    "duplicate_window": "a publish repeated later than this is stored twice",
    "storage": "memory forgets with the process",
    "allow_direct": "reads by key would find nobody to answer",
    "allow_atomic": "pages of messages could not be stored whole or not at all",
    "allow_msg_ttl": "leases, nodes and finished jobs would never expire",
    "allow_msg_schedules": "nothing would be delivered later",
    "allow_rollup_hdrs": "a key could not be purged",
    "deny_delete": "single revisions could be deleted under a running node",
    "deny_purge": "a key could not be purged",
    "sealed": "it takes no messages any more",
    "mirror": "it copies another stream and takes no messages",
    "subject_transform": "messages would be stored under other subjects",
    "subject_delete_marker_ttl": "an expired lease would leave a marker that keeps everybody from taking it",
    "ack_policy": "work would count as done before it is",
    "ack_wait": "a dead worker's messages would come back too late, or a living one's too early",
    "max_deliver": "at the limit the server parks a message for good and tells nobody",
    "max_ack_pending": "workers would wait for each other",
    "max_waiting": "a large cluster would have requests refused",
    "filter_subject": "it would hand out other messages",
    "filter_subjects": "it would hand out other messages",
    "deliver_policy": "it would leave out messages",
    "replay_policy": "messages would come as slowly as they once were stored",
    "backoff": "it overrides ack_wait, and delayed retries come at the wrong time",
}
"""What each setting protects. A node that refuses to start on a wrong one says so."""


class Difference(Struct, frozen=True, kw_only=True):
    """One setting that is wrong. `str` gives the whole sentence, with what to do."""

    where: str
    setting: str
    want: object
    have: object
    why: str
    do: str = _INIT
    is_blocking: bool = True
    """Nodes refuse to run. False: the installation's own choice, which is only reported."""
    is_fixable: bool = True
    """`apply` can correct it without losing anything."""

    def __str__(self) -> str:
        if self.setting == _IT:
            return f"{self.where} is {self.have}: {self.why}; {self.do}"
        have, want = _shown(self.setting, self.have), _shown(self.setting, self.want)
        return f"{self.where}: {self.setting} is {have}, needs {want}: {self.why}; {self.do}"

    def made(self) -> str:
        """Return what has been done about it."""
        if self.setting == _IT:
            return f"{self.where}: made"
        return (
            f"{self.where}: {self.setting} was {_shown(self.setting, self.have)}, is {_shown(self.setting, self.want)}"
        )


def compare_stream(spec: StreamSpec, have: dict[str, Any] | None) -> list[Difference]:
    """Return how the server's configuration of a stream differs. `have` None: it has no such stream."""
    where = place_of(spec)
    if have is None:
        return [Difference(where=where, setting=_IT, want="present", have="missing", why="it is not on the server")]
    wants = spec.config() | {"sealed": False, "mirror": None, "subject_transform": None}
    if spec.allow_msg_ttl:
        wants["subject_delete_marker_ttl"] = 0
    del wants["metadata"]
    found = [_setting(spec, setting, want, have.get(setting)) for setting, want in wants.items()]
    return [difference for difference in (_parts(spec, have), _version(spec, have), *found) if difference]


def merged(spec: StreamSpec, have: dict[str, Any]) -> dict[str, object]:
    """Return the wanted settings over the existing ones. What an operator granted beyond them (replicas, abilities)
    stays."""
    more: dict[str, object] = {ability: True for ability in ABILITIES if have.get(ability)}
    more["metadata"] = (have.get("metadata") or {}) | spec.metadata()
    more["num_replicas"] = max(spec.replicas, have.get("num_replicas", 1))
    if spec.allow_msg_ttl:
        more["subject_delete_marker_ttl"] = 0
    return have | spec.config() | more


def compare_consumer(spec: ConsumerSpec, have: dict[str, Any] | None) -> list[Difference]:
    """Return how the server's configuration of a consumer differs. `have` None: it has no such consumer."""
    where = f"consumer {spec.name} of {spec.stream}"
    if have is None:
        return [Difference(where=where, setting=_IT, want="present", have="missing", why="it is not on the server")]
    wants = spec.config() | {"backoff": None}
    wants.pop("inactive_threshold", None)  # a consumer that was made without it is as good
    return [
        Difference(
            where=where,
            setting=setting,
            want=want,
            have=have.get(setting),
            why=WHY[setting],
            do=f"delete it (`nats consumer rm {spec.stream} {spec.name}`), and it is made again",
            is_fixable=False,
        )
        for setting, want in wants.items()
        if setting not in _NOT_OURS and not _is_same(want, have.get(setting))
    ]


def parked_by(stream: str, consumers: Iterable[dict[str, Any]]) -> list[Difference]:
    """Return the consumers of a work queue that stop delivering a message after some tries."""
    return [
        Difference(
            where=f"consumer {config.get('durable_name') or config.get('name')} of {stream}",
            setting="max_deliver",
            want=-1,
            have=config["max_deliver"],
            why=WHY["max_deliver"],
            do="remove the limit (`nats consumer edit --max-deliver=-1`)",
            is_fixable=False,
        )
        for config in consumers
        if config.get("max_deliver", -1) > 0
    ]


def no_jetstream(description: str) -> Difference:
    """Return the difference that leaves nothing else to compare."""
    return Difference(
        where="server",
        setting="jetstream",
        want="enabled",
        have="off",
        why=f"nothing can be stored ({description})",
        do="start nats-server with a `jetstream` block and enable it for this account",
        is_fixable=False,
    )


def compare_server(topology: Topology, version: tuple[int, ...], servers: int) -> list[Difference]:
    """Return what is wrong with the server itself, by its version and by how many of them the client knows."""
    found = []
    if version < OLDEST_SERVER:
        have, want = (".".join(map(str, number)) for number in (version, OLDEST_SERVER))
        why = "older ones lose messages or leave holes open that are used here"
        do = "upgrade nats-server"
        found.append(Difference(where="server", setting="version", want=want, have=have, why=why, do=do))
    single = [spec.name for spec in topology.all_streams() if spec.replicas < 3]
    if topology.profile == "safe" and servers >= 3 and single:
        found.append(
            Difference(
                where=", ".join(single),
                setting="replicas",
                want=3,
                have=1,
                why=f"there are {servers} servers, and the loss of one would lose acknowledged data",
                do="set replicas to 3, or choose the profile `fast` and accept that",
                is_fixable=False,
            )
        )
    return found


def missing_truth(topology: Topology, existing: set[str]) -> list[Difference]:
    """Return the streams that hold truth and were deleted: streams made after them still exist."""
    found: list[Difference] = []
    is_later_there = False
    for spec in reversed(topology.all_streams()):
        if spec.name in existing:
            is_later_there = True
        elif spec.holds_truth and is_later_there:
            why = "it was there once and holds what nothing else knows: somebody deleted it"
            found.append(
                Difference(where=place_of(spec), setting=_IT, want="present", have="deleted", why=why, do=_RESTORE)
            )
    return found[::-1]


def place_of(spec: StreamSpec) -> str:
    """Return the name that people use: a bucket's own name, not that of its stream."""
    return f"bucket {spec.name.removeprefix('KV_')}" if _is_bucket(spec) else f"stream {spec.name}"


def _is_bucket(spec: StreamSpec) -> bool:
    return spec.name.startswith("KV_")


def _setting(spec: StreamSpec, setting: str, want: object, have: object) -> Difference | None:
    if setting in _NOT_OURS or _is_same(want, have) or (setting in ABILITIES and not want):
        return None
    if setting == "num_replicas" and isinstance(have, int) and have > spec.replicas:
        return None  # an operator decided for more than we need
    is_forgotten = setting == "max_age" and _is_bucket(spec)  # a ledger must not expire
    is_forgotten |= setting in _DROPPING and spec.holds_truth and spec.discard == "old"  # nor a job be dropped
    is_stuck = _is_stuck(setting, want, have)
    return Difference(
        where=place_of(spec),
        setting=setting,
        want=want,
        have=have,
        why=WHY[setting],
        do=f"it cannot be changed in place: back up, delete and make `{spec.name}` again" if is_stuck else _INIT,
        is_blocking=is_forgotten or setting not in _TUNABLE,
        is_fixable=not is_stuck,
    )


def job_streams_in(have: dict[str, Any]) -> int:
    """Return in how many streams the jobs are, as the configuration of one of them tells."""
    told = (have.get("metadata") or {}).get(JOB_STREAMS_KEY, "")
    return int(told) if told.isdecimal() else 1


def _parts(spec: StreamSpec, have: dict[str, Any]) -> Difference | None:
    """Return the difference of a stream of jobs beside which there are more or fewer than wanted."""
    number = job_streams_in(have)
    if number == spec.job_streams:
        return None
    return Difference(
        where=place_of(spec),
        setting="job_streams",
        want=spec.job_streams,
        have=number,
        why="each topic is in the stream that this number says, and its jobs are not moved",
        do="let all jobs end, stop all nodes, delete all streams of jobs, run `penstock init --job-streams N --adopt`",
        is_fixable=False,
    )


def _version(spec: StreamSpec, have: dict[str, Any]) -> Difference | None:
    """Return the difference of a stream that another version made. The stream of a newer version is not changed."""
    told = (have.get("metadata") or {}).get(VERSION_KEY, "")
    version = int(told) if told.isdecimal() else 0
    newest = VERSION if job_streams_in(have) == 1 else PARTED
    if version == newest:
        return None
    is_newer = version > newest
    return Difference(
        where=place_of(spec),
        setting="topology",
        want=newest,
        have=version or "unknown",
        why="a newer version of Penstock made it" if is_newer else WHY["metadata"],
        do="use that version here, too" if is_newer else _INIT,
        is_blocking=is_newer,
        is_fixable=not is_newer,
    )


def _is_stuck(setting: str, want: object, have: object) -> bool:
    """Whether the server refuses this change, or could only make it by losing messages."""
    if setting in _FIXED:
        return True
    return (setting == "retention" and "workqueue" in (want, have)) or (setting.startswith("deny_") and not want)


def _is_same(want: object, have: object) -> bool:
    if isinstance(want, list) and isinstance(have, list):
        return sorted(want) == sorted(have)
    return want == have or (not want and not have)  # the server leaves out values that are false, zero or empty


def _shown(setting: str, value: object) -> str:
    """Return a value as a person writes it: the server counts time in nanoseconds."""
    if setting in _DURATIONS and isinstance(value, int):
        return f"{value / 1_000_000_000:g} s"
    return repr(value)
