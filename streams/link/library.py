"""The NATS client library as `wire.py` and `wire_parser.py` use it.

The library imports aiohttp for links over WebSocket. That costs as much as everything else that a command needs before
it can connect, so aiohttp is imported when the first such link is opened (`load_websocket`).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import get_ident


@contextmanager
def _without_aiohttp() -> Iterator[None]:
    """Make `import aiohttp` fail in this thread, unless it has been imported before."""

    class Absent:
        thread = get_ident()

        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "aiohttp" and get_ident() == self.thread:
                raise ImportError("aiohttp is imported later", name=name)

    absent = Absent()
    sys.meta_path.insert(0, absent)
    try:
        yield
    finally:
        sys.meta_path.remove(absent)


with _without_aiohttp():
    from nats.aio import transport
    from nats.aio.client import Client as Client
    from nats.aio.client import Srv as Srv
    from nats.aio.client import __version__
    from nats.aio.errors import ErrStaleConnection as ErrStaleConnection
    from nats.aio.subscription import Subscription as Subscription
    from nats.errors import Error as Error
    from nats.protocol.parser import AWAITING_MSG_PAYLOAD as AWAITING_MSG_PAYLOAD
    from nats.protocol.parser import Parser as Parser

MADE_FOR = "2.16"
"""The minor version whose private parts `wire.py` was written for. pyproject.toml allows no other."""


def other_version(installed: str = __version__) -> str | None:
    """Return the version that is installed if it is of another minor than MADE_FOR, else None."""
    return None if installed.startswith(f"{MADE_FOR}.") else installed


def load_websocket() -> None:
    """Give the library what a link over WebSocket needs. A repeat does nothing."""
    vars(transport).update({name: import_module(name) for name in ("aiohttp", "multidict")})
