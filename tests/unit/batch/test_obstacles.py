"""Why a batch is not running: one reason for each state, with its end where that is known."""

from typing import Any

import pytest

from actors.batch.rules.obstacles import ALL_THERE, BatchWhy, ItemPlace, NoConsumer, why, why_item
from actors.batch.rules.record import Instance, OpenChunk, Seal
from actors.batch.tasks import TaskLimits
from streams.messages.batch import Counts

NOW_MS = 1_000_000
SEAL = Seal(fence=1, chunks=2, items=100, digest="")


def of(
    waits_for: str = "",
    running: int = 0,
    last_start_ms: int = 0,
    limits: TaskLimits | None = None,
    missing: NoConsumer = ALL_THERE,
    ahead: int = 0,
    part: float = 1.0,
    **given: Any,
) -> BatchWhy:
    record = Instance(instance_id="b1", task="mail", created_ms=1, **given)
    return why(
        record,
        limits or TaskLimits(),
        waits_for=waits_for,
        running=running,
        last_start_ms=last_start_ms,
        now_ms=NOW_MS,
        missing=missing,
        ahead=ahead,
        part=part,
    )


NO_STEPS, NO_CHUNKS = NoConsumer(steps="not unique"), NoConsumer(chunks="not unique")
AT_WORK: dict[str, Any] = {"state": "running", "seal": SEAL, "counts": Counts(succeeded=40)}


@pytest.mark.parametrize(
    ("told", "state", "code", "reason"),
    [
        (of(state="failed", reason="no file"), "failed", "over", "failed, no file"),
        (of(state="running", is_cancelling=True, is_paused=True), "cancelling", "cancelling", "cancelled"),
        (of(state="running", is_paused=True), "paused", "paused", "penstock batch resume b1"),
        (of(waits_for="waits: no process serves mail"), "pending", "nobody", "no process serves mail"),
        (of(running=10), "pending", "concurrency", "10 batches"),
        (of(running=9), "pending", "at_work", "its turn"),
        (of(limits=TaskLimits(main_concurrency=0), running=99), "pending", "at_work", "its turn"),
        (of(limits=TaskLimits(main_rate=0.5), last_start_ms=NOW_MS - 500), "pending", "rate", "0.5 batches"),
        (of(limits=TaskLimits(main_rate=0.5), last_start_ms=NOW_MS - 2_000), "pending", "at_work", "its turn"),
        (of(state="splitting"), "splitting", "at_work", "splitting, by one process"),
        (of(state="splitting", missing=NO_STEPS), "splitting", "consumer", "no splits and reduces of its task"),
        (of(state="splitting", missing=NO_CHUNKS), "splitting", "at_work", "splitting, by one process"),
        (of(missing=NO_STEPS), "pending", "at_work", "its turn"),
        (of(**AT_WORK), "running", "at_work", "40 have ended"),
        (of(**AT_WORK, missing=NO_STEPS), "running", "at_work", "40 have ended"),
        (of(**AT_WORK, missing=NO_CHUNKS), "running", "consumer", "no chunks of its task from the server"),
        (of(**AT_WORK, missing=NO_CHUNKS, limits=TaskLimits(item_rate=20.0)), "running", "consumer", "not unique"),
        (of(**AT_WORK, limits=TaskLimits(item_rate=20.0)), "running", "rate", "60 items are left, and 20 a second"),
    ],
)
def test_each_obstacle_has_its_code_and_says_what_to_know(told: BatchWhy, state: str, code: str, reason: str) -> None:
    assert (told.state, told.code) == (state, code)
    assert reason in told.reason


def test_the_end_of_an_obstacle_is_told_where_it_is_known() -> None:
    assert of(**AT_WORK, limits=TaskLimits(item_rate=20.0)).until_ms == NOW_MS + 3_000
    assert of(limits=TaskLimits(main_rate=0.5), last_start_ms=NOW_MS - 500).until_ms == NOW_MS + 1_500
    assert of(limits=TaskLimits(main_rate=0.5), last_start_ms=NOW_MS - 500, ahead=9).until_ms == NOW_MS + 19_500
    late = of(limits=TaskLimits(main_rate=0.5), last_start_ms=NOW_MS - 9_500, ahead=9)
    assert (late.code, late.until_ms) == ("rate", NOW_MS + 18_000)
    assert "0.5 batches of its task begin a second, and 9 others begin before it" in late.reason
    assert of(**AT_WORK, limits=TaskLimits(item_rate=20.0), part=0.25).until_ms == NOW_MS + 12_000
    waits = (
        OpenChunk(chunk=0, round=2, not_before_ms=NOW_MS + 9),
        OpenChunk(chunk=1, round=2, not_before_ms=NOW_MS + 4),
    )
    assert (of(**AT_WORK, open=waits).code, of(**AT_WORK, open=waits).until_ms) == ("retry", NOW_MS + 4)
    assert of(**AT_WORK, open=(OpenChunk(chunk=0, round=1), *waits)).code == "at_work"


def item(
    place: ItemPlace,
    *,
    index: int = 50,
    limits: TaskLimits | None = None,
    missing: NoConsumer = ALL_THERE,
    **given: Any,
) -> BatchWhy:
    record, batch = Instance(instance_id="b1", task="mail", created_ms=1, **given), of(limits=limits, **given)
    return why_item(batch, record, limits or TaskLimits(), index, place, NOW_MS, missing=missing)


HERE = ItemPlace(chunk=1)
RUNNING: dict[str, Any] = {**AT_WORK, "released": 2, "open": (OpenChunk(chunk=1, round=1),)}
LATER: dict[str, Any] = {**RUNNING, "open": (OpenChunk(chunk=1, round=2, not_before_ms=NOW_MS + 9),)}


@pytest.mark.parametrize(
    ("told", "code", "reason", "until_ms"),
    [
        (item(HERE._replace(status="failed", info='"no"'), **RUNNING), "over", 'failed, "no"', 0),
        (item(ItemPlace()), "at_work", "its turn", 0),
        (item(HERE, **RUNNING, is_paused=True), "paused", "resume b1", 0),
        (item(ItemPlace(), state="splitting"), "seal", "not committed yet", 0),
        (item(HERE, state="splitting"), "seal", "end of its batch's split", 0),
        (item(HERE, **{**RUNNING, "released": 1, "open": ()}), "turn", "in chunk 1; 1 chunks have begun", 0),
        (item(HERE._replace(status="again", info='"500"'), **LATER), "retry", '"500"', NOW_MS + 9),
        (item(HERE._replace(full="full"), **RUNNING), "slot", "full", 0),
        (item(HERE._replace(full="full"), **LATER), "slot", "full", NOW_MS + 9),
        (item(HERE, limits=TaskLimits(item_rate=2.0), **RUNNING), "rate", "one of about 11", NOW_MS + 5_500),
        (item(HERE, index=3, limits=TaskLimits(item_rate=2.0), **RUNNING), "rate", "one of about 1 that", NOW_MS + 500),
        (item(HERE, **RUNNING), "at_work", "has its chunk", 0),
        (item(HERE, **RUNNING, missing=NO_CHUNKS), "consumer", "not unique", 0),
        (item(HERE._replace(status="ok"), **RUNNING, missing=NO_CHUNKS), "over", "ok", 0),
        (item(HERE._replace(status="again"), **LATER, missing=NO_CHUNKS), "retry", "next try", NOW_MS + 9),
    ],
)
def test_one_thing_is_in_the_way_of_an_item(told: BatchWhy, code: str, reason: str, until_ms: int) -> None:
    assert (told.code, told.until_ms) == (code, until_ms)
    assert reason in told.reason
    assert told.item is not None
