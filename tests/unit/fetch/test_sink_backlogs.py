"""The gate, and the pages that tell why it is closed, count what waits before a sink in orders."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.rules.sink_backlogs import LONGEST_S, NODES, SinkBacklog, is_worth_a_look, sink_backlog, usual_size

names = st.sampled_from(["sink_a", "sink_b", "somebodys_own"])
sizes = st.floats(1, 500)


def test_pages_before_the_slowest_sink_are_counted_as_orders() -> None:
    pending = {"sink_a": 3, "sink_b": 40, "somebodys_own": 900}
    assert sink_backlog(pending, 12.5) == SinkBacklog("sink_b", 500)
    assert sink_backlog({"somebodys_own": 900}, 12.5) == SinkBacklog("", 0)


@given(st.dictionaries(names, st.integers(0, 1_000_000)), st.lists(sizes, min_size=1), st.integers(1, 100_000))
def test_a_page_tells_of_a_full_sink_only_when_every_gate_is_closed(
    pending: dict[str, int], known: list[float], most: int
) -> None:
    is_told = sink_backlog(pending, usual_size(known)).orders > most
    assert is_told == all(sink_backlog(pending, each).orders > most for each in known)


@given(st.integers(0, 10_000), st.integers(1, 100_000), st.floats(0, LONGEST_S, exclude_max=True))
def test_who_goes_without_a_look_has_filled_little_of_the_room(sent: int, room: int, since_s: float) -> None:
    assert is_worth_a_look(sent, room, since_s) == (sent * NODES >= room)
    assert is_worth_a_look(sent, room, LONGEST_S)
    assert is_worth_a_look(sent, 0, since_s)
