"""What the pages about flows and rates tell the reader to type works when it is typed."""

import json
import sqlite3
from contextlib import closing, nullcontext
from pathlib import Path
from statistics import median

import pytest

from tests.support.docs import howto
from tests.support.postgres import postgres_server
from tests.support.processes import free_ports
from tests.support.reader import Reader

pytestmark = pytest.mark.timeout(400)  # some ten processes, one after the other


async def test_the_page_about_flows_works_as_it_is_typed(tmp_path: Path) -> None:
    async with Reader(tmp_path, dict(zip(("4222",), free_ports(1), strict=True)), PENSTOCK_HTTP="off") as reader:
        typed = await reader.follow(howto("flows.md"))
        assert typed >= 6
        await reader.type_until("python left.py | grep 'left: 0$'")
        assert json.loads(await reader.see("penstock dead list --json"))["letters"] == []
    assert ", 1000/s, every 2s" in reader.printed
    assert "pay-prizes: paused" in reader.printed


async def test_the_page_about_rates_works_as_it_is_typed(tmp_path: Path) -> None:
    async with Reader(tmp_path, dict(zip(("4222",), free_ports(1), strict=True)), PENSTOCK_HTTP="off") as reader:
        typed = await reader.follow(howto("rates.md"))
        assert typed >= 5
        await reader.type_until("penstock rates list --json | grep '\"rate\":100.0'")
    assert "topic/mail: 100/s, before 20/s" in reader.printed
    assert "topic/mail: 5 seconds from 20" in reader.printed
    assert "wrote mail.svg" in reader.printed
    assert "topic/mail" in (tmp_path / "mail.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_the_page_about_a_prize_pool_works_as_it_is_typed(tmp_path: Path, kind: str) -> None:
    with postgres_server() if kind == "postgresql" else nullcontext() as server:
        environment = {"PENSTOCK_HTTP": "off"} if server is None else {"PENSTOCK_HTTP": "off", "POOL": server.url}
        fewer: dict[str, int | str] = {"4222": free_ports(1)[0], "range(500)": "range(250)"}
        async with Reader(tmp_path, fewer, **environment) as reader:
            await reader.follow(howto("prizes.md"))
            paid = await reader.type_until("python paid.py | grep 'paid: 2000 '")
            assert json.loads(await reader.see("penstock dead list --json"))["letters"] == []
    seconds = [int(count) for count in paid.partition("second:")[2].split()]
    assert 17 <= len(seconds) <= 60, "2,000 at 100 a second"
    assert max(seconds) <= 200, "a row is paid after it began, a second later on a machine that has other work"
    assert median(seconds) <= 105


async def test_the_page_about_levels_works_as_it_is_typed(tmp_path: Path) -> None:
    ports = dict(zip(("4222",), free_ports(1), strict=True))
    async with Reader(tmp_path, ports, PENSTOCK_HTTP="off") as reader:
        typed = await reader.follow(howto("levels.md"))
    assert typed >= 3
    assert "written 8\n" in reader.log.read_text(encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "coupons.db")) as db:
        [(count, least)] = db.execute("SELECT count(*), min(text) FROM reminders").fetchall()
    assert (count, least) == (1_002, "user-0: your coupon expires in 1 days")
