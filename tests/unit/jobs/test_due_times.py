"""Due times: none lost, none early, each once, in order; memory bounded; and who fires."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from actors.jobs import stream as job_stream
from actors.jobs.rules.due_times import (
    EACH_MS,
    FEW,
    MARGIN_MS,
    MEMORY_MS,
    MOST_SHARED,
    PARTITIONS,
    PATIENCE_MS,
    UNKNOWN_TRIP_MS,
    Due,
    DueTimes,
    RoundTrips,
    may_fire,
    partition_of,
)

ALL = range(PARTITIONS)
TIMES = st.integers(0, 100_000)
NAMES = st.sampled_from([f"{topic}.{key}".encode() for topic in ("mail", "order") for key in range(40)])
JOBS = st.lists(st.tuples(TIMES, NAMES), max_size=60)
TOKENS = st.text("abcXYZ019_-", min_size=1, max_size=20)


def kept_of(jobs: list[tuple[int, bytes]], **options: int) -> DueTimes:
    times = DueTimes(**options)
    for partition in ALL:
        times.keep(partition)
    times.add(jobs)
    return times


@given(JOBS)
def test_a_partition_has_something_while_it_has_a_next_time(jobs: list[tuple[int, bytes]]) -> None:
    times = kept_of(jobs)
    assert [times.has_any(n) for n in ALL] == [times.next_ms((n,)) is not None for n in ALL]
    assert not DueTimes().has_any(0)


@given(JOBS, TIMES)
def test_what_is_due_is_taken_in_order_each_once_and_nothing_early(jobs: list[tuple[int, bytes]], now_ms: int) -> None:
    times = kept_of(jobs)
    taken = times.take(now_ms, 1_000, ALL)
    assert taken == sorted({Due(*job) for job in jobs if job[0] <= now_ms})
    rest = times.take(10**9, 1_000, ALL)
    assert {*taken, *rest} == {Due(*job) for job in jobs}
    assert len(times) == 0


@given(JOBS, st.integers(1, 10))
def test_taking_a_few_at_a_time_takes_the_same(jobs: list[tuple[int, bytes]], most: int) -> None:
    times, taken = kept_of(jobs), []
    while batch := times.take(10**9, most, ALL):
        assert len(batch) <= most
        taken += batch
    assert [due for due, before in zip(taken, [None, *taken], strict=False) if due != before] == kept_of(jobs).take(
        10**9, 1_000, ALL
    )


@given(JOBS, st.integers(1, 10))
def test_page_by_page_another_timer_gets_all_jobs_of_a_partition_and_none_is_taken(
    jobs: list[tuple[int, bytes]], most: int
) -> None:
    times = kept_of(jobs)
    for n in ALL:
        found, last = list[Due](), None
        while page := times.after(n, last, most):
            assert len(page) <= most
            found, last = found + page, page[-1]
        assert list(dict.fromkeys(found)) == sorted({Due(*job) for job in jobs if partition_of(job[1]) == n})
    assert len(times) == len(jobs)
    assert times.take(10**9, 1_000, ALL) == kept_of(jobs).take(10**9, 1_000, ALL)


def test_a_timer_that_dropped_jobs_or_has_too_many_passes_none_on() -> None:
    name = b"mail.1"
    many = kept_of([(n, name) for n in range(MOST_SHARED + 1)])
    assert many.after(partition_of(name), None, 1) is None
    assert many.after((partition_of(name) + 1) % PARTITIONS, None, 1) == []
    dropped = kept_of([(n, name) for n in range(100)], most_bytes=2_000)
    assert dropped.horizon_ms is not None
    assert dropped.after(partition_of(name), None, 1) is None


@given(JOBS)
def test_the_next_time_is_the_earliest(jobs: list[tuple[int, bytes]]) -> None:
    assert kept_of(jobs).next_ms(ALL) == min((due_ms for due_ms, _ in jobs), default=None)


@given(JOBS, st.frozensets(st.integers(0, PARTITIONS - 1)), st.frozensets(st.integers(0, PARTITIONS - 1)))
def test_only_partitions_that_are_kept_and_asked_for_are_taken_in(
    jobs: list[tuple[int, bytes]], kept: frozenset[int], only: frozenset[int]
) -> None:
    times = DueTimes()
    for partition in kept:
        times.keep(partition)
    times.add(jobs, only)
    assert times.kept == kept
    assert set(times.take(10**9, 1_000, ALL)) == {Due(*job) for job in jobs if partition_of(job[1]) in kept & only}
    times.add(jobs)
    for partition in kept:
        times.drop(partition)
    assert len(times) == 0
    assert times.next_ms(ALL) is None


@given(JOBS, TIMES, st.frozensets(st.integers(0, PARTITIONS - 1)), st.integers(1, 10))
def test_what_others_fire_is_passed_over_in_pieces_and_not_taken(
    jobs: list[tuple[int, bytes]], now_ms: int, others: frozenset[int], most: int
) -> None:
    times, ours = kept_of(jobs), frozenset(ALL) - others
    known = len(times)
    while passed := times.pass_over(now_ms, others, most):
        assert passed <= most
        assert len(times) == known - passed
        known = len(times)
    assert set(times.take(10**9, 1_000, ours)) == {Due(*job) for job in jobs if partition_of(job[1]) in ours}
    left = {Due(*job) for job in jobs if partition_of(job[1]) in others and job[0] > now_ms}
    assert times.next_ms(ours) is None
    assert times.next_ms(others) == min((due.due_ms for due in left), default=None)
    assert set(times.take(10**9, 1_000, ALL)) == left


@given(st.integers(-(10**18), 10**18))
def test_no_time_is_impossible(due_ms: int) -> None:
    taken = kept_of([(due_ms, b"a.b")]).take(10**18, 2, ALL)
    assert taken == ([Due(max(due_ms, 0), b"a.b")] if due_ms < 2**48 else [])


@given(JOBS, st.integers(300, 3_000))
def test_for_want_of_memory_the_later_jobs_go_and_the_earlier_stay(
    jobs: list[tuple[int, bytes]], most_bytes: int
) -> None:
    times = kept_of(jobs, most_bytes=most_bytes)
    end = times.horizon_ms
    known = set(times.take(10**9, 1_000, ALL))
    assert known == {Due(*job) for job in jobs if end is None or job[0] < end}
    assert sum(len(due.name) + 54 for due in known) <= most_bytes


class Model(RuleBasedStateMachine):
    """Runs beside a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.times = DueTimes()
        self.known: set[Due] = set()
        self.now_ms = 0

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def keep(self, partition: int) -> None:
        self.times.keep(partition)

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def drop(self, partition: int) -> None:
        self.times.drop(partition)
        self.known = {due for due in self.known if partition_of(due.name) != partition}

    @rule(due_ms=TIMES, name=NAMES)
    def add(self, due_ms: int, name: bytes) -> None:
        self.times.add([(due_ms, name)])
        if partition_of(name) in self.times.kept:
            self.known.add(Due(due_ms, name))

    @rule(passed_ms=st.integers(0, 20_000), most=st.integers(1, 20))
    def take(self, passed_ms: int, most: int) -> None:
        self.now_ms += passed_ms
        taken = set(self.times.take(self.now_ms, most, ALL))
        left = self.known - taken
        assert taken <= self.known
        assert all(due.due_ms <= self.now_ms for due in taken)
        assert len(taken) == most or all(due.due_ms > self.now_ms for due in left)
        self.known = left

    @invariant()
    def it_knows_what_comes_next(self) -> None:
        assert self.times.next_ms(ALL) == min((due.due_ms for due in self.known), default=None)


test_a_long_life = Model.TestCase
test_a_long_life.settings = settings(max_examples=30, stateful_step_count=30)


@given(TOKENS, TOKENS)
def test_those_who_add_and_those_who_fire_agree_on_the_partition(topic: str, key: str) -> None:
    assert partition_of(f"{topic}.{key}") == partition_of(f"{topic}.{key}".encode())
    assert partition_of(f"{topic}.{key}") == job_stream.partition_of(topic, key)
    assert job_stream.PARTITIONS == PARTITIONS


def test_a_stable_partition() -> None:
    assert [partition_of(f"mail.{n}") for n in range(10)] == [7, 1, 3, 5, 6, 0, 2, 4, 5, 3]


# ---- who fires


@given(st.floats(0, 1e13), st.floats(0, 1e13), st.floats(0, 1e4))
def test_what_may_fire_is_processed_before_the_server_fires(now_ms: float, server_ms: float, trip_ms: float) -> None:
    if may_fire(now_ms, server_ms, trip_ms):
        assert now_ms + trip_ms < server_ms


@given(st.integers(0, 10**13), st.floats(0, 100), st.floats(0, 100))
def test_waiting_never_makes_it_fire(now_ms: int, later_ms: float, trip_ms: float) -> None:
    server_ms = now_ms + 45
    if not may_fire(now_ms, server_ms, trip_ms):
        assert not may_fire(now_ms + later_ms, server_ms, trip_ms)


def test_on_time_it_fires_and_past_its_time_it_does_not() -> None:
    assert may_fire(1_000, 1_045, UNKNOWN_TRIP_MS)
    assert not may_fire(1_045 - MARGIN_MS + 0.1, 1_045, 0)
    assert not may_fire(1_000, 1_045, 40)


@given(st.lists(st.floats(0, 1_000), min_size=1, max_size=30), st.integers(0, 256))
def test_the_shortest_of_the_last_few_trips_counts_and_what_is_before_ours(trips: list[float], before: int) -> None:
    known = RoundTrips()
    for at_ms, trip_ms in enumerate(trips):
        known.took(trip_ms, at_ms)
    expected_ms = known.expected_ms(len(trips), before)
    assert expected_ms == min(trips[-FEW:]) + before * EACH_MS


@given(st.lists(st.floats(0, 1_000), max_size=30))
def test_the_next_waits_for_an_answer_that_takes_twice_the_usual(trips: list[float]) -> None:
    known = RoundTrips()
    for trip_ms in trips:
        known.took(trip_ms, 0)
    assert known.patience_ms(0) >= max(PATIENCE_MS, 2 * known.expected_ms(0, 0))
    assert known.patience_ms(2 * MEMORY_MS) == PATIENCE_MS


def test_after_a_slow_time_it_is_tried_again() -> None:
    known = RoundTrips()
    assert known.expected_ms(0, 0) == UNKNOWN_TRIP_MS
    for at_ms in range(20):
        known.took(400, at_ms)
    assert known.expected_ms(20, 0) == 400
    assert known.expected_ms(20 + MEMORY_MS, 0) == UNKNOWN_TRIP_MS
