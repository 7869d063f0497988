"""Somebody else's text, as it may go into a message of ours. Pure."""

MOST_REASON = 1_000
"""Of an error's text, in characters."""


def printable(reason: str) -> str:
    """Return an error's text as it may go into a message: somebody else's text can be long, or no valid Unicode."""
    return reason[:MOST_REASON].encode("utf-8", "replace").decode()
