"""Why a job is not running: each state has one reason, and the reason that holds longest is the one that is told."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.rules.job_answers import Listed
from actors.jobs.rules.obstacles import JobWhy, Queue, why
from actors.jobs.rules.topic_settings import TopicSettings

NOW_MS = 1_000_000
WAITING = Queue(is_delivered=False, waiting=30)
AT_A_NODE = Queue(is_delivered=True, waiting=0)
NOT_YET = Queue(is_delivered=False, waiting=0)
FULL = "the one slot of its key 'x' is taken: n2 has 1"


def of(state: str = "ready", queue: Queue = WAITING, nodes: tuple[str, ...] = ("n1",), **given: Any) -> JobWhy:
    names = TopicSettings.__struct_fields__
    settings = TopicSettings(**{name: value for name, value in given.items() if name in names and name != "attempts"})
    known = {name: value for name, value in given.items() if name not in names or name == "attempts"}
    job = Listed(topic="mail", id="1", state=state, **known)  # type: ignore[arg-type]  # a state, as text
    return why(job, settings, queue, nodes, NOW_MS)


@pytest.mark.parametrize(
    ("told", "code", "reason"),
    [
        (of("done", outcome="buried"), "over", "buried"),
        (of("reserved", holder="me", attempts=1, most_attempts=3), "held", "me holds it for attempt 1 of 3"),
        (of("delayed", due_ms=NOW_MS + 5), "due", "not due"),
        (of("delayed", due_ms=NOW_MS - 3_000), "due", "it was due at 1970-01-01T00:16:37Z, and no timer"),
        (of("delayed", due_ms=NOW_MS - 3_000, attempts=1), "due", "penstock doctor"),
        (of("delayed", due_ms=NOW_MS - 500), "due", "not due"),
        (of("delayed", NOT_YET._replace(is_put_off=True, full=FULL), due_ms=NOW_MS - 3_000), "slot", "n2 has 1"),
        (of("reserved", holder="me", until_ms=NOW_MS - 3_000), "held", "its time to run was over at 1970"),
        (of("delayed", attempts=2, most_attempts=3, history=("no", "still no")), "retry", "2 of 3 failed: still no"),
        (of(expires_ms=NOW_MS), "expired", "dropped"),
        (of(is_paused=True), "paused", "penstock jobs topic mail --resume"),
        (of(is_paused=True, queue=AT_A_NODE), "paused", "may still run it"),
        (of(nodes=()), "nobody", "penstock work"),
        (of(queue=AT_A_NODE, rate=5.0), "at_work", "(n1)"),
        (of(queue=AT_A_NODE._replace(held=40), rate=5.0), "rate", "the nodes have 40, and 5 a second begin"),
        (of(queue=AT_A_NODE, nodes=("b", "d", "a", "c", "e")), "at_work", "(a, b, c and 2 more)"),
        (of(queue=WAITING._replace(full=FULL), rate=10.0), "slot", "n2 has 1"),
        (of(queue=AT_A_NODE._replace(full=FULL)), "slot", "has it wait"),
        (of(queue=WAITING._replace(full=FULL), is_paused=True), "paused", "--resume"),
        (of("delayed", NOT_YET._replace(is_put_off=True, full=FULL), attempts=1), "slot", "n2 has 1"),
        (of("delayed", NOT_YET._replace(is_put_off=True)), "slot", "looked at again"),
        (of("delayed", NOT_YET._replace(is_put_off=True), attempts=1, most_attempts=3), "slot", "looked at again"),
        (of(rate=10.0), "rate", "30 ready jobs"),
        (of(), "turn", "30 ready jobs"),
    ],
)
def test_each_obstacle_has_its_code_and_says_what_to_know(told: JobWhy, code: str, reason: str) -> None:
    assert told.code == code
    assert reason in told.reason


def test_the_end_of_an_obstacle_is_told_where_it_is_known() -> None:
    assert of("delayed", due_ms=NOW_MS + 5).until_ms == NOW_MS + 5
    assert of("reserved", until_ms=NOW_MS + 7).until_ms == NOW_MS + 7
    assert of(rate=10.0).until_ms == NOW_MS + 3_000
    assert of(rate=10.0, queue=WAITING._replace(ahead=1)).until_ms == NOW_MS + 100, "it is the next one"
    assert of(rate=10.0, queue=WAITING._replace(ahead=900)).until_ms == NOW_MS + 3_000
    assert of().until_ms == 0


@given(
    st.sampled_from(["delayed", "ready", "reserved", "done"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 100.0]),
    st.sampled_from([(), ("n1",)]),
    st.integers(0, 5),
)
def test_a_ready_job_alone_is_kept_by_its_topic(
    state: str, is_paused: bool, is_delivered: bool, rate: float, nodes: tuple[str, ...], attempts: int
) -> None:
    told = of(state, Queue(is_delivered, 3), nodes, is_paused=is_paused, rate=rate, attempts=attempts, most_attempts=9)
    of_topic = told.code in ("paused", "nobody", "rate", "turn", "at_work")
    assert of_topic == (state == "ready")
    assert (told.code == "paused") == (state == "ready" and is_paused)
    assert told.state == state
