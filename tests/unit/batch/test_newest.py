"""Lists of instances have them in order, from any place on."""

from hypothesis import given
from hypothesis import strategies as st

from actors.batch.rules.newest import LATEST, Newest

IDS, MOMENTS = st.sampled_from("pqrstu"), st.integers(0, 3)


@given(st.lists(st.tuples(IDS, MOMENTS | st.none()), max_size=20), st.tuples(MOMENTS, IDS) | st.just(LATEST))
def test_what_is_behind_a_place_comes_in_order(steps: list[tuple[str, int | None]], place: tuple[int, str]) -> None:
    newest, there = Newest(), dict[str, int]()
    for name, created_ms in steps:
        there.pop(name, None)
        if created_ms is None:
            newest.drop(name)
        else:
            newest.put(name, created_ms)
            there[name] = created_ms
    places = sorted((-created_ms, name) for name, created_ms in there.items())
    assert list(newest.behind(place)) == [name for at, name in places if (at, name) > (-place[0], place[1])]


def test_what_goes_and_comes_while_a_list_is_read_leaves_the_others_in_their_places() -> None:
    newest = Newest()
    for at in range(10):
        newest.put(f"i{at}", at)
    found = newest.behind(LATEST)
    assert [next(found), next(found)] == ["i9", "i8"]
    newest.drop("i9")
    newest.drop("i7")
    newest.put("new", 11)
    assert list(found) == ["i6", "i5", "i4", "i3", "i2", "i1", "i0"]
