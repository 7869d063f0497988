"""Which versions of a task's code are at work, by what the live nodes say of themselves."""

from actors.membership import Members
from actors.model.batch_versions import newest

__all__ = ["newest_version"]


def newest_version(members: Members, task: str) -> str | None:
    """Return the newest version of the task's code that a live node serves; None if no node serves it."""
    return newest(dict(node.versions).get(task, "") for node in members.live().values() if task in node.tasks)
