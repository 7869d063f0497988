"""The work of an instance that is due, as pointers in the work queue WORK.

A pointer's subject names the piece of work, and must not exist. So work that several nodes offer waits there once. The
times of the last offers are a cache that saves repeats.
"""

import logging
from collections.abc import Iterator
from typing import Literal

from actors.batch.rules.record import Instance
from actors.batch.versions import is_too_new, newest_version, version_of
from actors.runtime.logs import fields
from actors.runtime.membership import Members
from streams.clock import Clock
from streams.errors import Refused, RevisionConflict
from streams.messages.batch import Pointer, encode_message
from streams.publish.publisher import Outgoing, Publisher
from streams.subjects import Namespace

log = logging.getLogger(__name__)

MUST_NOT_EXIST = {"Nats-Expected-Last-Subject-Sequence": "0"}
REOFFER_MS = 15_000


class Offers:
    """The offers of one conductor."""

    def __init__(self, publisher: Publisher, members: Members, namespace: Namespace, clock: Clock) -> None:
        self._publisher = publisher
        self._members = members
        self._namespace = namespace
        self._clock = clock
        self._offered: dict[str, dict[str, int]] = {}
        self._waiting: set[str] = set()

    def forget(self, instance_id: str) -> None:
        """Forget an instance that is over, or removed."""
        self._offered.pop(instance_id, None)
        self._waiting.discard(instance_id)

    async def offer(self, record: Instance) -> None:
        """Offer what is due and was not offered lately. Raises the broker's errors. Then offer it again."""
        now_ms, known = self._clock.now_ms(), self._offered.get(record.instance_id, {})
        due = dict(self._pointers(record, now_ms))
        fresh = {subject: pointer for subject, pointer in due.items() if known.get(subject, 0) + REOFFER_MS <= now_ms}
        offers = [
            Outgoing(subject, encode_message(pointer), f"{subject}.{self._members.name}.{now_ms}", MUST_NOT_EXIST)
            for subject, pointer in fresh.items()
        ]
        for answer in await self._publisher.publish_many(offers):
            if isinstance(answer, Refused) and not isinstance(answer, RevisionConflict):
                raise answer
        self._offered[record.instance_id] = {subject: now_ms if subject in fresh else known[subject] for subject in due}

    def _pointers(self, record: Instance, now_ms: int) -> Iterator[tuple[str, Pointer]]:
        """Yield the work that is due now, each with the one subject on which it may wait."""
        task, instance_id, namespace = record.task, record.instance_id, self._namespace
        may_run = record.is_cancelling or self.has_worker(record)
        is_step = record.state in ("splitting", "reducing") and record.step_not_before_ms <= now_ms
        if is_step and not record.is_paused and may_run and not record.is_cancelling:
            step: Literal["split", "reduce"] = "split" if record.state == "splitting" else "reduce"
            fence = record.step_fence
            pointer = Pointer(step=step, task=task, instance_id=instance_id, fence=fence)
            yield namespace.subject("work", "batch", task, step, instance_id, str(fence)), pointer
        for each in record.open:
            if each.not_before_ms <= now_ms and may_run and not record.is_paused:
                place = f"{each.chunk}_{each.round}"
                pointer = Pointer(step="map", task=task, instance_id=instance_id, chunk=each.chunk, round=each.round)
                yield namespace.subject("work", "batch", task, "map", instance_id, place), pointer

    def has_worker(self, record: Instance) -> bool:
        """Return whether a live node has new enough code for the instance, or no node serves the task: then the next
        one that does finds the pointers. Pointers that are not offered do not block older instances."""
        if not is_too_new(self._members, record):
            self._waiting.discard(record.instance_id)
            return True
        if record.instance_id not in self._waiting:
            self._waiting.add(record.instance_id)
            newest = newest_version(self._members, record.task)
            facts = fields(instance=record.instance_id, task=record.task, needs=version_of(record), newest=newest)
            log.warning("instance.waits_for_version", extra=facts)
        return False
