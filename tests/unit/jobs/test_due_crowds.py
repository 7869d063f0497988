"""When the server fires what many jobs at once leave to it."""

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.jobs.rules.due_crowds import MOST_KEPT, MOST_LATER_MS, QUARTER_MS, ROOM, STEP, DueCrowds
from actors.jobs.rules.job_rules import BACKSTOP_MS

NOW = 1_800_000_000_000
MANY = 3 * ROOM + 5


def quarters(fires_ms: Iterable[int]) -> Counter[int]:
    """Return how many the server fires in each quarter of a second."""
    return Counter(each // QUARTER_MS for each in fires_ms)


def placed(crowds: DueCrowds, dues_ms: Iterable[int]) -> list[int]:
    """Return when the server fires each."""
    return [due_ms + BACKSTOP_MS + crowds.place(due_ms, now_ms=NOW) for due_ms in dues_ms]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, ROOM)), min_size=1, max_size=6))
def test_the_server_has_no_more_at_once_than_there_is_room_for(groups: list[tuple[int, int]]) -> None:
    crowds, dues_ms = DueCrowds(), [NOW + after_ms for after_ms, count in groups for _ in range(count)]
    fires_ms = placed(crowds, dues_ms)
    assert max(quarters(fires_ms).values()) <= ROOM
    assert all(fired >= due_ms + BACKSTOP_MS for due_ms, fired in zip(dues_ms, fires_ms, strict=True))


def test_a_crowd_is_fired_in_the_order_of_adding_without_a_pause() -> None:
    fires_ms = placed(DueCrowds(), [NOW] * MANY)
    assert fires_ms == sorted(fires_ms)
    assert fires_ms[:ROOM] == [NOW + BACKSTOP_MS] * ROOM
    assert fires_ms[-1] < NOW + 4 * QUARTER_MS
    assert list(quarters(fires_ms).values()) == [ROOM, ROOM, ROOM, 5]


def test_an_ordinary_load_keeps_its_times() -> None:
    dues_ms = [NOW + after_ms for after_ms in range(4_000) for _ in range(ROOM // QUARTER_MS)]
    assert placed(DueCrowds(), dues_ms) == [due_ms + BACKSTOP_MS for due_ms in dues_ms]


def test_programs_that_tell_one_another_share_the_room() -> None:
    one, other = DueCrowds(), DueCrowds()
    fires_ms = []
    for _ in range(MANY):
        for crowds, its_peer in ((one, other), (other, one)):
            fires_ms += placed(crowds, [NOW])
            if crowds.has_news:
                its_peer.heard(crowds.news(), now_ms=NOW)
    assert max(quarters(fires_ms).values()) <= ROOM + 2 * STEP
    late = DueCrowds()
    placed(one, [NOW] * STEP)
    late.heard(one.news(), now_ms=NOW)  # it has just started
    assert placed(late, [fires_ms[-1] - BACKSTOP_MS]) >= [max(fires_ms)]


def test_few_jobs_are_no_news() -> None:
    crowds = DueCrowds()
    placed(crowds, [NOW] * (STEP - 1))
    assert not crowds.has_news


def test_the_largest_crowd_is_fired_within_a_minute() -> None:
    crowds, own = DueCrowds(), (NOW + BACKSTOP_MS) // QUARTER_MS
    crowds.heard([(own + n, 0, ROOM) for n in range(MOST_LATER_MS // QUARTER_MS + 1)], now_ms=NOW)
    assert max(placed(crowds, [NOW] * 2)) <= NOW + BACKSTOP_MS + MOST_LATER_MS + QUARTER_MS


def test_of_many_times_the_crowded_ones_are_kept_in_mind() -> None:
    crowds = DueCrowds()
    placed(crowds, [NOW] * ROOM)
    for n in range(3 * MOST_KEPT):
        crowds.place(NOW + n * QUARTER_MS, now_ms=NOW)
        assert len(crowds) <= MOST_KEPT
    assert crowds.place(NOW, now_ms=NOW) > 0
    for n in range(MOST_KEPT):
        crowds.place(NOW + n * QUARTER_MS, now_ms=NOW + 3_600_000)
    assert crowds.place(NOW, now_ms=NOW) == 0, "what has passed goes first"
