"""What `penstock up` prints for a person at a terminal once the node is ready: what it serves where, what to try."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from actors.jobs.rules.schedule_targets import TOPIC as SCHEDULE_TOPIC
from penstock.node.fetch.sinks import stores_of
from penstock.node.session import server_url

if TYPE_CHECKING:
    from actors.runtime.membership import Status
    from penstock.node.config import Config

__all__ = ["welcome"]


def welcome(config: Config, name: str, status: Status) -> str:
    """Return the lines. `status`: what the node has told the others of itself."""
    topics = tuple(topic for topic in status.topics if topic != SCHEDULE_TOPIC)
    served = [("topics", topics), ("tasks", status.tasks)]
    code = "; ".join(f"{kind} {', '.join(names[:5])}{' …' * (len(names) > 5)}" for kind, names in served if names)
    place = f"embedded, its data in {config.data_folder()}" if config.is_embedded else f"namespace {config.namespace}"
    has_gateway = config.http_address() is not None and config.has_role("gateway")
    lines = [
        ("Server", f"{server_url(config)}, {place}"),
        ("Orders", _places(config)),
        ("HTTP", f"http://{config.http}/schema lists the calls" if has_gateway else ""),
        ("Figures", f"http://{config.metrics}/metrics" if config.metrics else ""),
        ("App", f"{config.app}: {code or 'neither a handler nor a task'}" if config.app else ""),
        ("Try", _next(config, topics, status.tasks)),
        ("Stop", "Ctrl-C; work in hand ends first. --log-level info shows what happens"),
    ]
    return "\n".join((f"The node {name} is ready.", *(f"  {what:<8} {text}" for what, text in lines if text)))


def _places(config: Config) -> str:
    """Return where the node stores orders, a file by its whole path."""
    stores = stores_of(config) if config.has_role("sink") else {}
    return ", ".join(store.name for store in stores.values())


def _next(config: Config, topics: tuple[str, ...], tasks: tuple[str, ...]) -> str:
    """Return a command to try in another terminal."""
    where = f" --nats {shlex.quote(config.nats)}" if config.nats else ""
    if config.is_embedded and config.data:
        where = f" --data {shlex.quote(config.data)}"
    if tasks and not topics:
        return f"penstock batch submit FILE --task {tasks[0]}{where}"
    topic = topics[0] if topics else "mails"
    return f"penstock jobs add {topic} '{{\"to\": 7}}'{where}"
