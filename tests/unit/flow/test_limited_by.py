"""Why a flow does not reach its rate: one reason for each cause."""

import pytest

from actors.flow.flows import RoundReport
from actors.flow.rules.limited_by import FlowPace, Usage, limit_of

DEALT = {"n1": Usage(share=500.0, cores=0.3), "n2": Usage(share=500.0, cores=0.2)}
FULL_ROUND = RoundReport(began_ms=1, took_ms=900, in_flight=4_500, asked=5_000, new=5_000, shards=10)
PACE = FlowPace(
    rate=1_000.0,
    begun=600.0,
    in_flight=5_000,
    waiting=0,
    most_in_flight=100_000,
    is_capped=False,
    nodes=DEALT,
    silent=(),
    last=FULL_ROUND,
    rounds=5,
)
LOW = PACE._replace(in_flight=100)


def few(asked: int, new: int, *, short: int = 0, failed: int = 0) -> RoundReport:
    return RoundReport(began_ms=1, took_ms=4_900, asked=asked, new=new, shards=10, short=short, failed=failed)


@pytest.mark.parametrize(
    ("pace", "code"),
    [
        (PACE._replace(begun=950.0), None),
        (PACE._replace(rate=0.0), None),
        (PACE._replace(rounds=1), None),
        (PACE._replace(rounds=0, last=None, nodes={"n1": Usage(load=8.0)}), "machine"),
        (PACE._replace(nodes={}), "nobody"),
        (PACE._replace(silent=("n2",)), "silent"),
        (LOW._replace(last=few(5_000, 40, short=10)), "rows"),
        (LOW._replace(last=few(5_000, 40, short=6, failed=4)), "loads"),
        (LOW._replace(last=few(5_000, 1_200)), "loads"),
        (LOW._replace(last=RoundReport(began_ms=1, errors=("split: took more than 1000 ms",))), "loads"),
        (LOW._replace(last=RoundReport(began_ms=1, asked=5_000)), "rows"),
        (LOW._replace(last=RoundReport(began_ms=1, asked=5_000, shards=4, alone=4)), "loads"),
        (LOW._replace(is_capped=True), "most_in_flight"),
        (PACE._replace(is_capped=True, last=few(5_000, 5_000)), "most_in_flight"),
        (LOW._replace(waiting=3_000), "waiting"),
        (LOW, "round"),
        (PACE._replace(nodes={"n1": Usage(share=500.0)}), "share"),
        (PACE._replace(nodes={**DEALT, "n2": Usage(share=500.0, cores=0.97)}), "machine"),
        (PACE._replace(nodes={**DEALT, "n2": Usage(share=500.0, load=4.0)}), "machine"),
        (PACE, "workers"),
    ],
)
def test_one_thing_keeps_a_flow_from_its_rate(pace: FlowPace, code: str | None) -> None:
    found = limit_of(pace)
    assert (found and found.code) == code


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (RoundReport(began_ms=1, errors=("split: took more than 1000 ms",)), "split: took more than 1000 ms"),
        (RoundReport(began_ms=1, asked=5_000), "named no shard"),
        (RoundReport(began_ms=1, asked=5_000, shards=4, alone=4), "no live node is in the group of any shard"),
    ],
)
def test_the_reason_says_why_no_shard_was_asked(last: RoundReport, why: str) -> None:
    found = limit_of(LOW._replace(last=last))
    assert found is not None
    assert why in found.reason


def test_the_reason_says_how_much_a_full_node_uses() -> None:
    found = limit_of(PACE._replace(nodes={**DEALT, "n2": Usage(share=500.0, cores=0.97, load=1.2)}))
    assert found is not None
    assert "node n2 uses 0.97 of a core" in found.reason
