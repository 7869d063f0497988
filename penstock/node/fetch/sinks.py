"""The stores of a node's sinks: a database by its URL, or functions of the user.

    @penstock.sink
    async def store(orders: Sequence[penstock.Order]) -> None: ...

`penstock up --app module` imports the module that holds it. Each sink has a consumer of its own, `sink_<name>`, shared
by the nodes: every order goes to every sink.
"""

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskStatus

from actors.fetch.stores.function import FunctionStore, OrdersFunction
from penstock.errors import PenstockError, UsageError
from penstock.node.config import Config
from streams.subjects import token_of

if TYPE_CHECKING:
    from actors.fetch.stores.store import Store
    from actors.runtime.supervisor import ActorSpec, Run
    from penstock.node.node import Node

__all__ = ["NO_SINK", "load_app", "open_sink_actors", "serves_any", "sink", "stores_of"]

NO_SINK = "none"
_functions: dict[str, OrdersFunction] = {}


def sink(function: OrdersFunction) -> OrdersFunction:
    """Pass every order to `async def function(orders)`, in batches, at least once each (see Guarantees).
    Raises UsageError if another sink has the function's name already."""
    name = token_of(getattr(function, "__name__", type(function).__name__))
    if _functions.get(name, function) is not function:
        raise UsageError(f"there are two sinks called {name!r}; rename one: its name is its place in the stream")
    FunctionStore(function)
    _functions[name] = function
    return function


def load_app(module: str) -> None:
    """Import the user's module, so that its decorators register what it serves. Raises UsageError."""
    if not all(part.isidentifier() for part in module.split(".")) or module.endswith(".py"):
        name = module.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"app {module!r}: is no module's name; write it as in an import, such as {name or 'my_app'}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"app {module!r}: {_place_of(error)}{error}; install it, or mend the import") from error
        raise UsageError(f"app {module!r}: {error}; give a module that can be imported from this folder") from error
    except SystemExit as error:  # else the node would end without a word, even as if all were well
        told = f"{error.code!r}" if error.code is not None else ""
        raise UsageError(
            f"app {module!r}: {_place_of(error)}it calls sys.exit({told}) when it is imported; raise an error there, or"
            " call it under `if __name__ == '__main__':`"
        ) from error
    except Exception as error:  # whatever the user's own code does when it is imported
        what = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"app {module!r}: {_place_of(error)}{what}") from error


def serves_any(config: Config) -> bool:
    """Return whether a node of this configuration runs anything of what the imported modules declare."""
    from penstock.sdk.batches import task_handlers
    from penstock.sdk.flows import flow_handlers
    from penstock.sdk.jobs import handlers
    from penstock.sdk.zones import zone_handlers

    sinks = _functions if config.has_role("sink") else {}
    return any((handlers(), task_handlers(), flow_handlers(), zone_handlers(), sinks))


def _place_of(error: BaseException) -> str:
    """Return the file and the line of the user's code at which its import failed, empty if it is not known."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}: " if error.filename else ""
    ours = (Path(__file__).parents[3] / name for name in ("penstock", "actors", "streams", "platforms"))
    others = (*ours, *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")))
    for step in reversed(traceback.extract_tb(error.__traceback__)):
        if not step.filename.startswith("<") and not any(map(Path(step.filename).is_relative_to, others)):
            return f"{step.filename}, line {step.lineno}: "
    return ""


def stores_of(config: Config) -> Mapping[str, "Store"]:
    """Return the node's stores by sink name, not opened yet: the functions of its app, and the database of its `sink`,
    or a SQLite file in the data folder if there is neither. Raises UsageError for a malformed URL."""
    stores: dict[str, Store] = {name: FunctionStore(function) for name, function in _functions.items()}
    url = config.sink_url()
    if url == NO_SINK or (not url and stores):
        return stores
    if not url and not is_local(config):
        raise UsageError(
            "sink: several machines may share this server, and a SQLite file on each would get a part of the orders; "
            "give --sink postgresql://…, --sink none on nodes that store nothing, or --sink sqlite:///FILE on one node"
        )
    if not url:
        config.data_folder().mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{config.data_folder() / 'orders.db'}"
    from actors.fetch.stores.sql import sql_store  # a node without a database does not load SQLAlchemy

    try:
        return {**stores, "database": sql_store(url, history=config.history)}
    except ValueError as error:
        raise UsageError(f"sink: {error}") from error


def is_local(config: Config) -> bool:
    """True if the node's server is on this machine: the embedded one, or at a loopback address."""
    hosts = [urlsplit(one if "://" in one else f"nats://{one}").hostname for one in config.nats.split(",")]
    return config.is_embedded or all(host in ("localhost", "127.0.0.1", "::1") for host in hosts)


async def open_sink_actors(node: "Node") -> tuple["ActorSpec", ...]:
    """Make the consumers of the node's sinks, and return their actors."""
    from actors.runtime.supervisor import ActorSpec
    from streams.topology.specs import sink_consumer
    from streams.topology.topology import ensure_consumer

    stores = stores_of(node.config) if node.config.has_role("sink") else {}
    for name in stores:
        await ensure_consumer(node.connection, sink_consumer(node.connection.namespace, name))
    return tuple(
        ActorSpec(name=f"sink-{name}", role="sink", run=_runner(node, name, store), drains=True)
        for name, store in stores.items()
    )


def _runner(node: "Node", name: str, store: "Store") -> "Run":
    from actors.fetch import sink as sink_actor

    async def run(*, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        await sink_actor.run(
            sink_actor.Settings(name=name),
            connection=node.connection,
            publisher=node.publisher,
            store=store,
            stop=node.stop,
            clock=node.clock,
            tell=lambda notice: node.store.tell(notice),
            task_status=task_status,
        )

    return run
