"""When the leases of a process are renewed."""

from hypothesis import given
from hypothesis import strategies as st

from streams.lease import until_turn_s


@given(st.floats(0, 1e7), st.sampled_from([1 / 3, 1.0, 5 / 3]))
def test_all_leases_of_a_length_are_renewed_at_the_same_moments(now_s: float, every_s: float) -> None:
    wait_s = until_turn_s(every_s, now_s)
    assert every_s / 4 < wait_s <= 1.25 * every_s
    turns = (now_s + wait_s) / every_s
    assert abs(turns - round(turns)) < 1e-6
