"""The mark that says up to when the server has fired: what follows it, over restarts and clocks that are set."""

from hypothesis import given
from hypothesis import strategies as st

from actors.jobs.firing_mark import MARGIN_MS, MOST_RESTARTS, next_mark
from actors.jobs.refirings import Mark, Restart

UNSEEN = Mark(server="", due_ms=0)
NOW = 1_800_000_000_000

steps = st.lists(
    st.tuples(
        st.booleans(),  # the server is started anew before it
        st.integers(1, 10_000),  # how much later
        st.booleans(),  # our link broke in between
        st.booleans(),  # another node leads
    ),
    min_size=1,
    max_size=30,
)


@given(steps)
def test_nothing_above_what_was_seen_fired_is_told_as_fired(steps: list[tuple[bool, int, bool, bool]]) -> None:
    server, now_ms, cut_ms = 0, NOW, 0
    mark, seen = next_mark(None, server="0", now_ms=now_ms, cut_ms=0, seen=UNSEEN), UNSEEN
    ends: list[tuple[int, int]] = []  # of each life: its last mark, and when the next one began at the latest
    for is_restart, later_ms, is_cut, is_new_leader in steps:
        before = mark
        now_ms += later_ms
        if is_cut:
            cut_ms = now_ms - 1
        if is_restart:
            server += 1
            ends.append((before.due_ms, now_ms))
        seen = UNSEEN if is_new_leader else before
        mark = next_mark(before, server=str(server), now_ms=now_ms, cut_ms=cut_ms, seen=seen)
        assert mark.fired_ms <= before.due_ms - MARGIN_MS or mark.fired_ms == 0
        assert (mark.fired_ms == 0) == is_restart
        assert len(mark.restarts) == min(len(ends), MOST_RESTARTS)
    for restart, (last_ms, latest_ms) in zip(mark.restarts[::-1], ends[::-1], strict=False):
        assert restart.fired_ms <= last_ms - MARGIN_MS
        assert last_ms <= restart.from_ms <= latest_ms
    assert list(mark.restarts) == sorted(mark.restarts)


def test_where_the_servers_clock_was_set_back_nothing_is_known() -> None:
    before = Mark(server="1", due_ms=NOW, fired_ms=NOW - 2_000, restarts=(Restart(NOW - 9_000, NOW - 9_500),))
    for server in ("1", "2"):
        mark = next_mark(before, server=server, now_ms=NOW - 60_000, cut_ms=0, seen=before)
        assert (mark.fired_ms, mark.restarts) == (0, ())


def test_a_leader_that_lived_on_knows_more_than_the_mark() -> None:
    before = Mark(server="1", due_ms=NOW, fired_ms=NOW - 2_000)
    later = next_mark(before, server="2", now_ms=NOW + 9_000, cut_ms=NOW + 700, seen=before)
    assert later.restarts == (Restart(NOW + 700, NOW - MARGIN_MS),)
    other = next_mark(before, server="2", now_ms=NOW + 9_000, cut_ms=0, seen=UNSEEN)
    assert other.restarts == (Restart(NOW, NOW - 2_000),)
