"""Which versions of a task's code are at work, by the reports of the live nodes."""

from actors.batch.rules.record import FINAL, Instance, made_so_far
from actors.batch.rules.versions import is_older, newest
from actors.runtime.membership import Members


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


def waits_for(members: Members, record: Instance) -> str:
    """Return what an instance waits for, and what to do. Empty if it is over, or a node may work on it."""
    if record.state in FINAL or record.is_cancelling:
        return ""
    at_work = newest_version(members, record.task)
    if at_work is None:
        return f"waits: no process serves {record.task}; start one with `penstock work`"
    if is_too_new(members, record):
        has = at_work or "one without a version"
        return f"waits: its items need version {version_of(record)} of the code; at work is {has}"
    return ""
