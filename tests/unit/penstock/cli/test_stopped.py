"""Ctrl-C: one line on stderr, with what is true."""

import asyncio
import signal
from contextlib import suppress

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.terminal import call
from penstock.cli.terminal.call import CommandCall, command


@pytest.mark.parametrize(
    ("truths", "said"), [((), ""), (("none yet",), "; none yet"), (("none yet", "3 were sent"), "; 3 were sent")]
)
def test_ctrl_c_tells_what_is_true_last(truths: tuple[str, ...], said: str) -> None:
    app = typer.Typer()

    async def send(called: CommandCall) -> None:
        for truth in truths:
            called.if_stopped(lambda truth=truth: truth)  # type: ignore[misc] # a default binds it
        raise KeyboardInterrupt

    command(app, "send")(send)
    told = CliRunner().invoke(app, [])
    assert (told.exit_code, told.stdout, told.stderr) == (130, "", f"penstock: stopped{said}\n")


@pytest.mark.parametrize("ends", [None, ValueError("the link broke")])
def test_ctrl_c_ends_a_command_that_lost_its_first_cancellation(
    monkeypatch: pytest.MonkeyPatch, ends: Exception | None
) -> None:
    monkeypatch.setattr(call, "CANCELLED_AGAIN_S", 0.01)
    app = typer.Typer()

    async def wait(_: CommandCall) -> None:
        signal.raise_signal(signal.SIGINT)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        try:
            await asyncio.sleep(30)
        finally:
            if ends is not None:
                raise ends

    command(app, "wait")(wait)
    told = CliRunner().invoke(app, [])
    assert (told.exit_code, told.stdout, told.stderr) == (130, "", "penstock: stopped\n")
