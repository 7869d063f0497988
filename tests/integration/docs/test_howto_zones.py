"""What the page about zones tells the reader to type works when it is typed."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.docs import howto
from tests.support.processes import free_ports
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
