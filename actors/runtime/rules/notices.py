"""A notice: what a person should know. Pure."""

import msgspec

MOST_NAMED = 5
"""Sources that one notice names."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What a person should know: one line, the facts, and what can be done. The webhook gets it as JSON."""

    kind: str
    source: str
    text: str
    what_to_do: str
    facts: dict[str, str | int] = {}
