"""What log records carry beside their fixed event name: the facts, and the actor that was at work."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

FACTS = "fields"
"""The one key under which facts stand in a record, in streams/ too. Bare names in `extra` clash with its own."""

current_actor: ContextVar[str] = ContextVar("current_actor", default="")


def fields(**facts: object) -> dict[str, object]:
    """Return the `extra` of a log call: `log.info("slice.reserved", extra=fields(slice_id=slice_id))`.

    No payloads and no secrets. A value that is not JSON is shown by its `str`.
    """
    return {FACTS: facts}


@contextmanager
def acting_as(name: str) -> Iterator[None]:
    """Add the actor's name to every record logged within the block, and in tasks started there."""
    token = current_actor.set(name)
    try:
        yield
    finally:
        current_actor.reset(token)
