"""The W3C's `traceparent`: the text that names a trace and a span of it (trace-context, level 1). Pure."""

import re
from collections.abc import Mapping

HEADER = "traceparent"
_FORM = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def is_traceparent(text: object) -> bool:
    """Return whether this is a `traceparent`. Another text is taken for none, as the W3C asks."""
    return isinstance(text, str) and _FORM.fullmatch(text) is not None


def traceparent_of(headers: Mapping[str, str]) -> str:
    """Return the `traceparent` among headers, as programs write its name. Empty: there is none."""
    found = headers.get(HEADER) or headers.get("Traceparent", "")
    return found if is_traceparent(found) else ""
