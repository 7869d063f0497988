"""What the pages of docs/howto tell the reader to type works when it is typed."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from actors.batch.rules.callbacks import signature
from streams.clock import now_ms
from tests.support.docs import ROOT, Page, howto
from tests.support.processes import free_ports
from tests.support.reader import Reader

pytestmark = [
    pytest.mark.timeout(400),  # some twenty processes, one after the other
    pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl"),
]


def replies(page: Page) -> list[str]:
    """Return what the page says that the original protocol answers."""
    lines = [line for block in page.blocks if block.language == "text" for line in block.text.splitlines()]
    return [line for line in lines if line.startswith('{"success"')]


async def test_the_page_works_as_it_is_typed(tmp_path: Path) -> None:
    page = howto("fetch.md").section("PostgreSQL")
    ports = dict(zip(("8100", "4222", "7070"), free_ports(3), strict=True))
    async with Reader(tmp_path, ports, PENSTOCK_HTTP=f"127.0.0.1:{ports['7070']}") as reader:
        typed = await reader.follow(page)
        await reader.type_until("penstock nodes --json | grep '\"second\"'")
        assert json.loads(await reader.see("penstock holes list --json")) == []
        assert typed > 10
    assert '{"source":"teashop/s1","start_ms":' in reader.printed, "the hint with a token was not taken"
    assert "s1 s1-" in reader.log.read_text(encoding="utf-8"), "the page's own sink printed no order"


async def test_the_page_about_jobs_works_as_it_is_typed(tmp_path: Path) -> None:
    for program in ("php", "node"):
        if shutil.which(program) is None:
            pytest.skip(f"the page uses {program}")
    shutil.copytree(ROOT / "examples" / "order_closing", tmp_path, dirs_exist_ok=True)
    nats, gateway = free_ports(2)
    address = f"127.0.0.1:{gateway}"
    async with Reader(
        tmp_path, {"4222": nats, "7070": gateway}, PENSTOCK_HTTP=address, QUEUE=f"http://{address}"
    ) as reader:
        typed = await reader.follow(howto("jobs.md"))
        assert typed > 10
        for reply in replies(howto("jobs.md")):
            assert reply in reader.printed
        await reader.type_until('penstock jobs count close-order --json | grep \'"delayed":0,"ready":0,"reserved":0\'')
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        states = [state for (state,) in shop.execute("SELECT state FROM orders ORDER BY id")]
    assert states == ["closed", "paid", "closed", "paid", "closed", "paid", "closed"]
    log = reader.log.read_text(encoding="utf-8")
    for shop_name in ("py", "php", "node"):
        assert log.count(f"closed {shop_name}-") == 3


async def test_the_page_about_schedules_works_as_it_is_typed(tmp_path: Path) -> None:
    nats, gateway = free_ports(2)
    ports = {"4222": nats, "7070": gateway}
    async with Reader(tmp_path, ports, PENSTOCK_HTTP=f"127.0.0.1:{gateway}") as reader:
        typed = await reader.follow(howto("schedules.md").section("What failed for good"))
        await reader.type_until('penstock batch list --json | grep \'"state":"done"\'')
        for name in ("weekly", "monthly"):
            await reader.type_until(f"penstock schedules show reports/{name} | grep 'finished, triggered'")
        schedules = json.loads(await reader.see("penstock schedules list --json"))
    assert typed == 7
    names = [f"{one['topic']}/{one['name']}" for one in schedules]
    assert names == [
        "prices/nightly",
        "reports/jubilee",
        "reports/monthly",
        "reports/weekly",
        "sales/hourly",
        "stock/crawl",
        "stock/sweep",
        "stock/sync",
    ]
    assert "new 3\ntriggered reports\nas before 3\ntriggered reports\n" in reader.printed
    log = reader.log.read_text(encoding="utf-8")
    assert log.count("report weekly.") == 2
    assert all(f"prices of shop {shop}\n" in log for shop in range(3))


def test_the_page_about_jobs_shows_the_examples_as_they_are() -> None:
    shown = {block.file: block.text for block in howto("jobs.md").blocks if block.file}
    for name in ("close_orders.py", "shop.py", "shop.php"):
        assert shown[name] == (ROOT / "examples" / "order_closing" / name).read_text(encoding="utf-8"), name


async def test_the_page_about_batches_works_as_it_is_typed(tmp_path: Path) -> None:
    nats, gateway, back_end = free_ports(3)
    ports = {"4222": nats, "7070": gateway, "8099": back_end}
    async with Reader(tmp_path, ports, PENSTOCK_HTTP=f"127.0.0.1:{gateway}") as reader:
        typed = await reader.follow(howto("batch.md"))
    assert typed >= 10
    assert "spring: done, 5 of 5 items, 2 succeeded, 3 failed" in reader.printed
    assert "spring: done, 5 of 5 items, 3 succeeded, 2 failed, pass 2" in reader.printed
    assert "done 3 succeeded 2 failed" in reader.printed
    assert "sale: done, 2 of 2 items, 2 succeeded" in reader.printed
    assert (tmp_path / "prices.csv").read_text(encoding="utf-8-sig") == "sku,new price\nT-100,4.32\nT-101,3.51\n"
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert [log.count(f"winter {moment} ") for moment in ("first_failure", "done")] == [1, 1]
    for name in ("spring", "summer", "autumn"):
        assert (tmp_path / f"{name}.xlsx").read_bytes().startswith(b"PK"), name
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        assert sorted(shop.execute("SELECT sku FROM products")) == [("C-200",), ("T-100",), ("T-101",)]


async def test_the_page_about_batches_checks_signatures_in_php(tmp_path: Path) -> None:
    if (php := shutil.which("php")) is None:
        pytest.skip("the page uses php")
    [block] = [block for block in howto("batch.md").blocks if block.file == "signed.php"]
    (tmp_path / "signed.php").write_text(block.text, encoding="utf-8")
    code = 'require "signed.php"; [, $header, $body, $key] = $argv; echo json_encode(is_signed($header, $body, $key));'
    body, now_s = '{"event": "done", "a": "ü & =;,"}'.encode(), now_ms() // 1000
    signed = signature("a key of the shop", body, now_s)
    for header, sent, is_right in (
        (signed, body, True),
        (signed, body + b" ", False),
        (signed.replace(f"t={now_s}", f"t={now_s + 1}"), body, False),
        (signature("another key", body, now_s), body, False),
        (signature("a key of the shop", body, now_s - 600), body, False),
        ("", body, False),
    ):
        ran = await anyio.run_process([php, "-r", code, "--", header, sent, "a key of the shop"], cwd=tmp_path)
        assert json.loads(ran.stdout) is is_right, header
