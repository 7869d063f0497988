"""The mall itself, over HTTP: real faults, a truth that is what it lists, and a process that starts and ends."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import Any

import aiohttp
import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from platforms.mall.config import MallConfig
from platforms.mall.faults import Faults
from platforms.mall.server import Mall, open_mall

START = 1_700_000_000_000


@asynccontextmanager
async def opened(**config: Any) -> AsyncIterator[tuple[Mall, aiohttp.ClientSession]]:
    mall_config = MallConfig(**{"orders": 200, "history_ms": 600_000, **config})
    async with open_mall(mall_config, clock=lambda: START + 10_000, start_ms=START) as mall:
        async with aiohttp.ClientSession(mall.url, timeout=aiohttp.ClientTimeout(total=2)) as session:
            yield mall, session


async def read_json(answer: aiohttp.ClientResponse) -> Any:
    return json.loads(await answer.read())


async def test_the_truth_is_what_is_listed_once_all_is_visible() -> None:
    async with opened(shops=2) as (_, session):
        for shop in ("s1", "s2"):
            listed = []
            for start in range(START - 600_000, START, 100_000):
                params = {"shop": shop, "from": str(start), "to": str(start + 100_000), "limit": "100"}
                async with session.get("/orders", params=params) as answer:
                    page = await read_json(answer)
                assert page["total"] == len(page["orders"])
                listed += [[order["id"], order["version"], order["modified_ms"]] for order in page["orders"]]
            async with session.get("/_mall/truth", params={"shop": shop}) as answer:
                truth = [json.loads(line) for line in (await answer.text()).splitlines()]
            assert sorted(listed) == [line[:3] for line in truth]
            assert len(truth) == 100


async def test_a_state_says_what_there_is() -> None:
    async with opened(shops=2, live_ms=20_000) as (mall, session), session.get("/_mall/state") as answer:
        state = await read_json(answer)
        assert (state["url"], state["shops"], state["orders"]) == (mall.url, ["s1", "s2"], 200)
        assert state["start_ms"] == START < state["end_ms"] == START + 20_000
        assert state["last_visible_ms"] >= max(order[3] for shop in mall.shops.values() for order in shop.truth())  # type: ignore[type-var] # a time


@pytest.mark.parametrize(
    ("fault", "status", "kind", "code"),
    [
        ("throttle", 429, "application/json", "too_fast"),
        ("error", 500, "text/plain", None),
        ("html", 200, "text/html", None),
        ("object", 200, "application/json", "busy"),
        ("redirect", 301, "application/octet-stream", None),
    ],
)
async def test_spoilt_answers(fault: Any, status: int, kind: str, code: str | None) -> None:
    async with opened(faults=Faults(next=(fault,), retry_after_s=7)) as (_, session):
        async with session.get("/orders?shop=s1", allow_redirects=False) as answer:
            assert (answer.status, answer.content_type) == (status, kind)
            assert (fault == "throttle") == (answer.headers.get("Retry-After") == "7")
            assert code is None or (await read_json(answer))["error"]["code"] == code
        async with session.get("/orders?shop=s1") as answer:
            assert answer.status == 200
        async with session.get("/_mall/stats") as answer:
            stats = await read_json(answer)
        kind = "throttled" if fault == "throttle" else "spoilt"
        assert stats == {
            "requests": 2,
            "kinds": {kind: 1, "list": 1, "empty": 0, "repeated": 0},
            "ideal": 2,
            "faults": {fault: 1},
            "logins": 0,
        }


@pytest.mark.parametrize("fault", ["cut", "hang"])
async def test_broken_connections_break(fault: Any) -> None:
    """Twice, since the client asks again by itself when a connection ends before any answer."""
    async with opened(faults=Faults(next=(fault, fault), hang_s=0.01)) as (_, session):
        with pytest.raises(aiohttp.ClientError):
            async with session.get("/orders?shop=s1") as answer:
                await answer.read()


async def test_half_an_answer_is_half_of_it() -> None:
    async with opened(faults=Faults(next=("half",))) as (_, session):
        bodies = []
        for _ in range(2):
            async with session.get("/orders?shop=s1") as answer:
                bodies.append(await answer.read())
        assert bodies[0] == bodies[1][: len(bodies[1]) // 2]


async def test_a_late_answer_is_a_whole_one_and_a_hanging_one_ends_with_the_mall() -> None:
    async with opened(faults=Faults(next=("late", "hang"), late_ms=1, hang_s=3_600)) as (_, session):
        async with session.get("/orders?shop=s1") as answer:
            assert (await read_json(answer))["total"] == 200
        with pytest.raises(TimeoutError):
            await session.get("/orders?shop=s1", timeout=aiohttp.ClientTimeout(total=0.05))


async def test_faults_can_be_changed_while_it_runs() -> None:
    async with opened() as (mall, session):
        async with session.post("/_mall/faults", json={"preset": "demo"}) as answer:
            assert (await read_json(answer))["error"] == mall.dealer.faults.error > 0
        async with session.post("/_mall/faults", json={"next": ["error"]}) as answer:
            assert (answer.status, mall.dealer.faults.next) == (200, ("error",))
        refused: list[Any] = [{"preset": "many"}, {"eror": 1}, {"error": 2}, [], "x"]
        for wrong in refused:
            async with session.post("/_mall/faults", json=wrong) as answer:
                assert answer.status == 400
        assert mall.dealer.faults.next == ("error",)


@pytest.mark.parametrize("path", ["/orders?shop=s9", "/orders", "/orders?shop=s1&from=x", "/orders?shop=s1&limit=-1"])
async def test_wrong_questions_are_refused(path: str) -> None:
    async with opened() as (_, session), session.get(path) as answer:
        assert answer.status == 400


async def test_orders_want_a_token_if_told_so() -> None:
    async with opened(needs_token=True) as (_, session):
        async with session.get("/orders?shop=s1") as answer:
            assert answer.status == 401
        async with session.post("/_mall/login", json={"key": "k"}) as answer:
            token = (await read_json(answer))["access_token"]
        async with session.get("/orders?shop=s1", headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("how", ["stdin", "signal"])
async def test_as_a_process_it_tells_where_it_is_and_ends_when_told(how: str) -> None:
    command = [
        sys.executable,
        "-m",
        "platforms.mall",
        "--orders",
        "50",
        "--shops",
        "2",
        "--live",
        "1s",
        "--until-stdin-closes",
    ]
    with anyio.fail_after(20):
        async with await anyio.open_process(command, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            state = json.loads(await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 1 << 16))
            async with aiohttp.ClientSession() as session, session.get(f"{state['url']}/_mall/state") as answer:
                assert (await read_json(answer))["orders"] == 50
            if how == "stdin":
                await process.stdin.aclose()
            else:
                process.terminate()
            assert await process.wait() == 0
