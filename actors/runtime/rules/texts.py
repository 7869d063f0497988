"""Foreign text, made fit for our messages. Pure."""

MOST_REASON = 1_000
"""Limit of an error's text, in characters."""


def printable(reason: str) -> str:
    """Return an error's text, made fit for a message: foreign text can be long, or no valid Unicode."""
    return reason[:MOST_REASON].encode("utf-8", "replace").decode()
