"""`penstock adapter try`: a person finds each usual mistake of a file by its output alone, with no node."""

import json
import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta, timezone
from importlib.resources import files
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from actors.runtime.transport import open_transport
from penstock.admin.adapter_trial import first_problem
from penstock.cli.root import app
from platforms.adapter import Account
from platforms.bounds import Window
from platforms.declared import declare_toml
from tests.support.cli import Answer, CommandLine
from tests.support.engine import a_mall
from tests.support.teashop import KEY, PARTIAL, TeaOrder, Teashop, open_teashop

RIGHT = """
name = "teashop"
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
value = "{account.key}"
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

MISTAKES = {
    "path": ('path = "/v2/orders"', 'path = "/orders"', "[request] path"),
    "auth": ('name = "x-api-key"', 'name = "x-key"', "the key is not known"),
    "rows": ('rows = "data.orders"', 'rows = "data.items"', "is it 'data.orders'?"),
    "key": ('key = "number"', 'key = "order_number"', "the rows have no 'order_number'; they have number = "),
    "version": ('path = "rev"', 'path = "revision"', "the rows have no 'revision'"),
    "time format": ('"changed", format = "unix_s"', '"changed", format = "iso_offset"', 'looks like format = "unix_s"'),
    "window names": ("updated_from =", "from =", '[request.params] from = "{window.start}"'),
    "bounds": ('lower = "excludes"', 'lower = "includes"', '[window] lower = "excludes"'),
    "page names": ("cursor =", "page_token =", '[request.params] page_token = "{page.token}"'),
    "total": ('"meta.count"', '"meta.total"', "the answer has no 'meta.total'; numbers in it: meta.count = "),
}


@pytest.fixture
async def shop() -> AsyncIterator[Teashop]:
    now_s = int(time.time())
    orders = [TeaOrder(number, 1 + number % 3, now_s - 60 * number) for number in range(1, 300)]
    async with open_teashop(orders) as running:
        yield running


async def tried(shop: Teashop, path: Path, text: str, *more: str) -> Answer:
    key = ("--account", f"base_url={shop.url}", "--account", "key=env:TEA_KEY")
    return await run_try(path, text, *key, *(more or ("--from", "-3h", "--to", "-1m")))


async def run_try(path: Path, text: str, *arguments: str) -> Answer:
    """Run the command as a user does."""
    await anyio.Path(path).write_text(text)

    def run() -> Answer:
        told = CliRunner().invoke(
            app, ["adapter", "try", str(path), *arguments], env={"TEA_KEY": KEY, "TERM": "dumb", "COLUMNS": "200"}
        )
        if told.exception is not None and not isinstance(told.exception, SystemExit):
            raise told.exception
        return Answer(told.exit_code, told.stdout, told.stderr)

    return await anyio.to_thread.run_sync(run)


async def test_a_platform_that_cuts_its_answers_without_a_word_is_named(shop: Teashop, tmp_path: Path) -> None:
    """It lists 50 orders of any window, whatever it is asked for, and counts those."""
    text = RIGHT.replace('next = "meta.next_cursor"\n', "").replace('style = "token"\nsize = 50', "size = 100")
    text = text.replace('cursor = "{page.token}"\n', "")
    shop.counts_pages = True
    told = await tried(shop, tmp_path / "tea.toml", text)
    assert told.code == 1
    assert "[pages] size = 50: the platform lists no more at once" in told.out
    assert "[pages] total: 'meta.count' counts the orders of one answer" in told.out
    right = text.replace("size = 100", "size = 50").replace('total = "meta.count"\n', "")
    told = await tried(shop, tmp_path / "tea.toml", right, "--from", "-3h", "--to", "-1m")
    assert (told.code, "verdict: unproven" in told.out) == (0, True), told.out


async def test_a_platform_that_ends_each_list_after_so_many_orders_is_named(shop: Teashop, tmp_path: Path) -> None:
    """On all pages together, and without a word. With a total that counts those, the window is read in parts."""
    shop.most = 90
    told = await tried(shop, tmp_path / "tea.toml", RIGHT)
    assert (told.code, "the window: 179 orders" in told.out) == (0, True), told.out
    text = RIGHT.replace('total = "meta.count"', "end_is_proof = true")
    told = await tried(shop, tmp_path / "tea.toml", text)
    assert told.code == 1
    assert "verdict: failed: the whole window lists 90 orders, and its halves 179: the list was cut" in told.out
    assert "look at [pages]: the platform lists about 90 orders of a window at most" in told.out


async def test_a_next_page_under_a_wrong_name_is_found_where_no_answer_is_full(shop: Teashop, tmp_path: Path) -> None:
    text = RIGHT.replace("size = 50", "size = 100").replace('"meta.next_cursor"', '"meta.next"')
    told = await tried(shop, tmp_path / "tea.toml", text.replace('total = "meta.count"\n', ""))
    assert told.code == 1
    assert "look at [pages] next: there are more orders, and the answer names no next page in 'meta.next'" in told.out


@pytest.mark.parametrize(("odd", "may_pass"), [(1, True), (20, True), (60, False)])
async def test_a_first_answer_refuses_a_source_only_if_most_of_its_rows_cannot_be_read(
    shop: Teashop, odd: int, may_pass: bool
) -> None:
    shop.odd_rows, now_ms = odd, int(time.time()) * 1000
    account = Account("s1", {"base_url": shop.url, "key": KEY})
    window = Window(now_ms - 3 * 3_600_000, now_ms - 60_000)
    async with open_transport(connections=1) as transport:
        problem = await first_problem(
            declare_toml(RIGHT), account, window, stored={}, transport=transport, now_ms=now_ms
        )
    assert problem is not None
    assert (problem.may_pass, "[record] key: the rows have no 'number'" in problem.text) == (may_pass, True)


async def test_a_right_file_is_proven_and_says_what_it_costs(shop: Teashop, tmp_path: Path) -> None:
    told = (await tried(shop, tmp_path / "tea.toml", RIGHT)).ok()
    assert KEY not in told.out + told.err
    for part in (
        "x-api-key: <key>",
        "answer: HTTP 200, ",
        "data.orders: list of 50, meta.count: 1",
        "the first row has  number, rev, changed, buyer.name",
        "verdict: proven",
        "in two halves: ",
        "90 days as busy as this: 1",
    ):
        assert part in told.out
    document = json.loads((await tried(shop, tmp_path / "tea.toml", RIGHT, "--from", "-3h", "--json")).ok().out)
    assert (document["verdict"], document["hints"], document["orders"]) == ("proven", [], document["total"])
    assert document["halves"]["only_whole"] == document["halves"]["in_both"] == 0
    assert document["first"]["version"]["raw"] == document["first"]["version"]["read"]


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_usual_mistake_is_named(shop: Teashop, tmp_path: Path, mistake: str) -> None:
    right, wrong, sign = MISTAKES[mistake]
    assert right in RIGHT
    told = await tried(shop, tmp_path / "tea.toml", RIGHT.replace(right, wrong))
    assert (told.code, sign in told.out) == (1, True), told.out
    assert KEY not in told.out + told.err


@pytest.mark.parametrize(
    ("zone", "modified", "code", "sign"),
    [
        ("Asia/Shanghai", True, 0, "verdict: proven"),
        ("UTC", True, 1, "look at [window] zone: the platform lists "),
        ("UTC", False, 1, "look at [window] zone: the platform lists "),
        ("Asia/Tokyo", True, 0, ". The newest order is 1h"),
    ],
)
async def test_a_wall_time_of_another_zone_is_named_or_said(
    tmp_path: Path, zone: str, modified: bool, code: int, sign: str
) -> None:
    """A platform in Shanghai. To a file that says another zone for all times, all fits. Of a zone further west, orders
    of the future are there. Of one further east, the newest ones are still to come."""
    now_s, east, form = int(time.time()), timezone(timedelta(hours=8)), "%Y-%m-%d %H:%M:%S"
    orders = [datetime.fromtimestamp(now_s - 90 * number, east).strftime(form) for number in range(1, 400)]

    async def answer(request: web.Request) -> web.Response:
        found = [at for at in orders if request.query["from"] <= at <= request.query["to"]]
        rows = [{"id": f"o{at}", "rev": 1, "at": at} for at in found]
        return web.json_response({"orders": rows, "total": len(rows)})

    text = f"""
    name = "wall"
    request = {{ path = "/orders", params = {{ from = "{{window.start}}", to = "{{window.end}}" }} }}
    window = {{ upper = "includes", format = "wall", zone = "{zone}", step = "1s" }}
    pages = {{ size = 1000, total = "total" }}
    [record]
    rows = "orders"
    key = "id"
    version = {{ kind = "number", path = "rev" }}
    """
    text += f'modified = {{ path = "at", format = "wall", zone = "{zone}" }}' if modified else ""
    app = web.Application()
    app.router.add_get("/orders", answer)
    async with TestServer(app) as server:
        url = f"http://127.0.0.1:{server.port}"
        told = await run_try(tmp_path / "wall.toml", text, "--account", f"base_url={url}", "--from", "-10h")
    assert (told.code, sign in told.out) == (code, True), told.out


async def test_ten_mistakes_are_mended_one_after_the_other_by_the_output_alone(shop: Teashop, tmp_path: Path) -> None:
    text, left = RIGHT, dict(MISTAKES)
    for right, wrong, _ in MISTAKES.values():
        text = text.replace(right, wrong)
    for _ in range(len(MISTAKES) + 1):
        told = await tried(shop, tmp_path / "tea.toml", text)
        if told.code == 0:
            break
        named = [name for name, (_, _, sign) in left.items() if sign in told.out]
        assert named, told.out
        for name in named:
            right, wrong, _ = left.pop(name)
            text = text.replace(wrong, right)
    assert (text, left) == (RIGHT, {})


@pytest.mark.parametrize(
    ("right", "wrong", "sign"),
    [
        ("page = ", "p = ", '[request.params] p = "{page.number}": the platform returns the first page again'),
        ("size = 50", "size = 50\nfirst = 2", "[pages] first = 1: there is a page before page"),
        (
            'total = "total"',
            'total = "server_time_ms"',
            "[pages] total: 'server_time_ms' is no count of the window's orders",
        ),
    ],
)
async def test_pages_by_number_are_tried_where_a_request_may_not_ask_for_the_whole_window(
    tmp_path: Path, right: str, wrong: str, sign: str
) -> None:
    text = (files("platforms") / "mall_link.toml").read_text().replace('"mall_link"', '"numbered"')
    for old, new in (
        ('style = "link"\nsize = 100\nnext = "next"\n', "size = 50\n"),
        ("total_is_live = true\n", ""),
        ('longest = "1d"', 'longest = "1h"'),
        ('limit = "{page.size}"', 'limit = "{page.size}"\npage = "{page.number}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    window = ("--from", "-3h", "--to", "-1m")
    async with a_mall(paging="number", history_ms=10_800_000, orders=1_000, ago_ms=60_000, page_size=50) as mall:
        account = ("--account", f"base_url={mall.url}", "--account", "shop=s1")
        assert "verdict: proven" in (await run_try(tmp_path / "numbered.toml", text, *account, *window)).ok().out
        told = await run_try(tmp_path / "numbered.toml", text.replace(right, wrong), *account, *window)
    assert told.code == 1
    assert sign in told.out, told.out


async def test_each_of_several_lists_is_tried(tmp_path: Path) -> None:
    text = (
        (files("platforms") / "mall_link.toml").read_text().replace('"mall_link"', '"twolists"')
        + '[[list]]\nname = "created"\nrequest.params.list = "created"\nrecord.modified.path = "created_ms"\n'
        + '[[list]]\nname = "changed"\nrequest.params.list = "changed"\n'
    )
    window = ("--from", "-3h", "--to", "-1m")
    async with a_mall(has_two_lists=True, paging="link", change_share=0.5, ago_ms=120_000) as mall:
        account = ("--account", f"base_url={mall.url}", "--account", "shop=s1")
        told = (await run_try(tmp_path / "two.toml", text, *account, *window)).ok()
        assert "== list created" in told.out
        assert "== list changed" in told.out
        assert "all lists: " in told.out
        assert "500 different orders" in told.out
        document = json.loads((await run_try(tmp_path / "two.toml", text, *account, *window, "--json")).ok().out)
        assert (document["verdict"], document["orders"], list(document["lists"])) == (
            "proven",
            500,
            ["created", "changed"],
        )
        assert document["lists"]["created"]["orders"] == 500 > document["lists"]["changed"]["orders"] > 0
        assert document["cost"]["requests"] >= 2 * document["cost"]["windows"]
        wrong = text.replace('"changed"\nrequest.params.list = "changed"', '"changed"\nrequest.params.list = "chngd"')
        refused = await run_try(tmp_path / "two.toml", wrong, *account, *window)
    assert refused.code == 1
    assert "verdict: failed: list 'changed': " in refused.out
    assert "look at list 'changed': [request]" in refused.out


async def test_a_file_is_refused_only_if_no_first_order_has_details(shop: Teashop, tmp_path: Path) -> None:
    """A platform may list an order before it has its details."""
    arguments = ("--account", f"base_url={shop.url}", "--account", "code=env:TEA_KEY", "--from", "-3h", "--to", "-1m")
    text = PARTIAL.replace("batch = 20", "batch = 1")
    for lacking, code in ((range(179, 300), 0), (range(300), 1)):
        shop.lacking = dict.fromkeys(lacking, 1_000)
        shop.logins.clear()
        told = await run_try(tmp_path / "part.toml", text, *arguments)
        assert told.code == code, told.out
        assert ("1 of 1 details are missing" in told.out) == bool(code)


async def test_a_platform_that_is_not_there_is_said_to_be_so(shop: Teashop, tmp_path: Path) -> None:
    shop.url = "http://127.0.0.1:9"
    told = await tried(shop, tmp_path / "tea.toml", RIGHT)
    assert (told.code, "look at base_url: no answer came from there" in told.out) == (1, True)


async def test_what_is_no_fault_of_the_request_sends_nobody_to_the_request(shop: Teashop, tmp_path: Path) -> None:
    """A platform that wants fewer requests, and an answer that is longer than the file allows."""
    path = tmp_path / "tea.toml"
    long = await tried(shop, path, RIGHT.replace('"teashop"', '"teashop"\nlargest_answer = 200'))
    assert long.code == 1
    assert "look at largest_answer: the answer is longer" in long.out
    shop.refuses = 1.0
    busy = await tried(shop, path, RIGHT)
    assert "verdict: failed: the platform asks us to slow down (HTTP 429)" in busy.out
    assert "look at [[rate]]: " in busy.out
    assert ("[request] and [window]" in busy.out, "base_url: no answer" in long.out) == (False, False)


async def test_rows_that_cannot_be_read_are_named_wherever_they_stand(shop: Teashop, tmp_path: Path) -> None:
    shop.orders = [TeaOrder(number, 1, int(time.time()) - 600 - number) for number in (*range(10, 90), 1_000_000)]
    shop.orders.sort(key=lambda order: order.changed_s)
    told = await tried(shop, tmp_path / "tea.toml", RIGHT + "largest = 73\n", "--from", "-30d", "--to", "-1m")
    assert "1 row cannot be read:\n  1000000: " in told.out
    assert told.code == 1


async def test_the_login_of_a_first_request_is_kept_for_the_nodes(
    cli: CommandLine, shop: Teashop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key works once. After a mistake in the file, the same command goes on with what the login brought."""
    monkeypatch.setenv("TEA_KEY", KEY)
    path = tmp_path / "part.toml"

    async def add(text: str) -> Answer:
        await anyio.Path(path).write_text(text)
        account = ("--account", f"base_url={shop.url}", "--account", "code=env:TEA_KEY")
        return await cli("sources", "add", "teapart/s1", "--adapter", str(path), "--start", "-1h", *account)

    assert (await add(PARTIAL.replace('rows = "found"', 'rows = "fund"'))).code == 2
    shop.session_length, shop._session_left = 60, 0
    assert "note:" not in (await add(PARTIAL)).ok().out
    assert shop.logins == [KEY, "refresh-1"]


async def test_the_platform_s_own_words_are_in_the_verdict(shop: Teashop, tmp_path: Path) -> None:
    """Of an error under HTTP 200 that no rule of the file knows."""
    wrong = RIGHT.replace('path = "/v2/orders"', 'path = "/v2/oops"')
    told = await tried(shop, tmp_path / "tea.toml", wrong)
    assert "the platform says: the app is not subscribed" in told.out


async def test_a_list_by_tokens_without_a_total_says_what_would_prove_it(shop: Teashop, tmp_path: Path) -> None:
    without = RIGHT.replace('total = "meta.count"\n', "")
    told = await tried(shop, tmp_path / "tea.toml", without)
    assert "verdict: unproven: the file declares no total" in told.out
    assert "end_is_proof = true in [pages]" in told.out
    proven = await tried(shop, tmp_path / "tea.toml", without.replace("[pages]", "[pages]\nend_is_proof = true"))
    assert "verdict: proven" in proven.out


async def test_a_source_is_added_only_if_the_platform_takes_a_first_request(
    cli: CommandLine, shop: Teashop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEA_KEY", KEY)
    path = tmp_path / "tea.toml"

    async def add(source: str, text: str, *more: str) -> Answer:
        await anyio.Path(path).write_text(text)
        account = ("--account", f"base_url={shop.url}", "--account", "key=env:TEA_KEY")
        return await cli("sources", "add", source, "--adapter", str(path), "--start", "-1h", *account, *more)

    for mistake in ("path", "auth", "rows", "key"):
        right, wrong, sign = MISTAKES[mistake]
        told = await add("tea/s1", RIGHT.replace(right, wrong))
        assert (told.code, sign.partition(";")[0] in told.err, "--untried" in told.err) == (2, True, True), told.err
        assert KEY not in told.err
    asked = shop.requests
    assert "note:" not in (await add("tea/s1", RIGHT)).ok().out
    assert shop.requests > asked
    monkeypatch.delenv("TEA_KEY")
    assert (
        "note: the platform was not asked, since a reference leads nowhere here"
        in (await add("tea/s2", RIGHT)).ok().out
    )
    monkeypatch.setenv("TEA_KEY", KEY)
    shop.url = "http://127.0.0.1:9"
    assert "note: asked the platform once: GET http://127.0.0.1:9/v2/orders" in (await add("tea/s3", RIGHT)).ok().out
    assert "note:" not in (await add("tea/s4", RIGHT, "--untried")).ok().out
