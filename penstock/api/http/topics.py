"""Topics over HTTP: which there are, how many jobs they have, and their settings."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from penstock.api.http.calls import Answer, Call, Shared, decoded, query_of
from penstock.api.http.jobs import audit
from penstock.api.http.shapes import MOST, Asked

Duration = Annotated[str, Meta(pattern=r"^[0-9]", description="as in 500ms, 60s, 10m, 2h, 1d")]


class TopicChanges(Asked, frozen=True, kw_only=True):
    """Settings to change; null takes one back to the default. The rest stays. See docs/settings.md for each."""

    ttr: Duration | UnsetType | None = UNSET
    attempts: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    backoff: Duration | UnsetType | None = UNSET
    backoff_cap: Duration | UnsetType | None = UNSET
    backoff_growth: Literal["linear", "exponential"] | UnsetType | None = UNSET
    remember: Duration | UnsetType | None = UNSET
    rate: Annotated[float, Meta(ge=0)] | UnsetType | None = UNSET
    is_paused: bool | UnsetType | None = UNSET
    most_waiting: Annotated[int, Meta(ge=0)] | UnsetType | None = UNSET


class TopicCounted(Struct, frozen=True, kw_only=True):
    """How many jobs of a topic are in each state; `done` are those still known."""

    topic: str
    delayed: int
    ready: int
    reserved: int
    done: int


class TopicsShown(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page of topics by name; `next` is the `after` of the following one, missing on the last."""

    topics: list[TopicCounted]
    next: str = ""


class TopicShown(TopicCounted, frozen=True, kw_only=True):
    """A topic's counts, and the settings in force."""

    settings: dict[str, Any]


class TopicsQuery(Asked, frozen=True, kw_only=True):
    after: Annotated[str, Meta(max_length=64)] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 100


_changes = msgspec.json.Decoder(TopicChanges).decode
_values = msgspec.json.Decoder(dict[str, Any]).decode


async def list_topics(shared: Shared, call: Call) -> Answer:
    """List the topics that are yours, a page at a time, and count their jobs."""
    asked = query_of(TopicsQuery, call.query)
    topics = [view.topic for view in await shared.desk.topics()]
    names = sorted(call.caller.outer(topic) for topic in topics if call.caller.is_own(topic))
    wanted = [name for name in names if name > asked.after][: asked.limit + 1]
    with shared.load.work("other", call.caller.key):
        counted = [await _counted(shared, call, call.caller.inner(name)) for name in wanted[: asked.limit]]
    call.charge(len(counted))
    return Answer(TopicsShown(topics=counted, next=counted[-1].topic if len(wanted) > asked.limit else ""))


async def show(shared: Shared, call: Call) -> Answer:
    """Show a topic; one that nobody has used yet has no jobs, and the default settings."""
    return await _changed(shared, call, call.topic(), {})


async def change(shared: Shared, call: Call) -> Answer:
    """Change some of a topic's settings; `is_paused` and `rate` act at once, on every node."""
    topic = call.topic()
    decoded(_changes, call.body)
    values = decoded(_values, call.body)
    answer = await _changed(shared, call, topic, values)
    audit(call, "topic.changed", topic=topic, settings=values)
    return answer


async def _changed(shared: Shared, call: Call, topic: str, values: dict[str, Any]) -> Answer:
    with shared.load.work("other", call.caller.key):
        view = await shared.desk.change_topic(topic, values)
        counted = await _counted(shared, call, topic)
    return Answer(TopicShown(**msgspec.structs.asdict(counted), settings=view.settings))


async def _counted(shared: Shared, call: Call, topic: str) -> TopicCounted:
    counts = await shared.desk.count(topic)
    return TopicCounted(
        topic=call.caller.outer(topic),
        delayed=counts.delayed,
        ready=counts.ready,
        reserved=counts.reserved,
        done=counts.done,
    )
