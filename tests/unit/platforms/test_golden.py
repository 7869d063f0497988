"""Recorded exchanges: each adapter asks and reads today as it did when they were recorded."""

from typing import Any

import msgspec
import pytest

from platforms.adapter import Account, Response
from platforms.bounds import Window
from platforms.registry import adapter_named, adapter_names
from tests.support.exchanges import FOLDER, read_facts, request_facts

EXCHANGES = sorted(path.stem for path in FOLDER.glob("*.json"))


def exchange(name: str) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode((FOLDER / f"{name}.json").read_bytes())
    return read


def test_every_adapter_has_an_exchange() -> None:
    assert {exchange(name)["adapter"] for name in EXCHANGES} == set(adapter_names())


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_request_is_the_recorded_one(name: str) -> None:
    told = exchange(name)
    account = Account("shop", told["account"])
    made = adapter_named(told["adapter"]).request(Window(*told["window"]), told["page"], account, told["now_ms"])
    assert request_facts(made) == told["request"]


@pytest.mark.parametrize("name", EXCHANGES)
def test_the_answer_is_read_as_recorded(name: str) -> None:
    told = exchange(name)
    response = Response(told["response"]["status"], told["response"]["headers"], told["response"]["body"].encode())
    facts = read_facts(told["adapter"], response)
    if facts["outcome"] is None:
        assert facts == {"outcome": told["outcome"], "read": told["read"]}
    else:  # an outcome may have got fields since
        assert {name: facts["outcome"].get(name) for name in told["outcome"]} == told["outcome"]
