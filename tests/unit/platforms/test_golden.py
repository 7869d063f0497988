"""Recorded exchanges: each adapter asks and reads today as it did when they were recorded."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from platforms.adapter import Account, Response
from platforms.bounds import Window
from platforms.registry import adapter_named

FOLDER = Path(__file__).parents[2] / "golden" / "platforms"
EXCHANGES = sorted(path.stem for path in FOLDER.glob("*.json"))


def exchange(name: str) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())
    return read


def test_every_adapter_has_an_exchange() -> None:
    assert {exchange(name)["adapter"] for name in EXCHANGES} == {"mall", "mall_token", "mall_link", "plain"}


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_request_is_the_recorded_one(name: str) -> None:
    told = exchange(name)
    account = Account("shop", told["account"])
    made = adapter_named(told["adapter"]).request(Window(*told["window"]), told["page"], account, told["now_ms"])
    assert (
        msgspec.json.decode(msgspec.json.encode(msgspec.structs.asdict(made) | {"body": made.body.decode()}))
        == told["request"]
    )


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_answer_is_read_as_recorded(name: str) -> None:
    told = exchange(name)
    response = Response(told["response"]["status"], told["response"]["headers"], told["response"]["body"].encode())
    adapter = adapter_named(told["adapter"])
    outcome = adapter.outcome(response)
    assert (None if outcome is None else msgspec.to_builtins(outcome)) == told["outcome"]
    if outcome is None:
        page = adapter.page(response)
        assert {
            "rows": [[row.key, row.version, row.modified_ms, row.body.decode()] for row in page.rows],
            "next": page.next,
            "total": page.total,
            "server_time_ms": page.server_time_ms,
            "bad": [[row.key, row.reason] for row in page.bad],
        } == told["read"]
