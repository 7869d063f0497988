"""The judge of histories: a sound history of every kind of call passes, and each kind of fault is told by its name."""

from typing import Any

import pytest

from tests.support.job_history import LATEST_MS, Kill, Op, judge

TTR_MS = 1_000


def op(what: Any, began_ms: int, *, took_ms: int = 10, token: str = "", **more: Any) -> Op:
    return Op(what=what, topic="t", id="1", began_ms=began_ms, ended_ms=began_ms + took_ms, token=token, **more)


def add(began_ms: int = 0, token: str = "a", **more: Any) -> Op:
    return op("add", began_ms, token=token, **more)


def run(began_ms: int, attempt: int = 1, token: str = "a", **more: Any) -> Op:
    held = {"until_ms": began_ms + TTR_MS, "receipt": f"{token}{attempt}", **more}
    return op("run", began_ms, token=token, attempt=attempt, **held)


def settle(what: Any, began_ms: int, attempt: int = 1, token: str = "a", **more: Any) -> Op:
    return op(what, began_ms, token=token, attempt=attempt, **{"receipt": f"{token}{attempt}", **more})


END = (run(800_000, 99), settle("finish", 800_100, 99))
"""So that what a history is not about is not lost at its end."""

SOUND: dict[str, tuple[Op, ...]] = {
    "finished": (add(), run(20), settle("finish", 50), settle("finish", 90), op("peek", 200, told="not found")),
    "run again after its TTR, and the first is refused": (
        add(),
        run(20),
        run(1_600, 2),
        settle("finish", 1_700, 1, told="stale"),
        settle("finish", 1_800, 2),
    ),
    "touched and held for longer": (
        add(),
        run(20),
        settle("touch", 900, until_ms=2_000),
        settle("finish", 1_900),
        op("delete", 2_000, told="not found"),
    ),
    "given back, and due later": (add(), run(20), settle("release", 50, delay_ms=500), run(700, 2), *END),
    "deleted": (add(delay_ms=9_000), op("delete", 50), op("delete", 90, told="not found")),
    "deleted while it was held": (add(), run(20), op("delete", 50), settle("finish", 90, told="stale")),
    "an id anew": (
        add(),
        run(20),
        settle("finish", 50),
        add(90, "b"),
        run(120, token="b"),
        settle("finish", 200, 1, "b"),
    ),
    "kept beside the first": (add(), add(20, "b", told="kept"), *END),
    "replaced": (
        add(delay_ms=9_000),
        add(50, "b", on_same="replace"),
        run(90, token="b"),
        settle("finish", 120, 1, "b"),
    ),
    "unknown, and it was done": (add(told="unknown"), run(50), settle("finish", 90, told="unknown")),
    "unknown, and it was not done": (add(told="unknown"), op("delete", 50, told="not found")),
    "finished by its id": (add(), run(20, 0, receipt="pop"), op("finish by id", 50)),
    "a late answer": (add(took_ms=9_000), run(20), settle("finish", 50), add(9_500, "b", told="not done")),
    "ended while somebody waited": (add(), op("run", 20, took_ms=500, token="a", attempt=1), op("delete", 300), *()),
    "handled again after its node was killed": (
        add(),
        op("run", 20, token="a", attempt=1),
        op("run", 900, token="a", attempt=2),
        op("handled", 950, token="a", attempt=2),
    ),
    "a delete of unknown outcome takes it later": (op("delete", 0, told="unknown"), add(50)),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_history_breaks_nothing(name: str) -> None:
    assert [str(broken) for broken in judge(SOUND[name])] == []


BROKEN: dict[str, tuple[str, tuple[Op, ...]]] = {
    "one add, run twice as its first run": ("two runs of the same attempt", (add(), run(20), run(700, 1), *END)),
    "deleted, and there again": ("handed out after its end", (add(), op("delete", 50), run(90))),
    "finished, and handed out again": (
        "handed out after its end",
        (add(), run(20), settle("finish", 50), run(1_600, 2)),
    ),
    "buried, and handed out again": ("handed out after its end", (add(), run(20), settle("bury", 50), run(1_600, 2))),
    "another of its id was taken, and it came again": (
        "handed out after its end",
        (add(), add(50, "b"), run(90), settle("finish", 120), run(150, token="b"), settle("finish", 200, 1, "b")),
    ),
    "finished by its id, and handed out again": (
        "handed out after its end",
        (add(), run(20, 0), op("finish by id", 50), run(1_600, 2), *END),
    ),
    "deleted, and shown": ("there after its end", (add(), op("delete", 50), op("peek", 90, token="a"))),
    "deleted, and finished": ("settled after its end", (add(), run(20), op("delete", 50), settle("finish", 90))),
    "finished by the receipt of an earlier run": (
        "settled by an earlier receipt",
        (add(), run(20), run(1_600, 2), settle("finish", 1_700, 1)),
    ),
    "finished five seconds after its TTR": ("settled after its hold", (add(), run(20), settle("finish", 1_400))),
    "finished after it was given back": (
        "settled after it was given back",
        (add(), run(20), settle("release", 50), settle("finish", 90)),
    ),
    "finished by two": (
        "ended twice",
        (add(), run(20), run(1_600, 2), settle("finish", 1_601, 1), settle("finish", 1_601, 2)),
    ),
    "handed out 600 ms early": ("handed out before it was due", (add(delay_ms=2_000), run(1_380), *END)),
    "early after a release": (
        "handed out before it was due",
        (add(), run(20), settle("release", 50, delay_ms=2_000), run(1_400, 2), *END),
    ),
    "taken from its holder": ("handed out while another held it", (add(), run(20), run(500, 2), *END)),
    "taken though it was touched": (
        "handed out while another held it",
        (add(), run(20), settle("touch", 900, until_ms=5_000), run(1_600, 2), *END),
    ),
    "refused though it was held": (
        "told stale while it held",
        (add(), run(20), settle("finish", 50, told="stale"), *END),
    ),
    "told not done, and it was": (
        "told not done, and it was done",
        (add(told="not done"), run(50), settle("finish", 90)),
    ),
    "told kept, and it was not": (
        "told not done, and it was done",
        (add(), add(20, "b", told="kept"), run(50, token="b"), settle("finish", 90, 1, "b"), *END),
    ),
    "accepted and gone": ("lost", (add(),)),
    "run once and gone": ("lost", (add(), run(20), settle("finish", 90, told="stale", took_ms=5_000))),
    "a delete that was told not done": ("lost", (add(), op("delete", 50, told="not done"))),
    "kept beside nothing": (
        "told of one, and none was there",
        (add(), run(20), settle("finish", 50), add(90, "b", told="kept")),
    ),
    "deleted and there was none": (
        "told of one, and none was there",
        (add(), run(20), settle("finish", 50), op("delete", 90)),
    ),
    "not found though there": ("not found, and it was there", (add(), op("peek", 50, told="not found"), *END)),
    "not deleted though there": ("not found, and it was there", (add(), op("delete", 50, told="not found"), *END)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_told_by_its_rule(name: str) -> None:
    rule, history = BROKEN[name]
    assert rule in {broken.rule for broken in judge(history)}


def test_what_is_still_under_way_is_not_lost_yet() -> None:
    assert judge([add()], is_over=False) == []


def test_what_was_never_seen_is_not_expected_to_come_for_ever() -> None:
    late_ms = LATEST_MS + 20
    never = [
        add(told="unknown"),
        add(late_ms, "b"),
        run(late_ms + 20, token="b"),
        settle("finish", late_ms + 50, 1, "b"),
    ]
    kept = add(late_ms + 90, "c", told="kept")
    assert [broken.rule for broken in judge([*never, kept])] == ["told of one, and none was there"]


def test_ids_and_topics_are_apart() -> None:
    other = Op(what="delete", topic="other", id="1", began_ms=50, ended_ms=60, told="not found")
    assert [broken.rule for broken in judge([add(), other, *END])] == []


@pytest.mark.parametrize(
    ("kills", "is_excused"),
    [
        ([Kill(100), Kill(900, pid=7)], True),
        ([Kill(100)], False),
        ([Kill(900, pid=7)], False),
        ([Kill(100), Kill(900, pid=8)], False),
        ([Kill(500), Kill(900, pid=7)], False),
        ([Kill(100), Kill(3_900, pid=7)], False),
    ],
)
def test_two_first_runs_are_excused_by_both_deaths_alone(kills: list[Kill], is_excused: bool) -> None:
    """The server's just then, and the holder's before the second run."""
    runs = [run(80, receipt="7", until_ms=0), run(3_000, receipt="8", until_ms=0)]
    broken = judge([add(), *runs, settle("handled", 3_100, receipt="8")], kills=kills)
    assert (broken == []) is is_excused
