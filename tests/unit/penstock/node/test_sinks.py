"""Where a node's orders go, as far as its configuration says it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.node.config import Config
from penstock.node.fetch import sinks
from penstock.node.fetch.sinks import is_local, load_app, sink, stores_of
from streams.messages.fetch import Order


@pytest.fixture(autouse=True)
def _no_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "_functions", {})


def test_embedded_node_stores_into_a_file_of_its_data_folder(tmp_path: Path) -> None:
    assert stores_of(Config(data=str(tmp_path)))["database"].name == f"sqlite:{tmp_path / 'orders.db'}"


def test_node_on_a_shared_server_has_to_say_where_its_orders_go() -> None:
    with pytest.raises(UsageError, match="a part of the orders"):
        stores_of(Config(nats="nats://nats.example.com:4222"))
    assert stores_of(Config(nats="nats://nats.example.com:4222", sink="none")) == {}


@pytest.mark.parametrize(
    ("nats", "expected"),
    [
        ("", True),
        ("nats://127.0.0.1:4222", True),
        ("localhost", True),
        ("nats://127.0.0.1:4222,nats://10.0.0.2:4222", False),
        ("tls://nats.example.com", False),
    ],
)
def test_a_server_is_local_only_if_each_address_is(nats: str, expected: bool) -> None:
    assert is_local(Config(nats=nats)) is expected


def test_function_takes_the_place_of_the_default_file() -> None:
    @sink
    async def into_erp(_orders: Sequence[Order]) -> None: ...

    assert set(stores_of(Config(nats="nats://nats.example.com"))) == {"into_erp"}


def test_two_sinks_of_one_name_are_refused() -> None:
    async def store(_orders: Sequence[Order]) -> None: ...

    sink(store)
    assert sink(store) is store

    async def other(_orders: Sequence[Order]) -> None: ...

    other.__name__ = "store"
    with pytest.raises(UsageError, match="two sinks called 'store'"):
        sink(other)


def test_database_url_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError, match="never written down") as refused:
        stores_of(Config(sink="postgresql://penstock:hunter2@db/orders"))
    assert "hunter2" not in str(refused.value)


def test_app_that_cannot_be_imported_is_told_by_name() -> None:
    with pytest.raises(UsageError, match="'no_such_module_of_anyone'"):
        load_app("no_such_module_of_anyone")


@pytest.mark.parametrize(
    ("module", "name"), [("shop.py", "shop"), ("./shop", "shop"), ("apps/shop.py", "apps.shop"), ("..", "my_app")]
)
def test_a_path_in_place_of_a_module_is_told_how_to_write_it(module: str, name: str) -> None:
    with pytest.raises(UsageError, match=f"no module's name; write it as in an import, such as {name}$"):
        load_app(module)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1\ndef broken(:\n", ", line 2: SyntaxError"),
        ("import json\njson.loads('[')\n", ", line 2: JSONDecodeError"),
        ("\n\nimport no_such_package\n", ", line 3: No module named 'no_such_package'; install it"),
        ("import penstock\n@penstock.job('mails', concurency=4)\ndef mails(job): ...\n", ", line 2: TypeError"),
        ("import penstock\npenstock.batch('')(type('Odd', (), {}))\n", ", line 2: "),
        ("import sys\nsys.exit()\n", ", line 2: it calls sys.exit() when it is imported"),
        ("import sys\nsys.exit('no DATABASE_URL')\n", ", line 2: it calls sys.exit('no DATABASE_URL') when"),
    ],
)
def test_a_fault_of_the_users_own_module_names_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"faulty_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(UsageError) as raised:
        load_app(name)
    assert f"app '{name}': {tmp_path}/{name}.py{told}" in str(raised.value)
