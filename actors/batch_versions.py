"""Which versions of a task's code are at work, by what the live nodes say of themselves."""

from actors.membership import Members
from actors.model.batch_record import FINAL, Instance, made_so_far
from actors.model.batch_versions import is_older, newest

__all__ = ["newest_version", "version_of", "waits_for"]


def newest_version(members: Members, task: str) -> str | None:
    """Return the newest version of the task's code that a live node serves; None if no node serves it."""
    return newest(dict(node.versions).get(task, "") for node in members.live().values() if task in node.tasks)


def version_of(record: Instance) -> str:
    """Return the version of the code that made the items; empty before there are any."""
    made = made_so_far(record)
    return made.version if made is not None else ""


def waits_for(members: Members, record: Instance) -> str:
    """Return whom an instance waits for, and what to do; empty if it is over, or somebody may work on it."""
    at_work, needed = newest_version(members, record.task), version_of(record)
    if record.state in FINAL or record.is_cancelling:
        return ""
    if at_work is None:
        return f"waits: no process serves {record.task}; start one with `penstock work`"
    if is_older(at_work, needed):
        return f"waits: its items need version {needed} of the code; at work is {at_work or 'one without a version'}"
    return ""
