"""Handlers of jobs as users declare them: what is understood, and what is refused with a word on what to do."""

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import penstock
from actors.jobs.worker.job import Call
from penstock.errors import UsageError
from penstock.sdk import jobs
from streams.link.frames import Message
from streams.messages.jobs import JobRecord
from streams.pull.delivery import Delivery

if TYPE_CHECKING:
    from decimal import Decimal

REPLY = b"$JS.ACK.JOBS.c.1.17.42.1763715427233604179.9"


class Order(msgspec.Struct):
    number: int


class Holder:
    def send(self, frame: bytes) -> None: ...
    def settled(self, delivery: Delivery) -> None: ...
    async def ask(self, subject: str, payload: bytes, timeout_s: float) -> Message:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _no_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_handlers", {})


def job_of(body: bytes = b"null") -> penstock.Job:
    record = JobRecord(
        topic="t", id="one", due_ms=1_500, body=msgspec.Raw(body), added_ms=500, ttr_ms=60_000, most_attempts=10
    )
    return penstock.Job(record, Delivery(Holder(), b"t", REPLY, b"", None), 1, 10, Call())


def test_plain_declaration_has_the_defaults() -> None:
    @penstock.job("close-order")
    async def close(job: penstock.Job) -> None: ...

    handler = jobs.handlers()["close-order"]
    assert handler.take is close
    assert (handler.is_async, handler.concurrency, handler.most, handler.ttr_ms) == (True, 16, 1, None)
    assert handler.name.endswith("close")


@pytest.mark.parametrize(
    ("ttr", "ttr_ms"), [("90s", 90_000), (2, 2_000), (1.5, 1_500), (timedelta(minutes=5), 300_000)]
)
def test_ttr_is_a_text_a_number_of_seconds_or_a_timedelta(ttr: Any, ttr_ms: int) -> None:
    penstock.job("t", ttr=ttr, attempts=3)(lambda _job: None)
    handler = jobs.handlers()["t"]
    assert (handler.ttr_ms, handler.attempts, handler.is_async) == (ttr_ms, 3, False)


def test_methods_partials_and_callable_objects_can_handle() -> None:
    class Shop:
        async def close(self, job: penstock.Job) -> None: ...
        async def __call__(self, job: penstock.Job) -> None: ...

    async def close(_tax: int, job: penstock.Job) -> None: ...

    for topic, function in (("a", Shop().close), ("b", Shop()), ("c", functools.partial(close, 19))):
        penstock.job(topic)(function)
    assert [handler.is_async for handler in jobs.handlers().values()] == [True] * 3


async def test_annotated_body_is_decoded_and_the_job_comes_second() -> None:
    seen: list[object] = []

    @penstock.job("t")
    async def close(order: Order, job: penstock.Job) -> None:
        seen.append((order, job.id))

    await jobs.handlers()["t"].take(job_of(b'{"number": 7}'))
    assert seen == [(Order(7), "one")]
    with pytest.raises(penstock.Bury, match="Expected `int`"):
        await jobs.handlers()["t"].take(job_of(b'{"number": "seven"}'))


def test_any_type_that_can_be_decoded_will_do_for_a_body() -> None:
    seen: list[object] = []
    for number, (type_, body) in enumerate(((dict[str, int], b'{"a": 1}'), (int, b"3"), (list[str] | None, b"null"))):

        def handle(body: Any) -> None:
            seen.append(body)

        handle.__annotations__["body"] = type_
        penstock.job(f"t{number}")(handle)
        jobs.handlers()[f"t{number}"].take(job_of(body))
    assert seen == [{"a": 1}, 3, None]


async def test_list_of_bodies_leaves_out_and_buries_the_bad_ones() -> None:
    seen: list[object] = []

    @penstock.job("t", most=10)
    async def close(orders: list[Order], jobs: list[penstock.Job]) -> None:
        seen.extend(zip(orders, jobs, strict=True))

    handler = jobs.handlers()["t"]
    good, bad = job_of(b'{"number": 1}'), job_of(b"[]")
    await handler.take([good, bad])
    assert seen == [(Order(1), good)]
    assert isinstance(bad.answer, penstock.Bury)
    assert "not what the handler takes" in bad.answer.reason
    await handler.take([job_of(b"{}")])  # nothing is left: it is not called
    assert len(seen) == 1
    assert handler.concurrency == 4


def test_lists_can_be_annotated_as_sequences_or_not_at_all() -> None:
    def first(jobs: Sequence[penstock.Job]) -> None: ...
    def second(jobs: list) -> None: ...  # type: ignore[type-arg]  # as users may write it
    def third(jobs): ...  # type: ignore[no-untyped-def]  # likewise

    functions: list[Callable[..., Any]] = [first, second, third]
    for function in functions:
        penstock.job(function.__name__, most=2)(function)
        assert jobs.handlers()[function.__name__].take is function


def test_one_topic_has_one_handler() -> None:
    def close(job: penstock.Job) -> None: ...

    penstock.job("t")(close)
    assert penstock.job("t")(close) is close
    with pytest.raises(UsageError, match="can have one handler"):
        penstock.job("t")(lambda _job: None)


def generator(job: penstock.Job) -> Iterator[int]:
    yield 1


async def async_generator(job: penstock.Job) -> AsyncIterator[int]:
    yield 1


def takes_bytes(body: bytes) -> None: ...
def takes_nothing() -> None: ...
def takes_three(a: int, b: int, c: int) -> None: ...
def takes_keywords(job: penstock.Job, *, tax: int) -> None: ...
def takes_two_jobs(job: penstock.Job, again: penstock.Job) -> None: ...
def takes_what_cannot_be_had(body: "Decimal") -> None: ...
def takes_what_cannot_be_decoded(body: Callable[[], None]) -> None: ...
def takes_one(job: penstock.Job) -> None: ...


@pytest.mark.parametrize(
    ("options", "function", "says"),
    [
        ({}, generator, "it yields"),
        ({}, async_generator, "it yields"),
        ({}, takes_bytes, "has no bytes"),
        ({}, takes_nothing, "with the job"),
        ({}, takes_three, "with the job"),
        ({}, takes_keywords, "with the job"),
        ({}, takes_two_jobs, "takes the job twice"),
        ({}, takes_what_cannot_be_had, "cannot be looked up"),
        ({}, takes_what_cannot_be_decoded, "no body can be decoded"),
        ({"most": 2}, takes_one, "called with a list"),
        ({"most": 0}, lambda _jobs: None, "most: '0'"),
        ({"most": 1001}, lambda _jobs: None, "most: '1001'"),
        ({"concurrency": 0}, takes_one, "concurrency: '0'"),
        ({"concurrency": "16"}, takes_one, "concurrency: '16'"),
        ({"attempts": 0}, takes_one, "attempts: '0'"),
        ({"ttr": "60"}, takes_one, "has no unit"),
        ({"ttr": 0.5}, takes_one, "too short"),
        ({"ttr": "8d"}, takes_one, "not within"),
        ({"ttr": float("nan")}, takes_one, "not a duration"),
        ({"priorities": ("urgent",)}, takes_one, "lanes"),
        ({"priorities": ()}, takes_one, "name each lane once"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], function: Callable[..., Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        penstock.job("t", **options)(function)
    assert "job handler" in str(refused.value)
    assert jobs.handlers() == {}


@pytest.mark.parametrize("topic", ["", "a b", "a.b", "*", "x" * 65, "ü"])
def test_topic_that_is_no_token_is_refused(topic: str) -> None:
    with pytest.raises(UsageError, match="topic"):
        penstock.job(topic)(takes_one)


def test_decorator_without_a_topic_says_what_is_missing() -> None:
    decorate: Any = penstock.job
    with pytest.raises(UsageError, match=r"name its topic: @penstock\.job\('topic'\)"):
        decorate(takes_one)
    with pytest.raises(UsageError, match="name its topic"):
        decorate(None)(takes_one)
