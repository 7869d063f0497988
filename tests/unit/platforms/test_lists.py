"""Several lists of one source: each window is read from all of them, each order once."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.fetch.rules.settings import FetchSettings
from actors.fetch.slice_allocator import lengths_of
from platforms.adapter import Account, Declaration, Response, Row
from platforms.bounds import Window
from platforms.declared import declare
from platforms.errors import BadDeclaration
from platforms.lists import ListsReading, begin_reading, lists_of
from platforms.reading import Reading
from tests.unit.platforms.declared_example import adapter, table
from tests.unit.platforms.listing_model import Listed, ModelPlatform, declaration

WINDOW = Window(0, 64)
CREATED: dict[str, Any] = {
    "name": "created",
    "request": {"path": "/new"},
    "window": {"time": "created"},
    "record": {"modified": {"path": "made"}},
}
CHANGED: dict[str, Any] = {"name": "changed", "request": {"params": {"kind": "changes"}}, "pages": {"size": 2}}
ACCOUNT = Account("shop", {"base_url": "https://api.example.com"})
orders = st.dictionaries(st.sampled_from("abcdefghij"), st.tuples(st.integers(0, 63), st.integers(1, 3)), max_size=10)


def read(reading: ListsReading, platforms: Mapping[str, ModelPlatform], most: int = 500) -> list[Row]:
    rows: list[Row] = []
    while (ask := reading.next()) is not None and most:
        most -= 1
        rows += reading.feed(platforms[reading.list_name].answer(ask))
    return rows


def platform(listed: Mapping[str, tuple[int, int]], **manners: Any) -> ModelPlatform:
    rows = [Listed(at_ms, key, version) for key, (at_ms, version) in listed.items()]
    return ModelPlatform(rows, **{"size": 3, "paging": "keyset", **manners})


@given(orders, orders)
def test_an_order_of_two_lists_is_handed_out_once_in_its_latest_version(
    created: dict[str, tuple[int, int]], changed: dict[str, tuple[int, int]]
) -> None:
    reading = ListsReading({"created": declaration(), "changed": declaration("token")}, WINDOW)
    rows = read(reading, {"created": platform(created), "changed": platform(changed)})
    latest = {key: max(each[key][1] for each in (created, changed) if key in each) for key in {*created, *changed}}
    assert {row.key: row.version for row in rows} == latest
    assert len({(row.key, row.version) for row in rows}) == len(rows)
    assert (reading.result.is_proven, reading.result.distinct, reading.is_done) == (True, len(latest), True)
    assert reading.done_until_ms == WINDOW.end_ms


def test_a_window_is_read_only_as_far_as_each_list_is() -> None:
    every = {f"o{number}": (number, 1) for number in range(64)}
    reading = ListsReading({"created": declaration("one"), "changed": declaration("one")}, WINDOW)
    both = {"created": platform(every), "changed": platform({})}
    read(reading, both, most=12)
    assert 0 < reading.done_until_ms < WINDOW.end_ms
    assert not reading.is_done
    read(reading, both)
    assert reading.is_done


def test_the_list_that_is_short_is_named() -> None:
    class Lying(ModelPlatform):
        def answer(self, ask: Any) -> Any:
            page = super().answer(ask)
            page.total = (page.total or 0) + 1
            return page

    reading = ListsReading({"created": declaration(), "changed": declaration()}, Window(0, 1))
    read(reading, {"created": platform({"a": (0, 1)}), "changed": Lying([Listed(0, "a", 1)], size=3, paging="none")})
    result = reading.result
    assert [(part.list_name, part.missing, part.listed) for part in result.short] == [("changed", 1, 2)]
    assert (result.is_proven, result.missing) == (False, 1)


def test_one_list_without_a_total_leaves_the_window_unproven() -> None:
    reading = ListsReading({"a": declaration(), "b": declaration("token", has_total=False)}, WINDOW)
    read(reading, {"a": platform({}), "b": platform({"x": (1, 1)}, has_total=False)})
    assert (reading.result.is_proven, reading.result.is_counted) == (False, False)


def test_a_file_of_one_list_stays_as_it_was() -> None:
    one = adapter()
    assert lists_of(one) == {"": one}
    assert isinstance(begin_reading(one, WINDOW), Reading)
    assert one.declaration.lists == 1


def test_a_list_has_the_tables_of_the_file_with_its_own_laid_over_them() -> None:
    made = declare({**table(), "list": [CREATED, CHANGED]})
    sent = {name: each.request(WINDOW, None, ACCOUNT, 0) for name, each in lists_of(made).items()}
    assert sent["created"].url == "https://api.example.com/new"
    assert sent["changed"].url == "https://api.example.com/orders"
    assert dict(sent["created"].params) == {"from": "0", "to": "64"}
    assert dict(sent["changed"].params) == {"from": "0", "to": "64", "kind": "changes"}
    body = b'{"orders":[{"id":1,"v":2,"at":7,"made":1700000000000}],"total":1}'
    answered = {name: each.page(Response(200, {}, body)) for name, each in lists_of(made).items()}
    assert answered["created"].rows[0].modified_ms == 1_700_000_000_000
    assert isinstance(begin_reading(made, WINDOW), ListsReading)


def test_what_holds_for_all_lists_is_the_narrowest() -> None:
    short = {"name": "short", "window": {"longest": "1h", "look_back": "30d", "step": "1s"}, "pages": {"size": 2}}
    silent = {"name": "silent", "pages": {"style": "one", "total": ""}}
    declared = declare({**table(), "list": [short, silent]}).declaration
    assert (declared.window.longest_ms, declared.window.look_back_ms) == (3_600_000, 30 * 86_400_000)
    assert (declared.window.bounds.step_ms, declared.pages.size, declared.pages.has_total) == (1_000, 2, False)
    assert (declared.pages.style, declared.lists) == ("one", 2)


def test_lists_share_the_rate_of_their_source() -> None:
    declared = declare({**table(), "list": [CREATED, CHANGED], "rate": [{"per_second": 4}]}).declaration
    assert lengths_of(declared, FetchSettings()).per_s == 2.0


@pytest.mark.parametrize(
    ("lists", "where", "problem"),
    [
        ([CREATED], "list", "is for two lists or more"),
        ([CREATED, CREATED], "[[list]] number 2 name", "use a name of its own"),
        ([CREATED, {"window": {}}], "[[list]] number 2 name", "is missing"),
        ([CREATED, {"name": "x", "windw": {}}], "[[list]] number 2 windw", "did you mean 'window'?"),
        ([CREATED, {"name": "x", "window": {"lowr": "includes"}}], "number 2, [list.window] lowr", "'lower'?"),
        ([CREATED, {"name": "x", "window": {"lower": "in"}}], "[list.window] lower", "allowed: 'includes'"),
        ([CREATED, {"name": "x", "pages": {"next": "", "next_header": ""}}], "[list.pages] next", "is needed"),
        (
            [CREATED, {"name": "x", "record": {"version": {"kind": "hash", "path": ""}}}],
            "[list.record.version]",
            "same",
        ),
        ([CREATED, {"name": "x", "record": {"key": ["id", "no"]}}], "[list.record] key", "one path in all lists"),
        ([CREATED, {"name": "x", "errors": []}], "[[list]] number 2 errors", "unknown key"),
        ([CREATED, {"name": "x", "window": {"upper": "absent"}}], "[request] params", "(in the list 'x')"),
    ],
)
def test_what_is_wrong_in_a_list_is_named_with_its_place(lists: list[Any], where: str, problem: str) -> None:
    with pytest.raises(BadDeclaration) as caught:
        declare({**table(), "list": lists})
    assert where in caught.value.in_table
    assert problem in caught.value.problem


def test_bounds_that_only_one_list_has_are_refused() -> None:
    open_ended = {"name": "x", "window": {"upper": "absent"}, "request": {"params": {"from": "{window.start}"}}}
    common = table()
    del common["request"]["params"]["to"]
    bounded = {"name": "y", "request": {"params": {"to": "{window.end}"}}}
    with pytest.raises(BadDeclaration, match="is absent in all lists of a file, or in none"):
        declare({**common, "list": [bounded, open_ended]})


def test_declarations_of_one_list_are_its_own() -> None:
    made = declare({**table(), "list": [CREATED, CHANGED]})
    sizes: dict[str, Declaration] = {name: each.declaration for name, each in lists_of(made).items()}
    assert (sizes["created"].pages.size, sizes["changed"].pages.size) == (3, 2)
