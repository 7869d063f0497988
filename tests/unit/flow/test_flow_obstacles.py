"""Why a row is not executed: one reason for each of its states, with its end where that is known."""

import pytest

from actors.flow.flows import RoundReport
from actors.flow.rules.obstacles import RowJob, RowsProgress, RowWhy, why_row

NOW_MS = 1_000_000
BEGAN_MS = NOW_MS - 2_000
NEXT_MS = NOW_MS + 3_000
HAS_RUN = RoundReport(began_ms=BEGAN_MS, in_flight=10, asked=50, new=20, shards=2)


def of(
    job: RowJob | None = None,
    *,
    shard: str = "01",
    is_paused: bool = False,
    nodes: tuple[str, ...] = ("n1",),
    living: frozenset[str] = frozenset(),
    rounds: tuple[RoundReport, ...] = (HAS_RUN,),
    groups: dict[str, float | str] | None = None,
    busy_ms: int = 0,
    has_failed: bool = False,
    stopped: str = "",
) -> RowWhy:
    return why_row(
        "pay",
        shard,
        "7",
        job,
        RowsProgress(groups or {}, NEXT_MS, ("01", "02"), busy_ms, rounds[-1] if rounds else None, has_failed, stopped),
        is_paused=is_paused,
        serving=nodes,
        living=living,
        now_ms=NOW_MS,
    )


def failed(error: str) -> tuple[RoundReport, ...]:
    return (RoundReport(began_ms=BEGAN_MS, asked=50, errors=(error,)),)


@pytest.mark.parametrize(
    ("told", "state", "code", "reason", "until_ms"),
    [
        (of(RowJob("ready", "rate", "30 wait", 7)), "in_flight", "rate", "30 wait", 7),
        (of(RowJob("ready", "slot", "the one slot", 0)), "in_flight", "slot", "the one slot", 0),
        (of(RowJob("ready", "paused", "its topic", 0)), "in_flight", "paused", "penstock flows resume pay", 0),
        (of(RowJob("ready", "nobody", "", 0)), "in_flight", "nobody", "penstock work", 0),
        (of(RowJob("done", "over", "", 8, "buried")), "ended", "dead", "penstock dead list jobs/flow-rows-pay", 8),
        (of(RowJob("done", "over", "", 8, "finished")), "ended", "over", "executed lately; a later round", 0),
        (of(RowJob("done", "over", "", 8, "deleted")), "ended", "over", "it was deleted; a later round", 0),
        (of(RowJob("done", "over", "", 8, "dropped")), "ended", "over", "dropped, since its key had no free slot", 8),
        (of(RowJob("done", "over", "", 8, "cancelled")), "ended", "over", "not loaded again within an hour", 8),
        (of(RowJob("done", "over", "", 8, "expired")), "ended", "over", "expired before it was executed", 8),
        (of(is_paused=True), "not_loaded", "paused", "penstock flows resume pay", 0),
        (of(nodes=()), "not_loaded", "nobody", "no live node serves", 0),
        (of(rounds=()), "not_loaded", "begin", "no round yet", 0),
        (of(stopped="its schedule"), "not_loaded", "stopped", "its schedule", 0),
        (of(stopped="its schedule", is_paused=True), "not_loaded", "paused", "penstock flows resume pay", 0),
        (of(stopped="its schedule", rounds=()), "not_loaded", "stopped", "its schedule", 0),
        (of(rounds=failed("split: no file")), "not_loaded", "split", "split: no file", NEXT_MS),
        (of(shard="03"), "not_loaded", "shard", "named 2 others", 0),
        (of(groups={"a": "EVEN"}, living=frozenset("a")), "not_loaded", "group", "shard's group, of a", 0),
        (of(groups={"a": "ODD"}, living=frozenset()), "not_loaded", "group", "no live node", 0),
        (of(groups={"a": "ODD"}, living=frozenset("a")), "not_loaded", "round", "20 of the 50", NEXT_MS),
        (of(busy_ms=NOW_MS + 9), "not_loaded", "load", "did not answer", NOW_MS + 9),
        (of(rounds=failed("01: locked")), "not_loaded", "load", "01: locked", NEXT_MS),
        (
            of(rounds=failed("02: locked"), has_failed=True),
            "not_loaded",
            "load",
            "the last load of its shard failed; of another: 02: locked",
            NEXT_MS,
        ),
        (of(has_failed=True), "not_loaded", "load", "the last load of its shard failed", NEXT_MS),
        (of(rounds=failed("02: locked")), "not_loaded", "round", "if `load` returns it", NEXT_MS),
        (
            of(rounds=(RoundReport(began_ms=BEGAN_MS, in_flight=90, target=90),)),
            "not_loaded",
            "full",
            "ask for: 90 in flight",
            NEXT_MS,
        ),
    ],
)
def test_one_thing_is_in_the_way_of_a_row(told: RowWhy, state: str, code: str, reason: str, until_ms: int) -> None:
    assert (told.state, told.code, told.until_ms) == (state, code, until_ms)
    assert reason in told.reason
    assert (told.flow, told.key) == ("pay", "7")
