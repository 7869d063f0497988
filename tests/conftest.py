"""What every test may ask for: a real server, a namespace of its own, a connection, a publisher."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from streams.embedded.server import EmbeddedServer, embedded_server, find_binary
from streams.errors import ServerNotStarted
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from streams.subjects import Namespace
from tests.support.processes import Cluster, free_ports, session_cluster
from tests.support.server import connected, fresh_namespace, session_server

BOTH_LOOPS = "tests/integration/streams/"
"""The broker layer runs on asyncio and on uvloop; what stands on it is tested on one."""

settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")
"""A run finds what the run before it found, whatever else the machine does. To look further, at a desk:
`--hypothesis-profile random`."""

SLOWEST = (
    "tests/integration/api/test_schema.py",
    "tests/integration/docs/",
    "tests/integration/penstock/test_start.py",
    "tests/integration/zone/",
    "tests/integration/flow/",
    "tests/integration/jobs/test_late_answers",
    "tests/integration/jobs/test_stopped_desk.py",
    "tests/integration/streams/test_pull",
    "tests/unit/batch/test_batch_search.py",
    "tests/unit/fetch/test_search.py",
    "tests/unit/flow/test_governor_search.py",
    "tests/unit/zone/test_hub_search.py",
)
"""What takes a minute or more a file. It begins first, so that the end of a run does not wait for one file."""

SHORTEST = ("tests/unit/docs/", "tests/unit/penstock/", "tests/unit/platforms/")
"""Files of a second or less, which compute alone. They come last, so that all processes end at the same time."""

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Servers = Callable[[str], EmbeddedServer | Cluster]
"""By "one" or "three"."""


def pytest_addoption(parser: pytest.Parser) -> None:
    chaos = parser.getgroup("chaos", "attacks on a whole installation")
    chaos.addoption(
        "--long", action="store_true", help="the long form of tests/chaos, some 20 minutes, and what is marked long"
    )
    chaos.addoption(
        "--seconds", type=float, help="how long the history check of jobs goes on, in place of its own time"
    )
    chaos.addoption("--orders", type=int, help="how many orders each case of tests/contract/test_conformance.py has")
    chaos.addoption("--cases", help="of tests/contract/test_conformance.py, with commas between their names")
    chaos.addoption("--seed", type=int, default=1, help="of the attacks' chances; each report tells it")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end. The garbage collector does not go through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the slowest files first and the shortest last, and mix the others, so that those that wait and those that
    compute run beside one another. `--no-loadscope-reorder` keeps the order where files run side by side. What is
    marked `long` runs with `--long` alone."""

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        name = item.nodeid.partition("::")[0]
        return not name.startswith(SLOWEST), name.startswith(SHORTEST), crc32(name.encode())

    items.sort(key=place)
    if not config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="the full size: just deep"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked `three_servers` on one server and on three, if it shares the session's at all."""
    if "server" in metafunc.fixturenames and metafunc.definition.get_closest_marker("three_servers"):
        metafunc.parametrize("server", ["one", "three"], indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests log what is no text on purpose; a report that goes from one process to another has to be text."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    if item.nodeid.startswith(BOTH_LOOPS):
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session", autouse=True)
def _no_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What nodes remember of their servers stays out of the folders of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def binary() -> Path:
    """The nats-server to run. Without one a test is skipped at a desk, and fails in CI."""
    try:
        return find_binary()
    except ServerNotStarted as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def one_or_three(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """What the session's tests run on, started when the first one asks, and kept until the last has ended."""
    with ExitStack() as running:

        @cache
        def start(count: str) -> EmbeddedServer | Cluster:
            folder = tmp_path_factory.mktemp(count)
            if count == "three":
                return running.enter_context(session_cluster(folder))
            return running.enter_context(session_server(folder))

        yield start


@pytest.fixture(scope="session")
def server(one_or_three: Servers, request: pytest.FixtureRequest) -> EmbeddedServer | Cluster:
    """One nats-server for the session, or a cluster of three (see the marker `three_servers`). A test that kills or
    stops one starts its own."""
    return one_or_three(getattr(request, "param", "one"))


@pytest.fixture
def namespace() -> Namespace:
    return fresh_namespace()


@pytest.fixture
async def connection(server: EmbeddedServer, namespace: Namespace) -> AsyncIterator[Connection]:
    async with connected(server, namespace) as opened:
        yield opened


@pytest.fixture
async def publisher(connection: Connection) -> AsyncIterator[Publisher]:
    async with Publisher(connection) as opened:
        yield opened


@pytest.fixture
async def own_server(binary: Path, tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server for one test, to be killed, stopped and started again."""
    async with embedded_server(tmp_path / "server", port=free_ports(1)[0]) as running:
        yield running
