"""What the pages about zones tell the reader to type works when it is typed."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.docs import howto
from tests.support.processes import NATS, free_ports
from tests.support.reader import Reader

pytestmark = pytest.mark.timeout(400)  # some ten processes, one after the other


async def test_the_page_about_zones_works_as_it_is_typed(tmp_path: Path) -> None:
    ports = dict(zip(("4222",), free_ports(1), strict=True))
    async with Reader(tmp_path, ports, PENSTOCK_HTTP="off") as reader:
        typed = await reader.follow(howto("zones.md"))
        assert typed >= 7
        await reader.type_until("penstock zones list --json | grep drained")
        await reader.type_until("penstock zones show east --json | grep '\"start\":500'")
        zones = json.loads(await reader.see("penstock zones list --json"))
    assert {zone["zone"]: (zone["state"], zone["count"]) for zone in zones} == {
        "east": ("live", 100),
        "west": ("drained", 0),
    }
    with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
        found = db.execute("SELECT count(*), count(DISTINCT id) FROM synced").fetchone()
    assert found == (500, 500)
    assert "go on without a stop" not in reader.printed
    assert "drain of east" in reader.printed


async def test_two_zones_on_two_servers_and_a_killed_one_work_as_they_are_typed(binary: Path, tmp_path: Path) -> None:
    pages = ("4230", "4231", "4232", "7422")
    ports = dict(zip(pages, free_ports(len(pages)), strict=True))
    shutil.copytree(NATS / "zones", tmp_path / "zones")
    exported = {
        "PENSTOCK_HUB": "hub",
        "PENSTOCK_ZONE": "east",
        "PENSTOCK_ZONE_LEASE_S": "3",
        "PENSTOCK_NATS": f"nats://127.0.0.1:{ports['4231']}",
    }
    async with Reader(tmp_path, ports, PENSTOCK_HTTP="off", **exported) as reader:
        for block in howto("zones.md").blocks:
            if block.file in ("table.py", "sync.py"):
                (tmp_path / block.file).write_text(block.text)
        assert await reader.follow(howto("clusters.md")) == 10
        await reader.type_until("penstock zones show east --json | grep '\"start\":400'")
        zones = json.loads(await reader.see("penstock zones list --json"))
        report = json.loads(await reader.see("penstock routing report --json"))
    assert {zone["zone"]: (zone["state"], zone["count"]) for zone in zones} == {
        "east": ("live", 100),
        "west": ("drained", 0),
    }
    assert (report["why"], report["shards"], report["is_over"], report["skipped"]) == ("zone west is dead", 51, True, 0)
    with closing(sqlite3.connect(tmp_path / "orders.db")) as db:
        assert db.execute("SELECT count(DISTINCT id) FROM synced").fetchone() == (400,)
