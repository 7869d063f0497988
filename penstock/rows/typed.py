"""What a person types: reads of the standard input that Ctrl-C ends at once.

A command runs on an event loop, whose handler of Ctrl-C only asks the loop to end. The loop does not come to it before
the read returns.
"""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["read_line", "read_typed"]


def read_typed(most: int = -1) -> bytes:
    """Return the standard input, up to `most` bytes."""
    with _ended_by_ctrl_c():
        return sys.stdin.buffer.read(most)


def read_line(most: int = -1) -> bytes:
    """Return its next line, up to `most` bytes. Empty: there is none."""
    with _ended_by_ctrl_c():
        return sys.stdin.buffer.readline(most)


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # no other thread may set a handler
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
