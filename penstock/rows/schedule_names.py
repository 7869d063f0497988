"""The names of schedules as people write them."""

from penstock.errors import UsageError
from streams.errors import MalformedSubject
from streams.subjects import check_token

__all__ = ["read_name"]


def read_name(text: str) -> tuple[str, str]:
    """Return topic and name of TOPIC/NAME. Raises UsageError."""
    topic, slash, name = text.partition("/")
    try:
        if slash:
            return check_token("topic", topic), check_token("name", name)
    except MalformedSubject as error:
        raise UsageError(f"{error}; a schedule is named TOPIC/NAME, as in mail/nightly") from error
    raise UsageError(f"schedule {text[:80]!r}: write TOPIC/NAME, as in mail/nightly")
