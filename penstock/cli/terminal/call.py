"""What all commands have in common: the options that say which installation is meant, and how a failure ends.

    @command(app)
    async def nodes(call: CommandCall) -> None:
        async with call.session() as session:
            ...

The options (`--nats`, `--namespace`, `--data`, `--config`, `--json`, `--wide`) are added to each command's own. A
failure prints one line and sets the exit code: 2 for a wrong argument, configuration or setting, 1 for anything else.
"""

import functools
import inspect
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NoReturn, ParamSpec

import typer

from penstock.cli.terminal.help import Command
from penstock.cli.terminal.output import Output
from penstock.errors import PenstockError, Timeout

if TYPE_CHECKING:
    import asyncio

    from penstock.node.config import Config
    from penstock.node.session import Session

__all__ = ["TAKES_TIMES", "CommandCall", "command", "end_with"]

P = ParamSpec("P")

SERVER = "Which installation"
Nats = Annotated[
    str | None,
    typer.Option("--nats", metavar="URL", help="Server; without it the embedded one.", rich_help_panel=SERVER),
]
NamespaceName = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Installation on that server.", rich_help_panel=SERVER)
]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="FOLDER", help="Data folder of the embedded server.", rich_help_panel=SERVER),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML).", rich_help_panel=SERVER)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Wide = Annotated[bool, typer.Option("--wide", help="Let tables be wider than the terminal.")]
COMMON: Mapping[str, tuple[Any, object]] = {
    "nats": (Nats, None),
    "namespace": (NamespaceName, None),
    "data": (Data, None),
    "config": (ConfigFile, None),
    "json": (Json, False),
    "wide": (Wide, False),
}


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One call of a command: the configuration with its common flags, and where the answer goes."""

    file: Path | None
    flags: Mapping[str, object | None]
    out: Output
    truths: list[tuple[Callable[[], str], bool]] = field(default_factory=list)
    """What Ctrl-C leaves behind, told in the line `penstock: stopped; …`, and whether an error does, too. At most
    one."""

    def if_stopped(self, tell: Callable[[], str], *, is_for_errors: bool = False) -> None:
        """From now on, have `tell` say what is true if Ctrl-C ends the command, and with `is_for_errors` if an error
        does. An empty text is not shown. It replaces what was given before."""
        self.truths[:] = [(tell, is_for_errors)]

    def left_behind(self, *, by_error: bool) -> list[str]:
        """Return what is true now that the command ended early."""
        return [text for tell, is_for_errors in self.truths if (is_for_errors or not by_error) and (text := tell())]

    def config(self, **flags: object | None) -> "Config":
        """Return the configuration, with the command's own flags over the common ones. Raises UsageError."""
        from penstock.node.config import load_config

        return load_config(self.file, os.environ, {**self.flags, **flags})

    @asynccontextmanager
    async def session(self, config: "Config | None" = None) -> "AsyncIterator[Session]":
        """Connect for this command (penstock/node/session.py). A command imports what it needs only once it is
        connected. So it reports a missing server at once. A terminal is told for what it waits."""
        import asyncio

        from penstock.node.logs import set_up_logs
        from penstock.node.session import open_session, server_url
        from streams.link.credentials import shown_url

        config = config or self.config()
        set_up_logs("error", "text")
        line = f"penstock: waiting for the server at {shown_url(server_url(config))} (at most {config.connect_s:g} s)"

        def say() -> None:
            if sys.stderr.isatty():
                typer.echo(line, err=True)

        waits = asyncio.get_running_loop().call_later(PATIENCE_S, say)
        try:
            async with open_session(config) as session:
                waits.cancel()
                yield session
        finally:
            waits.cancel()


PATIENCE_S = 1.5
"""After so long without a connection a person is told what the command waits for."""
CANCELLED_AGAIN_S = 3.0
"""What a command does at its end, such as to give back a job, may take so long after Ctrl-C."""
TAKES_TIMES: Mapping[str, Any] = {"ignore_unknown_options": True, "help_option_names": ["--help"]}
"""For commands with moments among their arguments: `-3h` is one, neither an option nor a call for help."""


def command(
    app: typer.Typer, name: str | None = None, *, context: Mapping[str, Any] | None = None
) -> Callable[
    [Callable[Concatenate[CommandCall, P], Awaitable[None]]], Callable[Concatenate[CommandCall, P], Awaitable[None]]
]:
    """Add an async function to `app` as a command, with the common options beside its own."""

    def add(
        function: Callable[Concatenate[CommandCall, P], Awaitable[None]],
    ) -> Callable[Concatenate[CommandCall, P], Awaitable[None]]:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            flags = {key: arguments.pop(key) for key in ("nats", "namespace", "data")}
            out = Output(is_json=arguments.pop("json"), is_wide=arguments.pop("wide"))
            call = CommandCall(arguments.pop("config"), flags, out)
            _run(call, functools.partial(function, call, **arguments))

        own = list(inspect.signature(function).parameters.values())[1:]
        run.__signature__ = inspect.Signature([*(_keyword(one) for one in own), *_common()])  # type: ignore[attr-defined] # typer reads it
        run.__annotations__ = {one.name: one.annotation for one in [*own, *_common()]}
        app.command(name, cls=Command, context_settings=dict(context or {}))(run)
        return function

    return add


def _common() -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, default=default, annotation=annotation)
        for name, (annotation, default) in COMMON.items()
    ]


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _run(call: CommandCall, body: Callable[[], Awaitable[None]]) -> None:
    """Run a command's body to its end, and end the process with what it failed with."""
    import asyncio

    async def alone() -> None:
        try:
            await body()
        except ExceptionGroup:
            from actors.runtime.supervisor import one_error

            with one_error():
                raise

    async def until_it_ends() -> None:
        """Ctrl-C cancels this task. A library may lose a cancellation, so the command gets another one."""
        running = asyncio.ensure_future(alone())  # noqa: TID251 - a task group would be a second layer of cancellation
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            while not running.done():
                running.cancel()
                await asyncio.wait([running], timeout=CANCELLED_AGAIN_S)
            if running.cancelled() or running.exception() is not None:
                raise
        else:
            await running

    try:
        # anyio.run loads more than it has to, and first of all
        with asyncio.Runner(loop_factory=_new_loop()) as runner:
            runner.run(until_it_ends())
        sys.stdout.flush()
    except (typer.Exit, typer.Abort, SystemExit):
        raise
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("; ".join(["penstock: stopped", *call.left_behind(by_error=False)]), err=True)
        raise typer.Exit(130) from None
    except Exception as error:  # the command line's own end: one line for a person, the trace in debug
        end_with(error, call.out, call.left_behind(by_error=True))


def end_with(error: Exception, out: Output, truths: Sequence[str] = ()) -> NoReturn:
    """Say in one line what went wrong and what is true then (and as JSON to programs), and end with its exit code."""
    from actors.runtime.rules.setting_values import BadSetting
    from streams.errors import MalformedSubject, NoStream, OutcomeUnknown, StreamError

    if isinstance(error, Timeout | OutcomeUnknown):
        line, code = f"{error}; `penstock doctor` tells whether the servers are there", 1
    elif isinstance(error, PenstockError):
        line, code = str(error), error.exit_code
    elif isinstance(error, BadSetting | MalformedSubject):
        line, code = str(error), 2
    elif isinstance(error, NoStream):
        line, code = f"{error}; has `penstock init` been run there, with this --namespace?", 1
    elif isinstance(error, StreamError | OSError):
        line, code = str(error) or type(error).__name__, 1
    else:
        if os.environ.get("PENSTOCK_TRACE"):
            raise error
        line, code = f"{type(error).__name__}: {error} (PENSTOCK_TRACE=1 shows where)", 1
    line = "; ".join([line, *truths])
    typer.echo(f"penstock: {line}", err=True)
    out.result({"error": line})
    raise typer.Exit(code)


def _silence_stdout() -> None:
    """Whoever read our output has gone: what is buffered would fail again while Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _new_loop() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop
