"""The answers of a job desk at every door, as values. On the wire they are JSON objects with these fields.

`code` is the result: `ok`, `exists` (a job of this id is there), `stale` (the receipt holds nothing any more), `over`
(the job has ended, its topic remembers that, and nothing was added), `not_found`, `quota` (the topic has as many
waiting jobs as its limit allows), `bad` (the caller's mistake: `field` and `reason` name it), `unavailable` (the broker
did not take it, so it is certainly not done), `unknown` (it may have been done: call again).
"""

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from streams.messages.jobs import Priority, State

MOST_TOPICS = 1_000
"""In one page of topics, which is 250 kB then."""

Code = Literal["ok", "exists", "over", "stale", "not_found", "quota", "bad", "unavailable", "unknown"]
HTTP_CODES: dict[Code, int] = {
    "ok": 200,
    "exists": 409,
    "over": 409,
    "stale": 409,
    "not_found": 404,
    "quota": 429,
    "bad": 400,
    "unavailable": 503,
    "unknown": 504,
}


class Added(Struct, frozen=True, kw_only=True, gc=False):
    """The job is there. `is_new`: this call made it, or replaced the one that was there. Otherwise the earlier job
    stands, in `state`, and `is_same_body` says whether its body is the same."""

    topic: str
    id: str
    state: State
    due_ms: int
    is_new: bool = True
    is_same_body: bool = True
    code: Literal["ok"] = "ok"


class NotAdded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The job was not added, and why. `field`: which of the caller's values is wrong. With the code `exists` the other
    fields describe the existing job."""

    code: Code
    reason: str
    topic: str = ""
    id: str = ""
    field: str = ""
    state: State | None = None
    due_ms: int = 0
    is_same_body: bool = False


class HandedOut(Struct, frozen=True, kw_only=True, gc=False):
    """A job handed out, held until `until_ms` by the server's clock. `attempt` counts from 1."""

    topic: str
    id: str
    receipt: str
    body: Raw
    attempt: int
    most_attempts: int
    ttr_ms: int
    until_ms: int
    added_ms: int
    due_ms: int
    priority: Priority


class Reserved(HandedOut, frozen=True, kw_only=True, gc=False):
    """`history` describes the attempts before this one. `traceparent`: the span that added the job, if there is one."""

    history: tuple[str, ...] = ()
    traceparent: str | UnsetType = UNSET


class JobReply(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result for a reservation, or for a job. `until_ms`: held until then, after a touch."""

    code: Code
    reason: str = ""
    topic: str = ""
    id: str = ""
    until_ms: int = 0


class Listed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job in its present state. `finished_ms` and `outcome` are there once it is done. The others are gone then."""

    topic: str
    id: str
    state: State
    due_ms: int = 0
    added_ms: int = 0
    ttr_ms: int = 0
    attempts: int = 0
    most_attempts: int = 0
    priority: Priority = "normal"
    expires_ms: int = 0
    holder: str = ""
    until_ms: int = 0
    finished_ms: int = 0
    outcome: str = ""
    history: tuple[str, ...] = ()
    body: Raw = Raw(b"null")


class TopicCounted(Struct, frozen=True, kw_only=True):
    """How many jobs of a topic are in each state. `done`: those still known."""

    topic: str
    delayed: int
    ready: int
    reserved: int
    done: int


class ListPage(Struct, frozen=True, kw_only=True):
    """Some jobs of a list. `after`: the cursor of the next page. Empty: this was the last."""

    jobs: tuple[Listed, ...]
    after: str = ""


class TopicView(Struct, frozen=True, kw_only=True):
    """A topic and its settings, as a person would write them. `is_used`: False if no job of the topic was ever added,
    and nothing is set. Then the settings are those that it would have."""

    topic: str
    settings: dict[str, object]
    is_used: bool = True
