"""A job as its handler sees it, and how a handler answers.

Everything here is for the handler's own task or thread, one at a time. None of it waits.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import msgspec.inspect

from actors.runtime.rules.setting_values import BadSetting, Duration, duration_text, span_ms
from streams.clock import monotonic_s, now_ms
from streams.messages.jobs import LONGEST_DELAY_MS, LONGEST_TTR_MS, SHORTEST_TTR_MS, JobRecord, Priority
from streams.pull.delivery import Delivery

T = TypeVar("T")


class Retry(Exception):
    """Raised by a handler: the attempt failed. The next one comes after `delay`. `None`: after the topic's backoff."""

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        self.delay_ms = None if delay is None else duration_ms("delay", delay, most=LONGEST_DELAY_MS)
        self.reason = str(reason)
        super().__init__(self.reason or "the handler asked for another attempt")


class Bury(Exception):
    """Raised by a handler: no further attempt can end otherwise. The job becomes a dead letter at once."""

    def __init__(self, reason: str = "") -> None:
        self.reason = str(reason)
        super().__init__(self.reason or "the handler buried it")


class BadBody(Bury):
    """The job's body is not of the type that the handler wants. Unless the handler catches it, it buries the job."""


class JobLost(Exception):
    """The job is not this handler's any more: its time is over, or the node could not hold it. Stop working on it."""


class Call:
    """One call of a handler: its time, shared by its jobs. Times are monotonic seconds."""

    __slots__ = ("began_s", "deadline_s", "is_lost", "is_over", "ttr_s")

    def __init__(self) -> None:
        self.ttr_s = self.began_s = self.deadline_s = 0.0
        self.is_lost = False
        self.is_over = False

    def begin(self, ttr_s: float, now_s: float) -> None:
        """Allow `ttr_s` from now on."""
        self.ttr_s = ttr_s
        self.began_s = now_s
        self.deadline_s = now_s + ttr_s


class Job:
    """A job in a handler's hands.

    Returning finishes it. Raising fails the attempt. A call of `retry` or `bury` counts in either case. A handler of
    lists answers for single jobs that way.
    """

    __slots__ = ("answer", "attempt", "call", "delivery", "most_attempts", "record")

    def __init__(self, record: JobRecord, delivery: Delivery, attempt: int, most_attempts: int, call: Call) -> None:
        self.record = record  # these two are for the node
        self.delivery = delivery
        self.call = call
        self.attempt = attempt
        """Which attempt this is, from 1."""
        self.most_attempts = most_attempts
        self.answer: Retry | Bury | None = None
        """The handler's answer for this job."""

    def __repr__(self) -> str:
        return f"Job({self.topic!r}, {self.id!r}, attempt={self.attempt})"

    @property
    def topic(self) -> str:
        return self.record.topic

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def priority(self) -> Priority:
        return self.record.priority

    @property
    def body(self) -> bytes:
        """The body's JSON text."""
        return bytes(self.record.body)

    def json(self) -> Any:
        """Return the body as plain values: dict, list, str, numbers, bool, None."""
        return msgspec.json.decode(self.record.body)

    def read(self, type_: type[T]) -> T:
        """Return the body as a value of this type, anything that msgspec can decode. Raises BadBody. Unless the handler
        catches it, it buries the job."""
        kind: Any = type_  # else mypy takes a class for unhashable
        value: T = read_body(self.record, decoder_of(kind))
        return value

    @property
    def due_ms(self) -> int:
        """When the job was due to be handed out, by the server's clock, in milliseconds since 1970."""
        return self.record.due_ms

    @property
    def due(self) -> datetime:
        return _moment(self.record.due_ms)

    @property
    def added(self) -> datetime:
        return _moment(self.record.added_ms)

    @property
    def is_lost(self) -> bool:
        """True once the job is not this handler's any more. Another one may have it, and work on it from now on does
        not count. An `async` handler is cancelled then. A plain one should check this from time to time."""
        return self.call.is_lost

    @property
    def left_s(self) -> float:
        """Seconds until the time to run is over. A handler that takes longer is cancelled."""
        return self.call.deadline_s - monotonic_s()

    @property
    def deadline(self) -> datetime:
        """When the time to run is over, by this machine's clock."""
        return _moment(now_ms() + round(self.left_s * 1000))

    def touch(self, ttr: Duration | None = None) -> None:
        """Begin the time to run anew, or have `ttr` from now on: for handlers whose time is not known. It holds for all
        jobs of a list. Raises JobLost if it is too late."""
        call = self.call
        if call.is_lost or call.is_over:
            raise JobLost(f"job {self.topic}/{self.id}: attempt {self.attempt} is over, it cannot be touched any more")
        call.deadline_s = monotonic_s() + (call.ttr_s if ttr is None else ttr_of(ttr) / 1000)

    def retry(self, delay: Duration | None = None, reason: str = "") -> None:
        """Let this attempt count as failed, whatever the handler returns. The next one comes after `delay`."""
        self._answer(Retry(delay, reason))

    def bury(self, reason: str = "") -> None:
        """Make the job a dead letter, whatever the handler returns."""
        self._answer(Bury(reason))

    def _answer(self, answer: Retry | Bury) -> None:
        if self.call.is_over:
            raise JobLost(f"job {self.topic}/{self.id}: attempt {self.attempt} is over, it has been answered for")
        self.answer = answer


def read_body(record: JobRecord, decode: Callable[[Any], T]) -> T:
    """Return the body as `decode` reads it. Raises BadBody."""
    try:
        return decode(record.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not what the handler takes: {error}") from error


@lru_cache(maxsize=256)
def decoder_of(type_: Any) -> Callable[[Any], Any]:
    """Return a function that decodes JSON to the type. Raises TypeError for a type that msgspec does not know."""
    if isinstance(msgspec.inspect.type_info(type_), msgspec.inspect.CustomType):
        raise TypeError(f"JSON has no form for {type_}")
    return msgspec.json.Decoder(type_).decode


def duration_ms(name: str, value: Duration, *, most: int) -> int:
    """Return whole milliseconds from 0 to `most`. Raises BadSetting, a ValueError."""
    found = span_ms(name, value)
    if not 0 <= found <= most:
        raise BadSetting(name, value, f"is not within 0 and {duration_text(most)}", "give one that is")
    return found


def ttr_of(value: Duration) -> int:
    """Return a time to run in milliseconds. Raises BadSetting, a ValueError."""
    found = duration_ms("ttr", value, most=LONGEST_TTR_MS)
    if found < SHORTEST_TTR_MS:
        raise BadSetting("ttr", value, "is too short", f"give at least {SHORTEST_TTR_MS} ms")
    return found


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC)
