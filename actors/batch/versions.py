"""Which versions of a task's code are at work, and which work gets to no node, by the reports of the live nodes."""

from collections.abc import Callable, Iterable

from actors.batch.rules.obstacles import NoConsumer
from actors.batch.rules.record import FINAL, Instance, made_so_far
from actors.batch.rules.versions import is_older, newest
from actors.runtime.bounds import WorkBounds
from actors.runtime.broker.unmade import unmade_by_all
from actors.runtime.membership import Members, NodeRecord
from actors.runtime.rules.bounds import nobody_text
from streams.subjects import Namespace
from streams.topology.specs import batch_consumers


def newest_version(members: Members, task: str) -> str | None:
    """Return the newest version of the task's code that a live node serves. `None`: no node serves it."""
    return newest(dict(node.versions).get(task, "") for node in members.live().values() if task in node.tasks)


def version_of(record: Instance) -> str:
    """Return the version of the code that made the items. Empty before there are any."""
    made = made_so_far(record)
    return made.version if made is not None else ""


def is_too_new(members: Members, record: Instance) -> bool:
    """Return whether every live version of the task's code is too old for the instance."""
    at_work = newest_version(members, record.task)
    return at_work is not None and is_older(at_work, version_of(record))


def waits_for(members: Members, bounds: WorkBounds, bound_of: Callable[[str], str], record: Instance) -> str:
    """Return what an instance waits for, and what to do. Empty if it is over, or a node may work on it. `bound_of`:
    where the code of a task may run."""
    if record.state in FINAL or record.is_cancelling:
        return ""
    at_work = newest_version(members, record.task)
    if at_work is None:
        return f"waits: no process serves {record.task}; start one with `penstock work`"
    bound = bound_of(record.task)
    serving = [name for name, node in members.live().items() if record.task in node.tasks]
    if bound and not bounds.among(bound, serving):
        return f"waits: {nobody_text(bound, bounds.zone_of(bound))}"
    if is_too_new(members, record):
        has = at_work or "one without a version"
        return f"waits: its items need version {version_of(record)} of the code; at work is {has}"
    return ""


def missing_consumers(nodes: Iterable[NodeRecord], namespace: Namespace, task: str) -> NoConsumer:
    """Return why none of the live nodes that serve the task gets its work from the server."""
    serving = [node for node in nodes if task in node.tasks]
    return NoConsumer(*(unmade_by_all(serving, spec.name) for spec in batch_consumers(namespace, task)))
