"""Ctrl-C: one line on stderr, with what is true."""

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.terminal.call import CommandCall, command


@pytest.mark.parametrize(
    ("truths", "said"), [((), ""), (("none yet",), "; none yet"), (("none yet", "3 were sent"), "; 3 were sent")]
)
def test_ctrl_c_tells_what_is_true_last(truths: tuple[str, ...], said: str) -> None:
    app = typer.Typer()

    async def send(call: CommandCall) -> None:
        for truth in truths:
            call.if_stopped(lambda truth=truth: truth)  # type: ignore[misc] # a default binds it
        raise KeyboardInterrupt

    command(app, "send")(send)
    told = CliRunner().invoke(app, [])
    assert (told.exit_code, told.stdout, told.stderr) == (130, "", f"penstock: stopped{said}\n")
