"""Which of two versions is the older one, as people read them."""

import itertools

import pytest

from actors.batch.rules.obstacles import NoConsumer
from actors.batch.rules.versions import is_older, newest
from actors.batch.versions import missing_consumers
from actors.runtime.membership import NodeRecord
from streams.subjects import Namespace
from streams.topology.specs import batch_consumers

ORDER = ["", "beta", "1.rc2", "1", "1.9", "1.10", "1.10.1", "2", "2025-12-01", "2026-01-01"]


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ORDER, 2)))
def test_numbers_count_by_their_value_and_none_is_the_oldest(one: str, other: str) -> None:
    assert is_older(one, other)
    assert not is_older(other, one)


@pytest.mark.parametrize(("one", "other"), [("1.0", "1.0"), ("", ""), ("v1", "v1"), ("1.2", "1.2")])
def test_the_same_is_not_older(one: str, other: str) -> None:
    assert not is_older(one, other)


def test_the_newest_of_some() -> None:
    assert newest(["1.9", "1.10", ""]) == "1.10"
    assert newest([]) is None


def test_work_is_missing_only_if_every_node_that_serves_the_task_gets_none() -> None:
    namespace = Namespace("penstock")
    _, chunks = batch_consumers(namespace, "mail")

    def missing(*unmade: dict[str, str]) -> NoConsumer:
        serving = [NodeRecord(node=f"n{at}", run="r", tasks=("mail",), unmade=each) for at, each in enumerate(unmade)]
        others = [NodeRecord(node="other", run="r", tasks=("post",))]
        return missing_consumers([*serving, *others], namespace, "mail")

    assert missing() == NoConsumer()
    assert missing({chunks.name: "not unique"}, {}) == NoConsumer()
    assert missing({chunks.name: "not unique"}, {chunks.name: "no"}) == NoConsumer(chunks="not unique")
