"""The gateway as an actor: its address, its start, and its two-step stop."""

import logging
import socket
from contextlib import closing

import anyio
import pytest
from aiohttp import ClientSession

from penstock.node.config import Config
from streams.link.connection import Connection
from streams.publish.publisher import Publisher
from tests.integration.api.test_rest import add, call, reserve
from tests.support.gateway import running_gateway
from tests.support.processes import free_ports


async def test_of_two_on_one_address_the_second_takes_over(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    (port,) = free_ports(1)
    config = Config(http=f"127.0.0.1:{port}")
    async with running_gateway(connection, publisher, config) as first:
        async with running_gateway(connection, publisher, config) as second:
            assert second.port == 0, "it runs without the address meanwhile"
            told = [record for record in caplog.records if record.getMessage() == "gateway.address_taken"]
            assert [record.levelno for record in told] == [logging.WARNING]
            first.stop.set()
            with anyio.fail_after(30):
                await second.gateway.is_up.wait()
            async with ClientSession(second.url) as client, client.get("/ready") as response:
                assert response.status == 200
            told = [record for record in caplog.records if record.getMessage() == "gateway.address_taken"]
            assert len(told) == 1


async def test_a_stop_ends_long_polls_and_pushes_at_once_and_takes_no_new_ones(
    connection: Connection, publisher: Publisher
) -> None:
    answers: list[object] = []
    async with running_gateway(connection, publisher) as gateway, ClientSession(gateway.url) as client:
        await add(client, "t", {"delay_ms": 3_600_000})
        shared = gateway.gateway.shared

        async def poll() -> None:
            answers.append(await reserve(client, "t", wait_ms=30_000))

        async def push() -> None:
            async with client.post("/v1/topics/t/reservations") as response:
                answers.append(await response.text())

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                tasks.start_soon(push)
                while len(shared.polls) < 2:
                    await call(client, "GET", "/health")
                gateway.stop.set()
            await gateway.has_ended.wait()
        with closing(socket.socket()) as probe:
            assert probe.connect_ex(("127.0.0.1", gateway.port)) != 0
    assert [] in answers
    assert "retry: 1000\n\n" in answers


async def test_a_job_that_was_handed_out_at_the_stop_is_not_lost(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher) as gateway, ClientSession(gateway.url) as client:
        await add(client, "t", {"id": "1"})
        gateway.stop.set()
        with anyio.fail_after(30):
            await gateway.has_ended.wait()
    async with running_gateway(connection, publisher) as gateway, ClientSession(gateway.url) as client:
        assert [job["id"] for job in await reserve(client, "t")] == ["1"]


async def test_beyond_this_machine_nothing_is_listened_on_before_there_is_a_token(
    connection: Connection, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(http="0.0.0.0:0", behind_proxy=True)
    async with running_gateway(connection, publisher, config) as gateway:
        assert gateway.port == 0
        (told,) = [record for record in caplog.records if record.getMessage() == "gateway.waits_for_a_token"]
        assert told.levelno == logging.ERROR
        token = await gateway.token("first")
        with anyio.fail_after(30):
            await gateway.gateway.is_up.wait()
        async with ClientSession(gateway.url) as client:
            await call(client, "GET", "/v1/topics", status=401)
        async with ClientSession(gateway.url, headers={"Authorization": f"Bearer {token}"}) as client:
            await call(client, "GET", "/v1/topics")


async def test_a_node_that_waits_for_a_token_stops_like_any_other(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher, Config(http="0.0.0.0:0", behind_proxy=True)) as gateway:
        gateway.stop.set()
        with anyio.fail_after(30):
            await gateway.has_ended.wait()


async def test_switched_off_it_does_nothing(connection: Connection, publisher: Publisher) -> None:
    async with running_gateway(connection, publisher, Config(http="off")) as gateway:
        assert gateway.port == 0


def test_other_machines_are_not_reached_unencrypted() -> None:
    with pytest.raises(ValueError, match="tokens would travel unencrypted"):
        Config(http="0.0.0.0:7070")
