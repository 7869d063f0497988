"""The job handlers of a node's flows."""

from actors.flow.flows import LONGEST_EVERY_MS
from penstock.node.flow.loads import FlowHandlers
from tests.support import flow_app  # it registers its flows


def test_a_round_may_take_as_long_as_the_longest_interval_that_a_person_may_set() -> None:
    """It asks its shards over most of the interval. Once its time to run is over, it is cut off and noted nowhere."""
    handlers = FlowHandlers()
    assert handlers.codes.keys() >= {"prizes"}, flow_app
    rounds = [handler for handler in handlers.job_handlers() if handler.name == "rounds"]
    assert len(rounds) == len(handlers.codes)
    assert all(handler.ttr_ms is not None and handler.ttr_ms > LONGEST_EVERY_MS for handler in rounds)
