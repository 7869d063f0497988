"""What is promised to a program that logs in as `app`: all of it from an account of its own, through a real node."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
import pytest
from sqlalchemy import create_engine

import penstock
from penstock.errors import NotAccepted
from penstock.sdk.client import Client
from penstock.sdk.outbox import Outbox
from streams.link.connection import Connection, connect
from streams.link.frames import Message, publish_frame
from tests.support.accounts import Users, secured_server
from tests.support.command import penstock as command
from tests.support.command import plain_environment
from tests.support.moments import a_moment
from tests.support.processes import free_ports
from tests.support.programs import program

LONG_S = 60.0


class Place(NamedTuple):
    """A server with logins and a node on it."""

    url: str
    http: str
    users: Users


@pytest.fixture(scope="module")
def place(binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    users, (port,) = Users(), free_ports(1)
    with secured_server(tmp_path_factory.mktemp("secured"), users) as server:
        folder = tmp_path_factory.mktemp("node")
        admin = plain_environment(PENSTOCK_NATS=server.url, **users.login("admin"))
        with program([sys.executable, "-m", "penstock", "init", "--profile", "fast"], folder, admin) as init:
            init.ended()
        login = plain_environment(
            PENSTOCK_NATS=server.url,
            PENSTOCK_LOG_FORM="json",
            PENSTOCK_HTTP=f"127.0.0.1:{port}",
            PENSTOCK_DATA=str(folder),
            **users.login("node"),
        )
        up = [sys.executable, "-m", "penstock", "up", "--sink", "none", "--app", "tests.support.accounts_app"]
        with program(up, Path.cwd(), login) as node:
            node.until(lambda lines: any('"event":"node.ready"' in line for line in lines))
            yield Place(server.url, f"http://127.0.0.1:{port}", users)
            node.process.terminate()
            assert [line for line in node.ended() if "permission" in line.lower()] == []


@pytest.fixture
async def client(place: Place) -> AsyncIterator[Client]:
    async with penstock.connect(place.url, credentials=place.users.credentials("app")) as opened:
        yield opened


@pytest.fixture
async def link(place: Place) -> AsyncIterator[Connection]:
    """A program's plain connection."""
    async with connect(place.url, name="app", credentials=place.users.credentials("app")) as opened:
        yield opened


async def test_jobs_are_added_held_and_settled(client: Client) -> None:
    with anyio.fail_after(LONG_S):
        for number in range(3):
            assert (await client.jobs.add("mail", {"to": number}, id=f"m{number}")).is_new
        held = await client.jobs.reserve_many("mail", most=1, wait=20)
        await held[0].finish()
        async with client.jobs.reserve("mail", wait=20) as job:
            assert job is not None
        await client.jobs.add("mail", id="later", delay=3600)
        assert [job.id async for job in client.jobs.list("mail") if job.id == "later"] == ["later"]
        assert await client.jobs.delete("later", "mail")
        assert await client.jobs.reserve_many("none-of-it", wait=1.5) == []


async def test_jobs_are_handed_in_by_a_plain_publish_with_and_without_a_receipt(
    link: Connection, client: Client
) -> None:
    with anyio.fail_after(LONG_S):
        stored = await link.request("penstock.submit.job.post", b'{"id": "asked", "body": 1}')
        assert json.loads(stored.payload)["stream"] == "PENSTOCK_SUBMIT"
        await link.publish_core("penstock.submit.job.post", b'{"id": "told", "body": 2}')
        held = [*await client.jobs.reserve_many("post", wait=20), *await client.jobs.reserve_many("post", wait=20)]
        assert {job.id for job in held} == {"asked", "told"}


async def test_an_outbox_is_relayed(place: Place, client: Client, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine, outbox = create_engine(url), Outbox()
    outbox.create(engine)
    with engine.begin() as open_transaction:
        outbox.add(open_transaction, "boxed", {"order": 1}, id="box-1")
    engine.dispose()
    login = place.users.login("app")
    relayed = await command("outbox", "relay", "--db", url, "--once", PENSTOCK_NATS=place.url, **login)
    assert (relayed.code, relayed.out) == (0, "1 handed over, 0 refused, 0 to be tried again later\n")
    with anyio.fail_after(LONG_S):
        (job,) = await client.jobs.reserve_many("boxed", wait=20)
    assert job.id == "box-1"


async def test_batches_are_submitted_followed_and_heard_of(link: Connection, client: Client) -> None:
    heard: list[str] = []
    with anyio.fail_after(LONG_S):
        await link.subscribe("penstock.events.batch.>", lambda message: heard.append(message.subject))
        await link.flush()
        made = await client.batches.submit("count", {"n": 30}, id="asked")
        view = await client.batches.wait(made.instance_id)
        assert (view.state, view.counts.succeeded) == ("done", 30)
        assert len([item async for item in client.batches.items("asked")]) == 30
        stored = await link.request("penstock.submit.batch.count", b'{"id": "plain", "input": {"n": 3}}')
        assert json.loads(stored.payload)["stream"] == "PENSTOCK_SUBMIT"
        while not {subject.rpartition(".")[2] for subject in heard} >= {"asked", "plain"}:
            await a_moment()


async def test_files_go_over_http_and_the_other_way_is_named(place: Place, client: Client, tmp_path: Path) -> None:
    """Whoever may write files of the server's may write everybody's."""
    sheet = tmp_path / "products.csv"
    sheet.write_text("sku,price\nA1,1\n")
    with anyio.fail_after(LONG_S):
        with pytest.raises(NotAccepted, match="over HTTP") as refused:
            await client.batches.submit("register", file=sheet)
        assert refused.value.code == "forbidden"
        assert await _uploaded(place, "register", sheet) == "done"


async def test_a_program_runs_items_that_a_node_asks_for(place: Place, link: Connection, tmp_path: Path) -> None:
    sheet = tmp_path / "images.csv"
    sheet.write_text("name\na\nb\n")

    def answer(asked: Message) -> None:
        items = json.loads(asked.payload)["items"]
        told = {"outcomes": [{"index": item["index"], "status": "ok"} for item in items]}
        link.client.send(publish_frame(asked.reply, "", b"", json.dumps(told).encode()))

    with anyio.fail_after(LONG_S):
        await link.subscribe("penstock.ask.app.>", answer)
        await link.flush()
        assert await _uploaded(place, "tag-images", sheet) == "done"


async def test_services_are_found(link: Connection) -> None:
    found = await link.request("$SRV.PING.penstock-batch")
    assert json.loads(found.payload)["name"] == "penstock-batch"


async def _uploaded(place: Place, task: str, sheet: Path) -> str:
    """Send a sheet over HTTP and return how its batch ended."""
    async with aiohttp.ClientSession(place.http) as session:
        path = f"/v1/batches/{task}"
        headers = {"Content-Type": "text/csv", "X-File-Name": sheet.name}
        async with session.post(path, headers=headers, data=await anyio.Path(sheet).read_bytes()) as answer:
            view: dict[str, Any] = await answer.json()
            assert answer.status in (200, 201, 202), view
        while view["state"] not in ("done", "failed"):
            await anyio.sleep(0.05)
            async with session.get(f"/v1/batches/{view['id']}") as answer:
                view = await answer.json()
    state: str = view["state"]
    return state
