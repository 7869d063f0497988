"""A list that has an order once for each change, and one that sorts orders of one moment anew for each request."""

from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from platforms.adapter import Page, Row
from platforms.bounds import Window
from platforms.mall.listing import draws
from platforms.reading import Ask, Reading
from tests.unit.platforms.listing_model import Listed, ModelPlatform, declaration, read_all

WINDOW = Window(0, 1_000)
changes = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 20)), max_size=60)


class Changes(ModelPlatform):
    """Lists each change of an order. The total counts orders, or rows."""

    def __init__(self, orders: list[Listed], *, size: int, counts_rows: bool) -> None:
        super().__init__(orders, size=size, paging="none")
        self.counts_rows = counts_rows

    def answer(self, ask: Ask) -> Page:
        rows = sorted(order for order in self.orders if ask.window.start_ms <= order.modified_ms < ask.window.end_ms)
        total = len(rows) if self.counts_rows else len({order.key for order in rows})
        shown = [Row(one.key, one.version, one.modified_ms, b'{"v":%d}' % one.version) for one in rows[: self.size]]
        return Page(shown, None, total)


def changes_of(times: list[tuple[int, int]]) -> list[Listed]:
    """Return the changes of orders at different moments, each with its number among those of its order."""
    seen, listed = dict[str, int](), list[Listed]()
    for at_ms, number in sorted(dict(times).items()):
        key = f"o{number}"
        seen[key] = seen.get(key, 0) + 1
        listed.append(Listed(at_ms, key, seen[key]))
    return listed


def reading_of(platform: Changes) -> tuple[Reading, dict[str, int]]:
    """Read all, and return the highest version that was handed out of each order."""
    declared = declaration(size=platform.size)
    declared = replace(declared, pages=replace(declared.pages, counts_rows=platform.counts_rows))
    reading, found = Reading(declared, WINDOW), dict[str, int]()
    for rows in read_all(reading, platform):
        for row in rows:
            found[row.key] = max(row.version, found.get(row.key, 0))
    return reading, found


@given(changes, st.integers(2, 9), st.booleans())
@example([(0, 0), (1, 1), (2, 0)], 2, False)
def test_of_each_order_the_last_change_is_read(times: list[tuple[int, int]], size: int, counts_rows: bool) -> None:
    """Also if a full answer has every order, and the change that was cut off is a later one of those."""
    listed = changes_of(times)
    reading, found = reading_of(Changes(listed, size=size, counts_rows=counts_rows))
    assert found == {each.key: each.version for each in listed}
    assert reading.result.is_proven
    assert reading.result.short == ()


@pytest.mark.parametrize("counts_rows", [True, False])
def test_a_list_of_changes_costs_hardly_more_requests_than_it_has_pages(counts_rows: bool) -> None:
    """Two windows that follow each other have orders in common. Their totals do not add up, but those of all do."""
    chance = Random(3)
    listed = changes_of([(at_ms, chance.randrange(300)) for at_ms in chance.sample(range(1_000), 800)])
    reading, found = reading_of(Changes(listed, size=20, counts_rows=counts_rows))
    assert found == {each.key: each.version for each in listed}
    assert reading.result.is_proven
    assert reading.result.requests <= 800 / 20 * 1.15


@given(changes, st.integers(2, 9), st.integers(0, 30))
def test_of_changes_too_what_is_said_to_be_done_was_read(times: list[tuple[int, int]], size: int, answers: int) -> None:
    listed = changes_of(times)
    platform, seen = Changes(listed, size=size, counts_rows=False), set[tuple[str, int]]()
    reading = Reading(declaration(size=size), WINDOW)
    for at, rows in enumerate(read_all(reading, platform)):
        seen.update((row.key, row.version) for row in rows)
        done = {each.key for each in listed if each.modified_ms < reading.done_until_ms}
        assert done <= {key for key, _ in seen}
        if at == answers:
            break


def shuffled_ties(chance: Random, rows: list[Listed]) -> list[Listed]:
    return sorted(rows, key=lambda row: (row.modified_ms, chance.random()))


def read_shuffled(times_ms: list[int], size: int, seed: int) -> tuple[Reading, int]:
    chance = Random(seed)
    orders = [Listed(at, f"o{number}", 1) for number, at in enumerate(times_ms)]
    platform = ModelPlatform(
        orders, size=size, paging="none", numbered="offset", shuffle=lambda rows: shuffled_ties(chance, rows)
    )
    reading = Reading(declaration("one", size=size, numbered="offset"), WINDOW)
    return reading, sum(len(rows) for rows in read_all(reading, platform))


@given(st.lists(st.integers(0, 999) | st.sampled_from([7, 500]), max_size=60), st.integers(2, 9), st.integers(0, 99))
def test_orders_of_one_moment_that_nothing_sorts_are_all_read(times_ms: list[int], size: int, seed: int) -> None:
    reading, found = read_shuffled(times_ms, size, seed)
    assert (found, reading.result.missing, reading.result.is_proven) == (len(times_ms), 0, True)


def test_only_the_moments_that_nothing_sorts_are_read_again() -> None:
    """Two crowds of 60 among 140 others. An ideal reader needs as many answers as it takes until each has come up."""
    times_ms = [7 * number for number in range(140)] + [200] * 60 + [800] * 60
    ideal = 140 / 20 + 2 * draws(60, 20)
    asked = []
    for seed in range(20):
        reading, found = read_shuffled(times_ms, 20, seed)
        assert (found, reading.result.is_proven) == (260, True)
        asked.append(reading.result.requests)
    assert sum(asked) / len(asked) <= 1.3 * ideal
