"""The README's first line, small: real server, malls with faults, nodes killed, every order there and none twice."""

from pathlib import Path

import pytest

from tests.support.command import penstock, penstock_within

NEEDED = {"made", "stored", "missing", "doubled", "holes", "killed", "seconds", "orders_per_second"}


@pytest.mark.timeout(400)
async def test_demo_with_kills_ends_whole(tmp_path: Path) -> None:
    arguments = ("demo", "--orders", "1500", "--platforms", "2", "--kill", "--json")
    done = await penstock_within(300, *arguments, PENSTOCK_DATA=str(tmp_path))
    report = done.json()
    assert set(report) >= NEEDED
    assert (done.code, report["made"], report["missing"], report["doubled"], report["holes"]) == (0, 1500, 0, 0, 0)
    assert report["killed"] >= 6


async def test_demo_refuses_more_than_it_can_do(tmp_path: Path) -> None:
    done = await penstock("demo", "--nodes", "99", PENSTOCK_DATA=str(tmp_path))
    assert done.code == 2
    assert "--nodes" in done.err
