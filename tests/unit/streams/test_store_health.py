"""What a server says of its store, and what is done with it."""

import pytest

from streams.errors import StoreFailed, StoreFull
from streams.link.store_health import StoreState, reserve_of, why_failed


def stream_error(stream: str, error: str) -> dict[str, str]:
    return {"type": "STREAM", "account": "$G", "stream": stream, "error": error}


def test_a_write_error_is_told_without_the_servers_paths() -> None:
    told = stream_error("JOBS", "JetStream stream '$G > JOBS' write error: write /srv/1.blk: no space left on device")
    assert why_failed({"status": "error", "errors": [told]}) == "JOBS: no space left on device"


def test_many_are_counted() -> None:
    told = [stream_error(f"S{number}", "x write error: y: input/output error") for number in range(5)]
    assert why_failed({"errors": told}).endswith(", and 2 more")


@pytest.mark.parametrize("health", [{}, {"errors": None}, {"errors": [stream_error("JOBS", "stream is not current")]}])
def test_what_is_no_error_of_writing_is_no_failure(health: dict[str, object]) -> None:
    assert why_failed(health) == ""


def test_a_twentieth_is_kept_and_a_gibibyte_at_most() -> None:
    assert (reserve_of(0), reserve_of(1000), reserve_of(1 << 50)) == (0, 50, 1 << 30)


def test_a_failed_store_is_told_before_a_full_one() -> None:
    state = StoreState()
    state.admit("jobs")
    state.full = "full"
    with pytest.raises(StoreFull):
        state.admit("jobs")
    state.failed = "failed"
    with pytest.raises(StoreFailed):
        state.admit("jobs")
    assert (state.kind, state.trouble) == ("failed", "failed")


def test_what_is_in_a_stream_is_moved_unless_that_stream_has_failed() -> None:
    state = StoreState()
    state.full, state.failed, state.failed_streams = "full", "failed", frozenset(["ORDERS"])
    state.check("JOBS")
    state.failed_streams = frozenset(["JOBS", "ORDERS"])
    with pytest.raises(StoreFailed, match="failed"):
        state.check("JOBS")
    state.failed_streams = frozenset([""])  # an error of no stream is one of all
    with pytest.raises(StoreFailed, match="failed"):
        state.check("JOBS")
