"""Topics over HTTP: which there are, how many jobs they have, and their settings."""

from typing import Any

import msgspec
from msgspec.structs import replace

from actors.jobs.rules.job_answers import TopicCounted
from penstock.api.forms.jobs import TopicChanges, TopicShown, TopicsQuery, TopicsShown
from penstock.api.forms.reading import picked
from penstock.api.http.calls import GatewayState, HttpAnswer, HttpCall, decoded, query_of
from penstock.api.http.routes.jobs import audit

_changes = msgspec.json.Decoder(TopicChanges)
_values = msgspec.json.Decoder(dict[str, Any])


async def list_topics(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """List the topics that are yours, a page at a time, and count their jobs."""
    asked, caller = query_of(TopicsQuery, call.query), call.caller
    names = sorted(caller.outer(topic) for topic in shared.desk.known_topics() if caller.is_own(topic))
    wanted = [name for name in names if name > asked.after][: asked.limit + 1]
    with shared.load.work("other", caller.key):
        found = await shared.desk.count_many([caller.inner(name) for name in wanted[: asked.limit]])
    counted = [replace(each, topic=caller.outer(each.topic)) for each in found]
    call.charge(len(counted))
    return HttpAnswer(TopicsShown(topics=counted, next=counted[-1].topic if len(wanted) > asked.limit else ""))


async def show(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Show a topic. One that nobody has used yet has no jobs, and the default settings."""
    return await _changed(shared, call, call.topic(), {})


async def change(shared: GatewayState, call: HttpCall) -> HttpAnswer:
    """Change some of a topic's settings. `is_paused` and `rate` act at once on every node."""
    topic = call.topic()
    decoded(_changes, call.body)
    values = decoded(_values, call.body)
    answer = await _changed(shared, call, topic, values)
    audit(call, "topic.changed", topic=topic, settings=values)
    return answer


async def _changed(shared: GatewayState, call: HttpCall, topic: str, values: dict[str, Any]) -> HttpAnswer:
    with shared.load.work("other", call.caller.key):
        view = await shared.desk.change_topic(topic, values)
        counted = await _counted(shared, call, topic)
    return HttpAnswer(picked(TopicShown, counted, settings=view.settings, is_used=view.is_used))


async def _counted(shared: GatewayState, call: HttpCall, topic: str) -> TopicCounted:
    return replace(await shared.desk.count(topic), topic=call.caller.outer(topic))
