"""The existing topics, and what is in force for each. Follows TOPICS live, makes a topic's record at its first add, and
its consumers when somebody takes.

In: `default` and one key a topic, flat JSON as `penstock jobs topics` or `nats kv put` writes it. Out: callbacks with
each topic whose settings changed. State: the levels in force, in memory. The bucket is the truth.

A consumer is there only where jobs are taken: an add makes the record, and whoever takes makes the consumers (ADR 65).
The stream keeps what waits. The server removes a consumer that nobody has pulled from for ten minutes, and the next
taker makes it again.

A level that is refused, alone or beside the other, is ignored as a whole. What was in force before stays, and the log
reports the error. A deleted record leaves the default settings in force, and the topic's jobs where they are. A topic
is enlisted before its first job is stored. Its record names the priorities ever used, so every taker pulls from all of
them, and none looks for jobs where none can be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from weakref import WeakValueDictionary

import anyio
import msgspec
from anyio.abc import TaskStatus

from actors.jobs.rules.topic_settings import DEFAULT, LANES, TopicSettings, parse_topic, resolve_topic
from actors.runtime.live import Live
from actors.runtime.logs import fields
from actors.runtime.rules.setting_values import BadSetting
from streams.buckets.bucket import Bucket
from streams.buckets.entries import Entry
from streams.calls import mark_of
from streams.errors import MalformedMessage, MalformedSubject
from streams.link.connection import Connection
from streams.messages.jobs import Priority
from streams.subjects import TOKEN, Namespace, check_token
from streams.topology.specs import job_consumer
from streams.topology.topology import ensure_consumer

log = logging.getLogger(__name__)

MOST_IN_ALL = 10_000
"""Topics of an installation. Each node keeps all of them in memory, and lists and counts were measured up to here."""

_Values = Mapping[str, object]


class Topics:
    """A live view of the topics. `current` and `known` are cheap at any time."""

    def __init__(self, bucket: Bucket[bytes], connection: Connection, namespace: Namespace) -> None:
        self._bucket = bucket
        self._live = Live(
            bucket, _read, unreadable="topics.refused", keeps_last=True, changed="topic.settings", settings=dict
        )
        self._live.on_change(self._take)
        self._connection = connection
        self._namespace = namespace
        self._default: _Values = {}
        self._own: dict[str, _Values] = {}
        self._settings: dict[str, TopicSettings] = {}
        self._default_settings = TopicSettings()
        self._enlisted: set[tuple[str, Priority]] = set()
        self._ready: set[tuple[str, Priority]] = set()
        self._listeners: list[Callable[[str], None]] = []
        self._making: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        """Held while a topic's record or consumer is made: once, however many want it."""

    def current(self, topic: str) -> TopicSettings:
        """Return what is in force for a topic, or what would be for one that is not used yet."""
        return self._settings.get(topic, self._default_settings)

    def __contains__(self, topic: str) -> bool:
        """Return whether the topic was ever used."""
        return topic in self._settings

    def known(self) -> list[str]:
        """Return the topics that were ever used, by name."""
        return sorted(self._settings)

    def bound_of(self, topic: str) -> str:
        """Return where a topic's jobs may run."""
        return self.current(topic).zone

    def revision_of(self, topic: str) -> int:
        """Return the revision of the later one of the records that bind a topic."""
        return max(self._live.revision(topic), self._live.revision(DEFAULT))

    @property
    def seen(self) -> int:
        """The revision of the last record that was heard of."""
        return self._live.seen

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with each topic that came or changed. It must be short. Return a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def has_room(self, topic: str) -> bool:
        """Return whether the topic is there already, or may still come."""
        return topic in self._settings or len(self._settings) < MOST_IN_ALL

    def is_enlisted(self, topic: str, priority: Priority) -> bool:
        """Return whether `enlist` was done."""
        return (topic, priority) in self._enlisted

    async def enlist(self, topic: str, priority: Priority) -> None:
        """Make sure that the topic is known to have jobs of this priority, so that whoever takes pulls from there.
        Costs nothing once done. Raises MalformedSubject, NoStream, Disconnected, OutcomeUnknown."""
        if (topic, priority) not in self._enlisted:
            async with self._making.setdefault(topic, anyio.Lock()):
                await self._enlist(topic, priority)

    async def use(self, topic: str, *priorities: Priority) -> None:
        """Make sure that the topic is known and has consumers for its jobs of these priorities (none given: all that
        were ever used). For whoever takes. Costs nothing once done. Raises as `enlist`."""
        for priority in priorities or self.current(topic).lanes:
            if (topic, priority) not in self._ready:
                async with self._making.setdefault(topic, anyio.Lock()):
                    await self._make(topic, priority)

    def forget_consumer(self, topic: str) -> None:
        """Make the topic's consumers again at its next use: one was missing."""
        self._ready -= {(topic, priority) for priority in LANES}

    async def change(self, topic: str, values: Mapping[str, object]) -> TopicSettings:
        """Set some of a topic's settings (`default`: of all topics). `None` resets one to the wider level. Return what
        is then in force, which `current` knows at once. A late try of a call changes nothing. Raises BadSetting,
        RevisionConflict when others keep changing it, and as Bucket's writes."""
        check_token("topic", topic)
        mark = mark_of(values)

        def change(entry: Entry[bytes] | None) -> tuple[bytes | None, tuple[_Values, TopicSettings]]:
            before = parse_topic(entry.value) if entry else {}
            is_made = entry is not None and mark in entry.calls
            wanted = before if is_made else {**before, **values}
            after = {name: value for name, value in wanted.items() if value is not None}
            settings = resolve_topic({} if topic == DEFAULT else self._default, after)
            return None if is_made else msgspec.json.encode(after), (after, settings)

        (stored, settings), revision = await self._bucket.update(topic, change, mark=mark)
        self._live.learn(topic, stored, revision)
        return settings

    async def refresh(self, *topics: str) -> None:
        """Take what is stored now, of all topics or of these. Raises NoStream, Disconnected."""
        await self._live.refresh(*({*topics, DEFAULT} if topics else ()))

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Follow the records for ever. Started once the present ones are known."""
        await self._live.run(task_status=task_status)

    # ---- first use

    async def _make(self, topic: str, priority: Priority) -> None:
        if (topic, priority) in self._ready:  # made while we waited for our turn
            return
        await self._enlist(topic, priority)
        is_clustered = self._connection.is_clustered
        spec = job_consumer(self._namespace, topic, priority, is_clustered=is_clustered)
        await ensure_consumer(self._connection, spec)
        self._ready.add((topic, priority))

    async def _enlist(self, topic: str, priority: Priority) -> None:
        if (topic, priority) in self._enlisted:
            return
        if check_token("topic", topic) == DEFAULT:
            raise MalformedSubject(f"topic {DEFAULT!r}: that is what holds for all topics; use another name")
        if topic not in self._settings or priority not in self.current(topic).lanes:
            await self._write(topic, priority)
        self._enlisted.add((topic, priority))

    async def _write(self, topic: str, priority: Priority) -> None:
        """Write the topic's record, with this priority among its lanes."""
        entry = await self._bucket.get(topic)
        try:
            lanes = resolve_topic({}, parse_topic(entry.value)).lanes if entry else ("normal",)
        except BadSetting:
            return  # written by hand and already refused: do not overwrite it
        if entry is None or priority not in lanes:
            await self.change(topic, {"lanes": [lane for lane in LANES if lane in (*lanes, priority)]})

    # ---- following

    def _take(self, key: str) -> None:
        try:
            if key == DEFAULT:
                self._take_default(self._live.get(DEFAULT) or {})
            elif TOKEN.fullmatch(key):
                self._take_own(key)
        except BadSetting as error:
            log.warning("topics.refused", extra=fields(key=key, error=str(error), keeps_last=True))

    def _take_default(self, values: _Values) -> None:
        """Put the default level in force if it fits every topic's own."""
        default = resolve_topic(values, {})
        settings = {topic: resolve_topic(values, own) for topic, own in self._own.items()}
        self._default, self._default_settings = values, default
        changed = [topic for topic, now in settings.items() if self._settings.get(topic) != now]
        self._settings |= settings
        for topic in changed:
            self._notify(topic)

    def _take_own(self, topic: str) -> None:
        before, values = self._settings.get(topic), self._live.get(topic)
        if topic not in self._live:
            self._own.pop(topic, None)
            self._settings.pop(topic, None)
            self._enlisted -= {(topic, priority) for priority in LANES}
            self.forget_consumer(topic)
        else:
            self._settings.setdefault(topic, self._default_settings)
            if values is not None:
                self._settings[topic] = resolve_topic(self._default, values)
                self._own[topic] = values
        if before != self._settings.get(topic):
            self._notify(topic)

    def _notify(self, topic: str) -> None:
        for listener in tuple(self._listeners):
            listener(topic)


def _read(entry: Entry[bytes]) -> _Values:
    if not TOKEN.fullmatch(entry.key):
        raise MalformedMessage("a key is `default` or a topic")
    return parse_topic(entry.raw)
