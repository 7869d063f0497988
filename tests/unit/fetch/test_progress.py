"""Which consumers are stuck."""

from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.progress import Progress, Stuck
from streams.pull.backlog import ConsumerState


def state(delivered: int = 5, *, pending: int = 1, pulls: int = 1, name: str = "c") -> ConsumerState:
    return ConsumerState(
        name, pending=pending, in_hand=0, pulls=pulls, delivered=delivered, ack_floor=0, subjects=(">",)
    )


def test_a_consumer_is_stuck_once_nothing_comes_though_somebody_pulls() -> None:
    progress = Progress(30)
    assert progress.look("S", [state()], 0) == []
    assert progress.look("S", [state()], 29.9) == []
    assert progress.look("S", [state(pending=7)], 30) == [Stuck("S", "c", 7, 30, False)]
    assert progress.look("S", [state(pending=8)], 60) == []
    assert progress.look("S", [state(delivered=6)], 61) == [Stuck("S", "c", 1, 0, True)]
    assert progress.look("S", [state(delivered=6)], 92) == [Stuck("S", "c", 1, 31, False)]


def test_a_consumer_that_nobody_asks_or_that_is_empty_is_not_stuck() -> None:
    progress = Progress(30)
    for at_s in range(0, 300, 10):
        assert progress.look("S", [state(pulls=0), state(pending=0, name="d")], at_s) == []


def test_a_consumer_that_was_deleted_is_forgotten() -> None:
    progress = Progress(30)
    progress.look("S", [state()], 0)
    progress.look("S", [], 10)
    assert progress.look("S", [state()], 40) == []
    assert progress._seen.keys() == {("S", "c")}


def test_streams_do_not_disturb_each_other() -> None:
    progress = Progress(30)
    progress.look("S", [state()], 0)
    progress.look("T", [state()], 20)
    assert [stuck.stream for stuck in progress.look("S", [state()], 30)] == ["S"]
    assert progress.look("T", [state()], 30) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 1), st.integers(1, 20)), max_size=50))
def test_stuck_and_free_alternate(looks: list[tuple[int, int, int, int]]) -> None:
    progress, at_s, delivered, told = Progress(30), 0, 0, list[bool]()
    for step, pending, pulls, wait_s in looks:
        at_s, delivered = at_s + wait_s, delivered + step
        told += [one.is_over for one in progress.look("S", [state(delivered, pending=pending, pulls=pulls)], at_s)]
    assert told == [bool(number % 2) for number in range(len(told))]
