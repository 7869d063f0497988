"""Checks of the values in requests to a job desk: topics, ids, numbers, bodies. Pure."""

from msgspec import Raw

from actors.jobs.rules.job_rules import BadJob
from actors.jobs.rules.topic_settings import DEFAULT
from actors.runtime.rules.depth import DEEPEST, is_too_deep
from streams.messages.jobs import LONGEST_ID
from streams.subjects import TOKEN


def check_topic(topic: str) -> str:
    """Return the topic. Raises BadJob if it is none."""
    if not isinstance(topic, str) or not TOKEN.fullmatch(topic):
        raise BadJob("topic", topic, "is not a topic", "use 1 to 64 of A-Z a-z 0-9 _ -")
    if topic == DEFAULT:
        raise BadJob("topic", topic, "is the name of what is set for all topics", "choose another")
    return topic


def check_id(job_id: str) -> str:
    """Return the id. Raises BadJob if no job can have it."""
    if isinstance(job_id, str) and 1 <= len(job_id) <= LONGEST_ID and job_id.isprintable():
        return job_id
    raise BadJob("id", job_id, "is no id of a job", f"use 1 to {LONGEST_ID} printable characters")


def check_range(field: str, value: int, low: int, high: int) -> None:
    """Raise BadJob unless the value is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadJob(field, value, "is not a whole number", "write digits without quotes, as 1500")
    if not low <= value <= high:
        raise BadJob(field, value, "is out of range", f"use {low} to {high}")


def check_depth(body: Raw) -> None:
    """Raise BadJob for a body that is nested more deeply than every reader can follow."""
    if is_too_deep(body):
        raise BadJob(
            "body", bytes(body)[:40].decode(errors="replace"), "is nested too deeply", f"use at most {DEEPEST} levels"
        )
