"""The conformance suite: every platform's file, and every manner, in one node's life. At the sink nothing is missing
and nothing is doubled, or `verify` names the windows that cannot be known.

    pytest tests/contract/test_conformance.py -s                                      prints the table
    pytest tests/contract/test_conformance.py -s --long                               100,000 orders of each
    pytest tests/contract/test_conformance.py -s --orders 10000 --cases conf-ebay     10,000, of some cases"""

import tomllib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import anyio
import pytest

from actors.fetch.sources import SourceKey
from penstock.admin.coverage import Coverage
from platforms.mall.dialects.registry import DIALECTS
from platforms.mall.listing import middle_ms
from platforms.mall.server import Mall
from platforms.registry import adapter_named, adapter_names, make_adapter
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.contract.players import BERLIN_BACK_MS, HOUR_MS
from tests.support.engine import a_mall, adapter_table, ledger_moves, running_node, stored_versions, truth_of
from tests.support.manners import Judged, add_manner, coverage_of, judge, read_to_end, references, silent, store_all

PLATFORMS = sorted(set(DIALECTS) & set(adapter_names()))
WITHOUT_TOTAL = {"amazon", "shopee", "shopify"}
HISTORY_MS = 2 * HOUR_MS + 300_000
AGO_MS = 1_800_000
WITHIN_S = 60.0
FIRST = 15
"""Requests that any reading may cost: of the first small slices, and of the checks of the first answers and totals."""
TROUBLE = {"throttle": 0.03, "error": 0.03, "half": 0.02, "retry_after_s": 0}


class Case(NamedTuple):
    """A source: its adapter (a table or a name), its mall, its account and its own settings."""

    name: str
    adapter: dict[str, Any] | str
    mall: dict[str, Any]
    account: Mapping[str, str] = MappingProxyType({})
    base: str = ""
    own: Mapping[str, Any] = MappingProxyType({})


Wanted = Callable[[Sequence[Case]], list[Case]]
"""Leaves the cases that the command line names."""


class Played(NamedTuple):
    """What became of a source."""

    mall: Mall
    judged: Judged
    coverage: Coverage
    silent: int
    parked: str
    page_size: int

    @property
    def ideal(self) -> int:
        """How few requests of the list would do, with the pages that the file asks for and the mall gives."""
        return self.mall.ideal_requests(self.page_size, HISTORY_MS, until_ms=self.mall.start_ms)

    @property
    def lists(self) -> int:
        """How many requests were answered by a list with orders. A mall whose history ended long ago gets many without
        any meanwhile."""
        return self.mall.kinds["list"] - self.mall.kinds["empty"]


@pytest.fixture
def orders(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--orders") or (100_000 if request.config.getoption("--long") else 300)


@pytest.fixture
def within_s(orders: int) -> float:
    return max(WITHIN_S, orders * 0.03)


@pytest.fixture
def wanted(request: pytest.FixtureRequest) -> Wanted:
    names = request.config.getoption("--cases")
    return lambda cases: [case for case in cases if not names or case.name in names.split(",")]


def platform_case(name: str, orders: int) -> Case:
    """Return a platform's file, without the pace that the real one wants: its rate, its waits, its settle delay."""
    table = tomllib.loads((files("platforms") / f"{name}.toml").read_text())
    errors = [
        {key: "50ms" if key == "after" else value for key, value in rule.items() if key != "wait"}
        for rule in table.get("errors", [])
    ]
    dialect = DIALECTS[name]
    mall = {**dialect.manners, "platform": name, "orders": orders, "change_share": 0.3, "faults": TROUBLE}
    if name in WITHOUT_TOTAL:  # a list of several pages is what nothing proves there
        mall["page_size"] = 10
    account = {"access_token": "token-7-1", **dialect.account}
    if "login" in table:  # the first request is a login, and its token does not last
        account = {key: value for key, value in account.items() if key not in adapter_named(name).declaration.granted}
        mall["token_requests"] = max(12, orders // 100)
    return Case(f"conf-{name}", {**table, "rate": [], "errors": errors}, mall, account, dialect.base)


@asynccontextmanager
async def played(
    connection: Connection, publisher: Publisher, folder: Path, cases: Sequence[Case], *, within_s: float
) -> AsyncIterator[dict[str, Played]]:
    """Read all cases with one node, and store them with one sink."""
    found: dict[str, Played] = {}
    async with AsyncExitStack() as stack:
        malls: dict[str, Mall] = {}
        for case in cases:
            usual = {"ago_ms": AGO_MS, "history_ms": HISTORY_MS, "tie_share": 0.0}
            malls[case.name] = await stack.enter_async_context(a_mall(**{**usual, **case.mall}))
        node = await stack.enter_async_context(running_node(connection, publisher))
        for case in cases:
            own: dict[str, Any] = {"slice": "auto", "settle": "1s", "retries": 20, **case.own}
            mall, source = malls[case.name], SourceKey(case.name, "s1")
            url, account = mall.url + case.base, references(folder, case.account)
            adapter = _at(url, case.adapter)
            await add_manner(connection, publisher, mall, adapter, source=source, url=url, account=account, **own)
        ledgers = {}
        for case in cases:
            source = SourceKey(case.name, "s1")
            ledgers[case.name] = await read_to_end(node, malls[case.name], within_s=within_s, source=source)
        await store_all(connection, publisher, folder / "orders.db")
        for case in cases:
            mall, ledger, source = malls[case.name], ledgers[case.name], SourceKey(case.name, "s1")
            coverage = await coverage_of(connection, mall, ledger, source)
            judged = judge(mall, folder / "orders.db", source)
            quiet = silent(mall, folder / "orders.db", coverage, source)
            size = min(mall.config.page_size, _asked(case.adapter))
            found[case.name] = Played(mall, judged, coverage, quiet, ledger.reason, size)
        yield found


def _asked(adapter: dict[str, Any] | str) -> int:
    """Return how many orders a page of the file has."""
    return make_adapter(adapter).declaration.pages.size


def _at(url: str, table: dict[str, Any] | str) -> dict[str, Any] | str:
    """Return the file with its login at the mall too, which may be another host."""
    if isinstance(table, str) or "login" not in table:
        return table
    login = table["login"]
    return {**table, "login": {**login, "request": {**login["request"], "base_url": url}}}


def table_of(found: dict[str, Played]) -> str:
    """Return the suite's table."""
    lines = [
        f"{'':24} {'orders':>7} {'missing':>7} {'doubled':>7} {'lists':>8} {'ideal':>6} {'429':>5} {'not read':>9}"
    ]
    for name, each in found.items():
        orders, missing, doubled = each.judged
        unread = each.coverage.length_ms("hole", "open", "ahead", "gap") // 1000
        refused = each.mall.kinds["throttled"]
        counts = f"{orders:7} {missing:7} {doubled:7} {each.lists:8} {each.ideal:6} {refused:5}"
        lines.append(f"{name:24} {counts} {unread:8}s")
        lines += [f"    parked: {each.parked[:200]}"] if each.parked else []
        reasons = {stretch.reason[:200] for stretch in each.coverage.stretches if stretch.state == "hole"}
        lines += [f"    hole: {reason}" for reason in sorted(reasons)]
    return "\n".join(lines)


async def test_every_platform_is_read_whole_and_once(
    connection: Connection, publisher: Publisher, tmp_path: Path, orders: int, within_s: float, wanted: Wanted
) -> None:
    """With answers that are refused, cut in half, or an error of the server in between."""
    cases = wanted([platform_case(name, orders) for name in PLATFORMS])
    async with played(connection, publisher, tmp_path, cases, within_s=within_s) as found:
        print("\n" + table_of(found))
        for case, each in found.items():
            name = case.removeprefix("conf-")
            assert (name, each.judged) == (name, Judged(orders, 0, 0))
            assert (name, each.coverage.is_whole) == (name, True)
            assert (name, each.coverage.unproven_ms > 0) == (name, name in WITHOUT_TOTAL)
            # Shopee's list has no total and ends at 300 orders, a round number. So it is read again in halves.
            times = 2.3 if name == "shopee" else 1.3
            assert (name, each.lists) <= (name, times * each.ideal + FIRST)


COST_MORE = {"conf-lies", "conf-renamed", "conf-endless", "conf-sessions", "conf-expiring", "conf-points"}
"""Lists that cannot be read whole, and those read by tokens: each slice ends with a page that is not full."""
PAGES: dict[str, Any] = {"style": "one", "size": 20, "total": "total"}
PARAMS = {"shop": "{account.shop}", "from": "{window.start}", "to": "{window.end}", "limit": "{page.size}"}
WALL = {"format": "wall", "zone": "Europe/Berlin"}


def numbered(name: str, **changes: Any) -> dict[str, Any]:
    """Return the mall's file with pages by number or offset."""
    request = {"path": "/orders", "params": {**PARAMS, "page" if name == "number" else "offset": f"{{page.{name}}}"}}
    return adapter_table(**{"pages": PAGES, "request": request, **changes})


def manner_cases(orders: int) -> list[Case]:
    """Return a case for each manner, of the mall itself."""
    one = adapter_table(pages=PAGES)
    crowd = {"crowd": 60, "crowds": max(3, orders // 600), "page_size": 20}
    record = adapter_table()["record"]
    assert isinstance(record, dict)
    wall = {**record, "modified": {"path": "modified_at", **WALL}}
    berlin_window = {**WALL, "step": "1s", "longest": "1d"}
    in_berlin = numbered("number", window=berlin_window, record=wall)
    lists = [
        {"name": "created", "request": {"params": {"list": "created"}}, "record": {"modified": {"path": "created_ms"}}},
        {"name": "changed", "request": {"params": {"list": "changed"}}, "pages": {"total_is_live": False}},
    ]
    twice = {"times": "wall", "zone": "Europe/Berlin", "history_ms": 3 * HOUR_MS, "page_size": 20, "paging": "number"}
    fold = max(1, orders // 300)  # so that many orders take no longer
    points, calls = ({"points": most * fold, "points_per_s": per_s * fold} for most, per_s in ((520, 50.0), (10, 10.0)))
    shopify = platform_case("shopify", orders)
    assert isinstance(shopify.adapter, dict)
    told = adapter_table(pages=PAGES, rate=[{"told": {"used": "header:X-Mall-Calls", "restore": "header:X-Mall-Back"}}])
    return [
        Case(
            "conf-points",
            {**shopify.adapter, "rate": tomllib.loads((files("platforms") / "shopify.toml").read_text())["rate"]},
            {**shopify.mall, "faults": {}, **points},
            shopify.account,
            own={"concurrency": 2},
        ),
        Case("conf-calls", told, {"orders": orders, "page_size": 5, **calls}, own={"concurrency": 2}),
        Case("conf-crowd", numbered("number"), {"orders": orders, "paging": "number", "past_end": "last", **crowd}),
        Case("conf-shuffled", numbered("offset"), {"orders": orders, "paging": "offset", "ties": "shuffled", **crowd}),
        Case("conf-changes", one, {"orders": orders, "listing": "changes", "change_share": 0.5, "page_size": 20}),
        Case(
            "conf-lists",
            adapter_table(pages=PAGES, list=lists),
            {"orders": orders, "page_size": 20, "has_two_lists": True, "change_share": 0.5, "faults": TROUBLE},
        ),
        Case("conf-capped", one, {"orders": orders, "page_size": 7}),
        Case(
            "conf-slow-clock",
            one,
            {"orders": orders, "page_size": 20, "clock_offset_ms": -600_000},
            own={"slice": "600s"},  # a longer one would end in a time that the platform has not reached
        ),
        Case(
            "conf-rows",
            adapter_table(pages={**PAGES, "total_counts": "rows"}),
            {"orders": orders, "listing": "changes", "totals": "rows", "change_share": 0.5, "page_size": 20},
        ),
        Case(
            "conf-endless",
            one,
            {"orders": orders, "page_size": 20, "ignores_end": True},
            own={"slice": "600s", "retries": 1},
        ),
        Case(
            "conf-sessions",
            "mall_token",
            {"orders": orders, "paging": "token", "needs_token": True, "token_requests": 1, "page_size": 20},
            {"key": "k"},
            own={"slice": "120s"},  # many slices at once use up each other's sessions
        ),
        Case("conf-fast-clock", one, {"orders": orders, "page_size": 20, "clock_offset_ms": 600_000}),
        Case("conf-fold", in_berlin, {"orders": orders, **twice}),
        Case("conf-fold-hours", in_berlin, {"orders": orders, **twice}, own={"slice": "1h", "again_slice": "1h"}),
        Case(
            "conf-expiring",
            "mall_token",
            {"orders": orders, "paging": "token", "needs_token": True, "token_requests": max(12, orders // 100)},
            {"key": "k"},
        ),
        Case(
            "conf-limited",
            one,
            {
                "orders": orders,
                "page_size": 20,
                "tells_limits": True,
                "faults": {"rate_per_s": 40, "retry_after_s": -1},
            },
        ),
        Case(
            "conf-lies", one, {"orders": orders, "page_size": 20, "totals": "lies"}, own={"slice": "600s", "retries": 2}
        ),
        Case(
            "conf-renamed",
            one,
            {"orders": orders, "page_size": 20, "is_renamed": True},
            own={"slice": "600s", "retries": 1, "max_open": 2},  # what can be read comes first
        ),
    ]


async def test_every_manner_is_read_whole_or_told(
    connection: Connection, publisher: Publisher, tmp_path: Path, orders: int, within_s: float, wanted: Wanted
) -> None:
    cases = [
        case._replace(mall={**case.mall, "ago_ms": _now_ms() - BERLIN_BACK_MS - HOUR_MS})
        if "fold" in case.name
        else case
        for case in wanted(manner_cases(orders))
    ]
    async with played(connection, publisher, tmp_path, cases, within_s=within_s) as found:
        print("\n" + table_of(found))
        for name, each in found.items():
            assert (name, each.judged.doubled, each.silent) == (name, 0, 0)
            if name in ("conf-points", "conf-calls"):
                assert (name, each.mall.kinds["throttled"]) <= (name, 2 + 0.01 * each.lists)
            if name not in COST_MORE:
                assert (name, each.lists) <= (name, 1.3 * each.ideal + FIRST)
            if name not in ("conf-lies", "conf-renamed", "conf-endless"):
                assert (name, each.judged.missing, each.coverage.is_whole) == (name, 0, True)
        if "conf-lies" in found:
            _is_told_of_the_lie(found["conf-lies"])
        if "conf-endless" in found:
            assert "ignores the window" in found["conf-endless"].parked
            assert found["conf-endless"].lists <= 40 * found["conf-endless"].ideal
        if "conf-renamed" in found:
            _is_told_of_the_other_name(found["conf-renamed"])


async def test_what_comes_or_changes_later_is_stored_too(
    connection: Connection, publisher: Publisher, tmp_path: Path
) -> None:
    """Orders that are listed seconds after their time, by second looks, and changes that leave the listed time as it
    was, by sweeps. Both while the shop sells."""
    live: dict[str, Any] = {"orders": 150, "history_ms": 10_000, "live_ms": 4_000, "live_share": 0.5, "tie_share": 0.0}
    quick: dict[str, Any] = {"slice": "2s", "settle": "500ms", "again_slice": "2s"}
    late, frozen = SourceKey("late", "s1"), SourceKey("frozen", "s1")
    table = adapter_table(pages=PAGES)
    async with (
        a_mall(late_share=0.3, late_ms=2_500, **live) as slow,
        a_mall(frozen_share=0.5, change_share=0.7, **live) as still,
        running_node(connection, publisher) as node,
    ):
        await add_manner(connection, publisher, slow, table, source=late, **quick, again=["3s", "6s"])
        await add_manner(connection, publisher, still, table, source=frozen, **quick, sweep="2s")
        with anyio.fail_after(WITHIN_S):
            for source, mall in ((late, slow), (frozen, still)):
                wanted = truth_of(mall, "s1")
                while await stored_versions(connection, source) != wanted:
                    await ledger_moves(node.engine, source)
        await store_all(connection, publisher, tmp_path / "orders.db")
        for source, mall in ((late, slow), (frozen, still)):
            assert (source, judge(mall, tmp_path / "orders.db", source)) == (source, Judged(150, 0, 0))


def _is_told_of_the_lie(each: Played) -> None:
    """Exactly the moment at which the total counts one order too many is a hole."""
    (hole,) = (stretch for stretch in each.coverage.stretches if stretch.state != "read")
    assert hole.start_ms <= middle_ms(each.mall.shops["s1"].plan) < hole.end_ms
    assert "short by 1" in hole.reason
    assert each.judged.missing == 0


def _is_told_of_the_other_name(each: Played) -> None:
    """Nothing from the middle on counts as read, and all before it does."""
    middle = middle_ms(each.mall.shops["s1"].plan)
    read = [stretch for stretch in each.coverage.stretches if stretch.state == "read"]
    assert read
    assert all(stretch.end_ms <= middle for stretch in read)
    assert sum(stretch.length_ms for stretch in read) > middle - each.coverage.start_ms - 600_000


def _now_ms() -> int:
    from streams.clock import SYSTEM

    return SYSTEM.now_ms()
