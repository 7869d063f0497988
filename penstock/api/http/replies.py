"""The one shape of every answer under `/queue`, errors too. Pure."""

from msgspec import Struct

__all__ = ["Reply", "is_queue", "words"]

QUEUE = "/queue"


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`value` is a popped job's body, as JSON text."""

    success: bool
    error: str = ""
    id: str = ""
    value: str | None = None


def is_queue(path: str) -> bool:
    """True for the paths of the published protocol."""
    return path == QUEUE or path.startswith(f"{QUEUE}/")


def words(what: str, detail: str) -> str:
    return f"{what}: {detail}" if what else detail
