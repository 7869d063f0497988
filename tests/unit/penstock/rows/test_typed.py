"""Ctrl-C ends a read of the standard input at once, though an event loop has its own handler."""

import asyncio
import signal
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from penstock.cli.terminal.person import confirm
from penstock.errors import PenstockError
from penstock.rows.typed import read_line, read_typed


def ask() -> None:
    confirm("Remove it?", is_sure=False)


def type_as(monkeypatch: pytest.MonkeyPatch, person: Callable[[int], bytes]) -> None:
    terminal = SimpleNamespace(buffer=SimpleNamespace(read=person, readline=person), isatty=lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)


@pytest.mark.parametrize("read", [read_typed, read_line, ask])
def test_ctrl_c_ends_the_read(monkeypatch: pytest.MonkeyPatch, read: Callable[[], object]) -> None:
    def person(_most: int) -> bytes:
        signal.raise_signal(signal.SIGINT)
        return b"y"

    type_as(monkeypatch, person)
    before = signal.getsignal(signal.SIGINT)
    has_returned = False

    async def command() -> None:
        nonlocal has_returned
        read()
        has_returned = True

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(command())
    assert not has_returned
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("answer", "is_wanted"), [(b"y\n", True), (b"YES\n", True), (b"n\n", False), (b"", False)])
def test_only_a_yes_is_one(monkeypatch: pytest.MonkeyPatch, answer: bytes, is_wanted: bool) -> None:
    type_as(monkeypatch, lambda _most: answer)
    if is_wanted:
        ask()
        return
    with pytest.raises(PenstockError, match="left as it is"):
        ask()
