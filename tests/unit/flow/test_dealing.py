"""A rate is divided whole, fairly and without a rest."""

from hypothesis import given
from hypothesis import strategies as st

from actors.flow.rules.dealing import deal

demands = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1, 20_000), min_size=1)


@given(st.integers(8, 10_000), demands)
def test_a_whole_rate_is_divided_whole_and_in_all(rate: int, wanted: dict[str, float]) -> None:
    dealt = deal(rate, wanted)
    assert sum(dealt.values()) == rate
    assert all(part == int(part) and part >= 1 for part in dealt.values())


@given(st.integers(8, 10_000), demands)
def test_nobody_has_less_than_an_equal_part_unless_it_asks_for_less(rate: int, wanted: dict[str, float]) -> None:
    dealt = deal(rate, wanted)
    equal = rate / len(wanted)
    for name, part in dealt.items():
        assert part > min(equal, wanted[name]) - 1
    if sum(wanted.values()) > rate:
        most = max(dealt.values())
        assert all(part < wanted[name] + 1 for name, part in dealt.items())
        assert all(part > most - 1.001 for name, part in dealt.items() if wanted[name] > part + 1)


@given(st.floats(8, 1_000), demands)
def test_what_is_above_a_whole_number_goes_to_one_of_them(rate: float, wanted: dict[str, float]) -> None:
    dealt = deal(rate, wanted)
    assert abs(sum(dealt.values()) - rate) < 1e-6
    assert sum(part != int(part) for part in dealt.values()) <= 1


def test_what_one_leaves_goes_to_the_others() -> None:
    assert deal(100, {"a": 100, "b": 10}) == {"a": 90, "b": 10}
    assert deal(100, {"a": 100, "b": 100, "c": 10}) == {"a": 45, "b": 45, "c": 10}
    assert deal(100, {"a": 10, "b": 10}) == {"a": 50, "b": 50}
    assert deal(10, {"a": 10, "b": 10, "c": 10}) == {"a": 4, "b": 3, "c": 3}


weights = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0.01, 100), min_size=1)


@given(st.integers(8, 10_000), demands, weights)
def test_weights_divide_a_rate_whole_and_nobody_with_work_starves(
    rate: int, wanted: dict[str, float], weight: dict[str, float]
) -> None:
    dealt = deal(rate, wanted, weight)
    assert sum(dealt.values()) == rate
    assert all(part >= 1 for part in dealt.values())


@given(st.integers(8, 10_000), weights)
def test_who_has_endless_work_has_the_part_of_its_weight(rate: int, weight: dict[str, float]) -> None:
    """Up to one, for parts are whole, and what those with less than one a second have more goes off the others."""
    dealt = deal(rate, dict.fromkeys(weight, 1e6), weight)
    fair = {name: rate * each / sum(weight.values()) for name, each in weight.items()}
    lifted = sum(max(0.0, 1 - part) for part in fair.values())
    for name, part in dealt.items():
        assert part > fair[name] - lifted - 1
        assert part < max(1.0, fair[name]) + 1
