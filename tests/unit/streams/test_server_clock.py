"""How the server's times are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import MalformedMessage
from streams.link.server_clock import OffsetBounds, ahead_s, server_time_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T00:00:01.5Z", 1.5),
        ("2026-11-21T13:37:19.653156251Z", 1795268239.653156),
        ("2026-11-21T15:37:19.653156251+02:00", 1795268239.653156),
    ],
)
def test_a_servers_time_is_read_to_the_microsecond(text: str, seconds: float) -> None:
    assert server_time_s(text) == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize("text", [None, "", "now", "2026-11-21", "2026-11-21T13:37:19", 5])
def test_what_is_no_time_is_refused(text: object) -> None:
    with pytest.raises(MalformedMessage, match="server's time"):
        server_time_s(text)


ways = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=10)


@given(ways, st.floats(0, 2))
def test_slow_answers_turn_the_clock_neither_back_nor_ahead(ways: list[tuple[float, float]], behind_s: float) -> None:
    """`ways`: how long each question and answer was on its way. `behind_s`: by how much what was known is too low."""
    true_s = 1_000.0
    samples = [OffsetBounds(true_s - back_s, true_s + there_s) for there_s, back_s in ways]
    found_s = ahead_s(samples, true_s - behind_s)
    assert found_s <= true_s
    assert found_s >= true_s - behind_s
    assert found_s >= true_s - min(back_s for _, back_s in ways)
    assert ahead_s(samples, None) == true_s - min(back_s for _, back_s in ways)


@given(ways, st.floats(1.001, 100))
def test_a_servers_clock_that_was_set_back_is_followed(ways: list[tuple[float, float]], set_s: float) -> None:
    true_s = 1_000.0
    samples = [OffsetBounds(true_s - back_s, true_s + there_s) for there_s, back_s in ways]
    assert ahead_s(samples, true_s + set_s) <= true_s
