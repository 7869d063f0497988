"""How large the chunks of a task with a rate are."""

from actors.batch.executor.lanes import chunk_size


def test_the_chunks_of_a_slow_task_are_small() -> None:
    assert [chunk_size(1000, per_s) for per_s in (0.0, 0.1, 10.0, 500.0, 9_000.0)] == [1000, 1, 10, 100, 1000]
    assert chunk_size(4, 10.0) == 4
