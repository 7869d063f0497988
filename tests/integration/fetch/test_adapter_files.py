"""Files of under 60 lines, written from a platform's page alone, read its shops whole with default settings."""

import time
import tomllib
from typing import Any

import msgspec
import pytest

from actors.fetch.grants import SealedGrant
from actors.fetch.ledgers import open_ledgers
from actors.fetch.rules import steering
from actors.fetch.rules.ledger import Ledger, Pass
from actors.fetch.sources import SourceKey
from streams.buckets.bucket import Bucket
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.support.engine import Node, add_source, ledger_bucket, ledger_when, put_setting, running_node, stored_orders
from tests.support.letters import dead_letters
from tests.support.teashop import KEY, PARTIAL, TeaOrder, Teashop, open_teashop

REST = """
name = "tearest"
settle = "1m"
[request]
path = "/v2/orders"
[request.params]
updated_from = "{window.start}"
updated_to = "{window.end}"
limit = "{page.size}"
cursor = "{page.token}"
[auth]
kind = "header"
name = "x-api-key"
value = "{account.code}"
[window]
lower = "excludes"
upper = "includes"
format = "unix_s"
step = "1s"
[pages]
style = "token"
size = 50
next = "meta.next_cursor"
total = "meta.count"
[record]
rows = "data.orders"
key = "number"
version = { kind = "number", path = "rev" }
modified = { path = "changed", format = "unix_s" }
"""

GRAPHQL = """
name = "teaql"
settle = "1m"
[request]
path = "/graphql"
[request.graphql]
query = '''
query ($first: Int!, $after: String, $since: String!, $until: String!) {
  orders(first: $first, after: $after, since: $since, until: $until) {
    nodes { id updatedAt }
    pageInfo { hasNextPage endCursor }
  }
}'''
[request.graphql.variables]
first = "{page.size}"
after = "{page.token}"
since = "{window.start}"
until = "{window.end}"
[window]
format = "iso_offset"
step = "1s"
[pages]
style = "token"
size = 40
next = "data.orders.pageInfo.endCursor"
more = "data.orders.pageInfo.hasNextPage"
end_is_proof = true
[record]
rows = "data.orders.nodes"
key = "id"
version = { kind = "time", path = "updatedAt" }
modified = { path = "updatedAt" }
"""

FILES = {text.split('"')[1]: text for text in (REST, GRAPHQL, PARTIAL)}


async def add_teashop(
    connection: Connection, publisher: Publisher, key: SourceKey, shop: Teashop, start_s: int, **own: Any
) -> None:
    """Add a source of the shop by the adapter of its platform's name."""
    await add_source(
        connection,
        publisher,
        key,
        adapter=key.platform,
        url=shop.url,
        start_ms=start_s * 1000,
        account={"code": KEY},
        **own,
    )


async def test_short_files_read_whole_shops_with_default_settings(connection: Connection, publisher: Publisher) -> None:
    now_s = int(time.time())
    crowd = [TeaOrder(1_000 + number, 1, now_s - 3_000) for number in range(120)]
    orders = [TeaOrder(number, 1 + number % 3, now_s - 400 - 30 * number) for number in range(200)] + crowd
    assert all(len(text.strip().splitlines()) < 60 for text in FILES.values())
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.session_length = 10
        for name, text in FILES.items():
            table: dict[str, Any] = tomllib.loads(text)
            await put_setting(connection, publisher, f"adapter.{name}", table)
            key = SourceKey(name, "s1")
            start_ms = (now_s - 7_000) * 1000
            account = {"code": KEY}
            await add_source(connection, publisher, key, adapter=name, url=shop.url, start_ms=start_ms, account=account)
            await put_setting(connection, publisher, f"fetch.{name}", {})  # the defaults

        def is_over(ledger: Ledger) -> bool:
            return ledger.watermark_ms > (now_s - 350) * 1000

        for name in FILES:
            ledger = await ledger_when(node.engine, SourceKey(name, "s1"), is_over, within_s=120)
            assert (ledger.holes, ledger.state) == ((), "running")
        found: dict[str, set[tuple[str, int]]] = {name: set() for name in FILES}
        for order in await stored_orders(connection):
            found[order.platform].add((order.order_key, order.version))
    numbered = {(str(order.number), order.rev) for order in orders}
    assert found["tearest"] == found["teapart"] == numbered
    assert found["teaql"] == {(f"gid://{order.number}", order.changed_s * 1000) for order in orders}
    assert shop.largest_batch == 20
    assert shop.logins[:2] == [KEY, "refresh-1"]


async def test_a_shop_that_refuses_and_changes_while_it_is_read_leaves_no_order_out(
    connection: Connection, publisher: Publisher
) -> None:
    """Some requests are answered by 429 without a header, and after one of seven an order moves to now."""
    now_s = int(time.time())
    crowd = [TeaOrder(2_000 + number, 1, now_s - 3_000) for number in range(120)]
    orders = [TeaOrder(number, 1, now_s - 400 - 20 * number) for number in range(300)] + crowd
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.session_length, shop.refuses, shop.changes_each = 25, 0.04, 7
        for name, text in FILES.items():
            await put_setting(connection, publisher, f"adapter.{name}", tomllib.loads(text))
            key, start_ms = SourceKey(name, "s1"), (now_s - 7_000) * 1000
            account = {"code": KEY}
            await add_source(connection, publisher, key, adapter=name, url=shop.url, start_ms=start_ms, account=account)
            await put_setting(connection, publisher, f"fetch.{name}", {"throttle_wait": "200ms"})
        read_ms = {}
        for name in FILES:
            ledger = await ledger_when(
                node.engine, SourceKey(name, "s1"), lambda each: each.watermark_ms > (now_s - 350) * 1000, within_s=120
            )
            assert (ledger.holes, ledger.state) == ((), "running")
            read_ms[name] = ledger.watermark_ms
        found: dict[str, set[int]] = {name: set() for name in FILES}
        for order in await stored_orders(connection):
            found[order.platform].add(int(order.order_key.removeprefix("gid://")))
    assert sum(each.rev > 1 for each in shop.orders) > 3
    for name, numbers in found.items():
        still = {each.number for each in shop.orders if each.changed_s * 1000 < read_ms[name]}
        assert still - numbers == set()


@pytest.mark.parametrize(
    ("asks", "rule"),
    [("", ""), ('at = "{now}"', ""), ("", '[[errors]]\nbody = "error.code"\nequals = "E05"\noutcome = "empty"')],
    ids=["by windows alone", "by its time too", "as if there were none"],
)
async def test_a_shop_whose_clock_is_ten_minutes_behind_is_neither_parked_nor_full_of_holes(
    connection: Connection, publisher: Publisher, asks: str, rule: str
) -> None:
    """It refuses windows that have not ended by its clock, and requests of another time. What it refuses is its Date's
    to explain, and nobody's mistake."""
    now_s, key, new = int(time.time()), SourceKey("tearest", "s1"), SourceKey("tearest", "new")
    orders = [TeaOrder(number, 1, now_s - 700 - 19 * number) for number in range(100)]
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.behind_s = 600
        table = tomllib.loads(REST.replace("[auth]", f"{asks}\n[auth]") + rule)
        await put_setting(connection, publisher, "adapter.tearest", table)
        for source, ago_s in ((new, 300), (key, 3_000)):
            await add_teashop(connection, publisher, source, shop, now_s - ago_s, slice="1m")
        ledger = await ledger_when(node.engine, key, lambda each: each.watermark_ms > (now_s - 750) * 1000)
        assert (ledger.holes, ledger.state, ledger.watermark_ms < (now_s - 600) * 1000) == ((), "running", True)
        assert {int(order.order_key) for order in await stored_orders(connection)} >= set(range(3, 100))
        ledger = await ledger_when(node.engine, new, lambda each: all(piece.reason for piece in each.open))
        assert (ledger.holes, ledger.state, ledger.watermark_ms) == ((), "running", (now_s - 300) * 1000)
        assert all(piece.not_before_ms > (now_s + 200) * 1000 for piece in ledger.open)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"most": 90, "empties": 5}, id="lists and counts 90 at most, says none while it is busy"),
        pytest.param({"deepest": 100}, id="refuses pages that are deep, or whose name has expired"),
    ],
)
async def test_a_shop_with_limits_is_read_whole(
    connection: Connection, publisher: Publisher, limits: dict[str, int]
) -> None:
    """`most`: on all pages of a list together, and its total says no more. `empties`: each fifth answer is an empty
    list with an error beside it, under HTTP 200. `deepest`: smaller windows have fewer pages."""
    now_s, key = int(time.time()), SourceKey("tearest", "s1")
    orders = [TeaOrder(number, 1, now_s - 500 - 19 * number) for number in range(300)]
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        for name, value in limits.items():
            setattr(shop, name, value)
        await put_setting(connection, publisher, "adapter.tearest", tomllib.loads(REST))
        await add_teashop(connection, publisher, key, shop, now_s - 6_450, slice="100m", again_slice="100m")
        ledger = await ledger_when(
            node.engine, key, lambda each: each.watermark_ms >= (now_s - 450) * 1000 or bool(each.holes), within_s=60
        )
        assert (ledger.holes, ledger.state, ledger.reason) == ((), "running", "")
        stored = {int(order.order_key) for order in await stored_orders(connection)}
    assert stored == {order.number for order in orders}


async def test_orders_that_a_graphql_server_cannot_resolve_cost_no_other_order(
    connection: Connection, publisher: Publisher
) -> None:
    """They become dead letters with the server's words, once the errors have not passed in place."""
    now_s = int(time.time())
    orders = [TeaOrder(number, 1, now_s - 400 - 30 * number) for number in range(100)]
    key = SourceKey("teaql", "broken")
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.unresolved = frozenset({7, 60, 61})
        await put_setting(connection, publisher, "adapter.teaql", tomllib.loads(GRAPHQL))
        start_ms = (now_s - 4_000) * 1000
        await add_source(connection, publisher, key, adapter="teaql", url=shop.url, start_ms=start_ms, slice="auto")
        await put_setting(connection, publisher, "fetch.teaql", {})  # the defaults
        ledger = await ledger_when(
            node.engine, key, lambda each: each.watermark_ms > (now_s - 350) * 1000 or bool(each.holes), within_s=120
        )
        assert (ledger.holes, ledger.state) == ((), "running")
        stored = {int(order.order_key.removeprefix("gid://")) for order in await stored_orders(connection)}
        letters = await dead_letters(connection, "fetch", "teaql")
    assert stored == {order.number for order in orders} - shop.unresolved
    assert {letter.reason.partition("says: ")[2] for letter in letters} == {
        f"no customer of {number}" for number in shop.unresolved
    }


async def test_details_that_come_after_their_list_are_waited_for(connection: Connection, publisher: Publisher) -> None:
    """Each of three retries asks for the absent orders alone. The others are stored meanwhile. What never comes is set
    aside."""
    now_s = int(time.time())
    orders = [TeaOrder(number, 1, now_s - 400 - 30 * number) for number in range(100)]
    key = SourceKey("teapart", "lacking")
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.session_length = 1_000
        shop.lacking = {7: 2, 60: 4, 61: 1_000}  # the checks of the first window ask for them twice and three times
        await put_setting(connection, publisher, "adapter.teapart", tomllib.loads(PARTIAL))
        await add_teashop(connection, publisher, key, shop, now_s - 3_940, slice="1h", again_slice="1h", retries=3)
        ledger = await ledger_when(
            node.engine, key, lambda each: each.watermark_ms > (now_s - 350) * 1000 or bool(each.holes), within_s=120
        )
        assert (ledger.holes, ledger.state) == ((), "running")
        stored = {int(order.order_key) for order in await stored_orders(connection)}
        letters = await dead_letters(connection, "fetch", "teapart")
    assert stored == {order.number for order in orders} - {61}
    assert ["61" in letter.id for letter in letters] == [True]
    asked = [[int(number) for number in numbers] for numbers in shop.detail_requests]
    assert asked[-3:] == [[61, 60, 7], [61, 60], [61]]


async def test_details_that_come_late_for_most_of_a_window_are_waited_for(
    connection: Connection, publisher: Publisher
) -> None:
    """All orders of the last minutes may lack them at once. What never comes is a hole, as most of a window is."""
    now_s = int(time.time())
    orders = [TeaOrder(number, 1, now_s - 400 - 10 * number) for number in range(350)]
    key = SourceKey("teapart", "later")
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.session_length = 1_000
        shop.lacking = dict.fromkeys(range(110), 2) | dict.fromkeys(range(120, 230), 1000)
        await put_setting(connection, publisher, "adapter.teapart", tomllib.loads(PARTIAL))
        await add_teashop(
            connection,
            publisher,
            key,
            shop,
            now_s - 3_980,
            slice="20m",
            again_slice="20m",
            max_open=1,
            retries=2,
        )
        ledger = await ledger_when(
            node.engine, key, lambda each: each.frontier_ms >= (now_s - 380) * 1000 and not each.open, within_s=60
        )
        stored = {int(order.order_key) for order in await stored_orders(connection)}
        letters = await dead_letters(connection, "fetch", "teapart")
    reason = "the platform lists 110 orders, and has no details of them yet"
    assert (ledger.state, [(hole.attempts, hole.reason) for hole in ledger.holes]) == ("running", [(3, reason)])
    assert {letter.reason for letter in letters} <= {reason}  # the hole's, if the monitor has looked, and no order's
    assert stored == {order.number for order in orders} - set(range(120, 230))


async def test_details_that_are_not_found_once_make_no_hole(connection: Connection, publisher: Publisher) -> None:
    """A platform answers 404 for a while to an order that its list has. What it never finds is a hole."""
    now_s = int(time.time())
    orders = [TeaOrder(number, 1, now_s - 400 - 30 * number) for number in range(100)]
    key = SourceKey("teapart", "hidden")
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.hidden = {7: 2, 30: 1_000}
        await put_setting(connection, publisher, "adapter.teapart", tomllib.loads(PARTIAL))
        await add_teashop(
            connection, publisher, key, shop, now_s - 4_000, slice="600s", concurrency=1, retries=3, retry_base="200ms"
        )
        ledger = await ledger_when(node.engine, key, lambda each: bool(each.holes) and not each.open, within_s=60)
        stored = {int(order.order_key) for order in await stored_orders(connection)}
    (hole,) = ledger.holes
    assert (hole.attempts, hole.reason) == (4, "the platform refuses the request as it stands (404): unknown")
    assert hole.start_ms <= orders[30].changed_s * 1000 < hole.end_ms
    in_hole = {order.number for order in orders if hole.start_ms <= order.changed_s * 1000 < hole.end_ms}
    assert {order.number for order in orders} - stored <= in_hole


def of_backfill(ledger: Ledger) -> list[Pass]:
    return [each for each in ledger.passes if each.kind == "b"]


async def test_nodes_share_one_login_and_a_later_node_goes_on_with_it(
    connection: Connection, publisher: Publisher
) -> None:
    """The shop's refresh key is void once it was used: two renewals by the same key would park the source."""
    now_s = int(time.time())
    orders = [TeaOrder(number, 1, now_s - 400 - 20 * number) for number in range(300)]
    key, table = SourceKey("teashare", "s1"), {**tomllib.loads(PARTIAL), "name": "teashare"}
    async with open_teashop(orders) as shop:

        async def read_until(until_s: int, *nodes: Node) -> None:
            reached_ms = until_s * 1000
            ledger = await ledger_when(
                nodes[0].engine,
                key,
                lambda ledger: ledger.watermark_ms > reached_ms or ledger.state == "parked",
                within_s=120,
            )
            assert (ledger.state, ledger.reason, ledger.holes) == ("running", "", ())

        async with running_node(connection, publisher, node="one") as one:
            async with running_node(connection, publisher, node="two") as two:
                await put_setting(connection, publisher, "adapter.teashare", table)
                start_ms = (now_s - 6_500) * 1000
                account = {"code": KEY}
                await add_source(
                    connection, publisher, key, adapter="teashare", url=shop.url, start_ms=start_ms, account=account
                )
                await put_setting(connection, publisher, "fetch.teashare", {"slice": "60s"})
                await read_until(now_s - 2_000, one, two)
        before = len(shop.logins)
        assert before > 1
        async with running_node(connection, publisher, node="three") as three:
            async with open_ledgers(ledger_bucket(connection, publisher)) as ledgers:  # the two may have read it all
                end_ms = (now_s - 350) * 1000
                await ledgers.move(key, lambda ledger: (steering.add_backfill(ledger, "old", start_ms, end_ms), None))
            await ledger_when(three.engine, key, lambda ledger: bool(of_backfill(ledger)), within_s=60)
            await ledger_when(three.engine, key, lambda ledger: not of_backfill(ledger), within_s=120)
            await read_until(now_s - 350, three)
        assert len(shop.logins) > before
        found = {order.order_key for order in await stored_orders(connection)}
    assert found == {str(order.number) for order in orders}
    assert len(set(shop.logins)) == len(shop.logins)


async def test_a_refresh_key_that_a_killed_node_took_along_is_named_with_what_to_do(
    connection: Connection, publisher: Publisher
) -> None:
    """The node was killed between the shop's answer and its write: the claim is left, and the key was used."""
    key, table = SourceKey("tealost", "s1"), {**tomllib.loads(PARTIAL), "name": "tealost", "timeout": "1s"}
    async with open_teashop([]) as shop, running_node(connection, publisher) as node:
        shop.logins = [KEY]
        digests = Bucket(connection, publisher, connection.namespace.bucket("DIGESTS"), bytes)
        await digests.put(f"login.{key.key}", msgspec.json.encode(SealedGrant(is_claimed=True)))
        await put_setting(connection, publisher, "adapter.tealost", table)
        start_ms, account = int(time.time()) * 1000 - 3_600_000, {"code": KEY}
        await add_source(
            connection, publisher, key, adapter="tealost", url=shop.url, start_ms=start_ms, account=account
        )
        ledger = await ledger_when(node.engine, key, lambda each: each.state == "parked", within_s=60)
    assert "was used before" in ledger.reason
    assert "a process was killed during the login before this one" in ledger.reason
    assert "penstock sources set tealost/s1 --account" in ledger.reason


async def test_a_login_that_outlasts_its_attempt_is_kept(connection: Connection, publisher: Publisher) -> None:
    """The shop's refresh key is void once it was used. An attempt that ended before the answer lost the next one."""
    now_s, key = int(time.time()), SourceKey("teaslow", "s1")
    orders = [TeaOrder(number, 1, now_s - 500 - 20 * number) for number in range(100)]
    table = {**tomllib.loads(PARTIAL), "name": "teaslow"}
    async with open_teashop(orders) as shop, running_node(connection, publisher) as node:
        shop.login_s = 3.0
        await put_setting(connection, publisher, "adapter.teaslow", table)
        await add_teashop(
            connection,
            publisher,
            key,
            shop,
            now_s - 3_450,
            slice="50m",
            again_slice="1h",
            timeout="2s",
            request_timeout="2s",
        )
        ledger = await ledger_when(
            node.engine,
            key,
            lambda each: each.watermark_ms >= (now_s - 450) * 1000 or each.state == "parked" or bool(each.holes),
            within_s=60,
        )
        assert (ledger.state, ledger.reason, ledger.holes) == ("running", "", ())
        found = {order.order_key for order in await stored_orders(connection)}
    assert found == {str(order.number) for order in orders}
    assert len(set(shop.logins)) == len(shop.logins)
