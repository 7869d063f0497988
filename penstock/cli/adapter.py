"""`penstock adapter`: check an adapter file, try it on a platform, and look at those that come with Penstock."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.source_door import LONGEST_FILE, read_adapter_table, read_pairs
from penstock.cli.terminal.call import TAKES_TIMES, CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.errors import UsageError
from penstock.times import read_range, read_zone
from streams.clock import now_ms

if TYPE_CHECKING:
    from penstock.admin.trial_client import TrialRequest
    from penstock.admin.trial_result import AdapterTrial
    from platforms.adapter import Adapter

__all__ = ["add_to"]

File = Annotated[str, typer.Argument(metavar="FILE", help="A TOML file that declares an adapter.")]
NameOrFile = Annotated[str, typer.Argument(metavar="NAME|FILE", help="An adapter's name, or its file.")]
Account = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="What the adapter asks for; secrets as NAME=env:VARIABLE or file:/path."),
]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="Files that say how to ask a platform.")
    app.add_typer(group, name="adapter")
    command(group, "check")(_check)
    command(group, "try", context=TAKES_TIMES)(_try)
    command(group, "list")(_list)
    command(group, "show")(_show)


async def _check(call: CommandCall, file: File) -> None:
    """Check an adapter file. It needs no node and no platform. The exit code is 2 if something in it is wrong."""
    from platforms.lists import lists_of

    adapter = _load(file)
    declared = adapter.declaration
    call.out.say(f"{file}: the file is sound; adapter {declared.name}")
    call.out.say(f"it needs the account values: {', '.join(declared.account) or 'none'}")
    lists = {name: each.declaration.window.time for name, each in lists_of(adapter).items() if name}
    if lists:
        call.out.say(f"it reads {len(lists)} lists: {', '.join(f'{name} (by {time})' for name, time in lists.items())}")
    call.out.result({"adapter": declared.name, "account": declared.account, "lists": list(lists), "ok": True})


async def _try(
    call: CommandCall,
    adapter: NameOrFile,
    account: Account = None,
    from_: Annotated[str, typer.Option("--from", metavar="TIME", help="Where the window begins.")] = "-1h",
    to: Annotated[str, typer.Option("--to", metavar="TIME", help="Where it ends.")] = "now",
    slice_: Annotated[str, typer.Option("--slice", metavar="SPAN", help="For the cost of 90 days.")] = "",
    tz: Annotated[str, typer.Option("--tz", metavar="ZONE", help="Of times without an offset.")] = "",
) -> None:
    """Ask the platform for a window, and say what does not fit. Nothing is stored, and no node has to run.

    The exit code is 1 if orders could be missing, or if a row could not be read."""
    from actors.runtime.rules.setting_values import read_duration
    from actors.runtime.secrets import BadReference, resolve_values
    from actors.runtime.transport import open_transport
    from penstock.admin.adapter_trial import try_adapter
    from penstock.admin.source_door import check_account
    from platforms.adapter import Account as Credentials
    from platforms.bounds import Window

    loaded = _load(adapter)
    start_ms, end_ms = read_range(from_, to, now_ms=now_ms(), zone=read_zone(tz))
    pairs = read_pairs("--account", account or ())
    check_account(None, loaded, pairs, now_ms=now_ms())
    try:
        values = resolve_values(pairs)
    except BadReference as error:
        raise UsageError(f"--account {error}") from error
    slice_ms = read_duration("--slice", slice_) if slice_ else 0
    async with open_transport(connections=4) as transport:
        trial = await try_adapter(
            loaded,
            Credentials("trial", values),
            Window(start_ms, end_ms),
            stored=pairs,
            transport=transport,
            now_ms=now_ms(),
            slice_ms=slice_ms,
        )
    _tell(call, trial)
    call.out.result(trial)
    if not trial.is_good:
        raise typer.Exit(1)


async def _list(call: CommandCall) -> None:
    """List the adapters that come with Penstock."""
    from platforms.registry import adapter_named, adapter_names

    records = []
    for name in adapter_names():
        declared = adapter_named(name).declaration
        records.append(
            {
                "adapter": name,
                "lists by": declared.window.time,
                "pages": declared.pages.style,
                "total": "yes" if declared.pages.has_total else "no",
                "account": ", ".join(declared.account),
            }
        )
    call.out.records({name: name for name in records[0]}, records, empty="none")


async def _show(call: CommandCall, name: Annotated[str, typer.Argument(metavar="NAME", help="An adapter.")]) -> None:
    """Print the file of an adapter that comes with Penstock, to copy and change."""
    from platforms.errors import BadDeclaration
    from platforms.registry import adapter_file, adapter_named

    try:
        adapter_named(name)
    except BadDeclaration as error:
        raise UsageError(str(error)) from error
    text = adapter_file(name)
    if text is None:
        raise UsageError(f"adapter {name}: is Python, and has no file; see platforms/adapter.py")
    call.out.say(text.rstrip("\n"))
    call.out.result({"adapter": name, "file": text})


def _load(text: str) -> "Adapter":
    """Return the adapter of a name or a file: anything with a slash or a dot is a file. Raises UsageError."""
    from platforms.declared import declare
    from platforms.errors import BadDeclaration
    from platforms.registry import adapter_named

    if "/" not in text and "." not in text:
        try:
            return adapter_named(text)
        except BadDeclaration as error:
            raise UsageError(str(error)) from error
    return declare(read_adapter_table(read_adapter_file(text), where=text, is_new=False).table)


def read_adapter_file(text: str) -> str:
    """Return the text of an adapter file. Raises UsageError."""
    path = Path(text).expanduser()
    try:
        with path.open("rb") as file:
            return file.read(LONGEST_FILE * 4 + 1).decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is not UTF-8 text") from error


# ---- what a trial found, for people


def _tell(call: CommandCall, trial: "AdapterTrial") -> None:
    from penstock.admin.trial_result import cost_text

    say = call.out.say
    say(f"adapter {trial.adapter}, window {trial.start} to {trial.end}")
    for name, each in (trial.lists or {"": trial}).items():
        if name:
            say(f"\n== list {name}")
        _tell_list(call, each)
    if trial.lists:
        say(f"\nall lists: {trial.sent} requests, {trial.orders} different orders")
    if trial.cost is not None:
        say(cost_text(trial.cost))
    say(f"\nverdict: {trial.verdict}: {trial.why}" if trial.why else f"\nverdict: {trial.verdict}")
    for hint in trial.hints:
        say(f"  look at {hint}")


def _tell_list(call: CommandCall, trial: "AdapterTrial") -> None:
    from penstock.admin.trial_result import limit_text

    say = call.out.say
    for number, request in enumerate(trial.requests[:1], start=1):
        _tell_request(call, number, request)
    if trial.sent > 1:
        say(f"{trial.sent} requests in all")
    if trial.answer_names:
        say(f"\nthe answer has     {', '.join(trial.answer_names)}")
    if trial.row_names:
        say(f"the first row has  {', '.join(trial.row_names)}")
    for name, field in trial.first.items():
        read = f"read as {field.read}" if field.read else "not read"
        say(f"  {name:8} {field.path}: {field.raw}, {read}")
    if trial.bad_rows:
        say(f"\n{trial.bad_rows} row{'' if trial.bad_rows == 1 else 's'} cannot be read:")
        for line in trial.bad:
            say(f"  {line}")
    total = "no total" if trial.total is None else f"a total of {trial.total}"
    say(f"\nfirst answer: {trial.listed} rows, {total}; the window: {trial.orders} orders")
    if trial.limit is not None:
        say(limit_text(trial.limit))
    if trial.halves is not None:
        halves = trial.halves
        say(
            f"in two halves: {halves.first} and {halves.second} orders, {halves.in_both} in both, {halves.only_whole} "
            "only in the whole window"
        )


def _tell_request(call: CommandCall, number: int, request: "TrialRequest") -> None:
    say = call.out.say
    say(f"\nrequest {number}: {request.method} {request.url}")
    for name, value in request.params:
        say(f"  {name} = {value}")
    for name, value in request.headers:
        say(f"  {name}: {value}")
    if request.body:
        say(f"  {request.body}")
    say(f"answer: HTTP {request.status}, {request.size} bytes, {request.took_ms} ms")
    if request.status >= 300 or not request.size:
        say(f"  {request.answer}")
