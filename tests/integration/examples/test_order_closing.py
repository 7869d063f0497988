"""The order-closing story in every language: paid orders stay open, unpaid ones are closed once, and not too early."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import pytest

from streams.clock import monotonic_s
from tests.support.command import plain_environment
from tests.support.docs import ROOT
from tests.support.moments import MOMENT_S
from tests.support.processes import free_ports
from tests.support.programs import WITHIN_S, Program, program

STORY = ROOT / "examples" / "order_closing"
STOCK = 100
"""What shop.py begins with."""


class Story(NamedTuple):
    """A node with the story's handler, and what is needed to run a program beside it."""

    folder: Path
    gateway: str
    node: Program
    start: Callable[..., Program]

    def until_over(self, topic: str) -> None:
        """Return once no job of a topic can be handed out any more: a worker may be about to finish one."""
        give_up_s = monotonic_s() + WITHIN_S
        while any(self.counts(topic)[state] for state in ("delayed", "ready", "reserved")):
            assert monotonic_s() < give_up_s, self.counts(topic)
            time.sleep(MOMENT_S)

    def counts(self, topic: str) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.gateway}/v1/topics/{topic}") as answer:
            counts: dict[str, int] = json.load(answer)
        return counts


@pytest.fixture(scope="module")
def story(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    folder = shutil.copytree(STORY, tmp_path_factory.mktemp("story") / "shop")
    nats, gateway = free_ports(2)
    environment = plain_environment(
        PENSTOCK_DATA=str(folder / "data"), PENSTOCK_HTTP=f"127.0.0.1:{gateway}", PENSTOCK_LOG_FORM="json"
    )
    with ExitStack() as programs:
        up = [sys.executable, "-m", "penstock", "up", "--port", str(nats), "--app", "close_orders", "--sink", "none"]
        node = programs.enter_context(program(up, folder, environment))
        node.until(lambda lines: any('"event":"node.ready"' in line for line in lines))
        url = f"http://127.0.0.1:{gateway}"
        clients = environment | {"PENSTOCK_NATS": f"nats://127.0.0.1:{nats}", "QUEUE": url}

        def start(*command: str) -> Program:
            return programs.enter_context(program(command, folder, clients))

        yield Story(folder, url, node, start)


def need(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")


def told(verb: str, lines: list[str]) -> list[str]:
    """Return the orders of all lines of one verb."""
    return [line.split()[1] for line in lines if line.startswith(f"{verb} ")]


def closed_in_time(lines: list[str]) -> bool:
    """True if no order was closed before it was due."""
    times = [re.fullmatch(r"closed \S+ due (\d+) at (\d+)", line) for line in lines if line.startswith("closed ")]
    assert times
    return all(found is not None and int(found[1]) <= int(found[2]) for found in times)


def check(made: list[str], paid: list[str], worker: Program) -> None:
    """Wait until the unpaid orders are closed."""
    unpaid = [order for order in made if order not in paid]
    assert len(made) == 6
    assert len(unpaid) == 3
    lines = worker.until(lambda lines: set(told("closed", lines)) >= set(unpaid))
    assert sorted(order for order in told("closed", lines) if order in made) == sorted(unpaid)
    assert closed_in_time(lines)


def check_remote(story: Story, shop: Program, worker: Program, topic: str) -> None:
    lines = shop.ended()
    check(told("made", lines), told("paid", lines), worker)
    story.until_over(topic)
    check(told("made", lines), told("paid", lines), worker)


def test_in_python(story: Story) -> None:
    lines = story.start(sys.executable, "shop.py").ended()
    made, paid = told("made", lines), told("paid", lines)
    check(made, paid, story.node)
    story.until_over("close-order")
    with closing(sqlite3.connect(story.folder / "shop.db")) as shop:
        states = dict(shop.execute("SELECT id, state FROM orders").fetchall())
        (pieces,) = shop.execute("SELECT pieces FROM stock").fetchone()
    assert states == {order: "paid" if order in paid else "closed" for order in made}
    assert pieces == STOCK - len(paid), "each unpaid order gives its piece back once"


def test_in_php(story: Story) -> None:
    need("php")
    check_remote(story, story.start("php", "shop.php"), story.start("php", "worker.php"), "close-order-php")


def test_in_node(story: Story) -> None:
    need("node")
    check_remote(story, story.start("node", "shop.mjs"), story.start("node", "worker.mjs"), "close-order-node")


def test_in_java(story: Story) -> None:
    need("javac")
    sources = sorted(path.name for path in story.folder.glob("*.java"))
    subprocess.run(["javac", "-d", ".", "-Xlint:all", "-Werror", *sources], cwd=story.folder, check=True)
    check_remote(story, story.start("java", "Shop"), story.start("java", "Worker"), "close-order-java")


def test_in_curl(story: Story) -> None:
    need("curl")
    lines = story.start("sh", "shop.sh").ended()
    made, paid = told("made", lines), told("paid", lines)
    assert told("closed", lines) == [order for order in made if order not in paid]
    assert len(made) == 2
    assert '{"success":true' in lines[-1].replace(" ", "")
    story.until_over("close-order-sh")
