"""`penstock tokens`: who may use the HTTP gateway, and for what."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal.call import CommandCall, command
from penstock.cli.terminal.help import Group
from penstock.cli.terminal.pages import Limit, behind, say_more
from penstock.cli.terminal.person import Yes, confirm
from penstock.errors import UsageError
from penstock.times import time_text
from streams.clock import now_ms

if TYPE_CHECKING:
    from penstock.api.http.tokens import TokenRecord, Verb

__all__ = ["add_to"]

BUCKET = "TOKENS"
REOPEN = (
    "no token is valid any more, so the gateway answers nobody: make one with `penstock tokens add NAME`, or have it "
    "answer on loopback without tokens by `penstock tokens forget NAME`, for each of {names}"
)
NOTE = "this is shown once, and stored nowhere"
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whom it is for.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC", help="A topic, task or source, or a beginning such as 'shop1-*'; else all."
    ),
]
Verbs = Annotated[
    list[str] | None,
    typer.Option(
        "--verb", metavar="VERB", help="Of add, reserve, settle, delete, read, look, admin; else the first five."
    ),
]
Expires = Annotated[str, typer.Option(metavar="SPAN", help="Valid for so long, as 90d; for ever if not given.")]


def add_to(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(cls=Group, help="Who may use the HTTP gateway. Without any token it answers on loopback alone.")
    app.add_typer(group, name="tokens")
    command(group, "add")(_add)
    command(group, "rotate")(_rotate)
    command(group, "list")(_list)
    command(group, "revoke")(_revoke)
    command(group, "forget")(_forget)


async def _add(
    call: CommandCall,
    name: Name,
    topics: Topics = None,
    verbs: Verbs = None,
    tenant: Annotated[str, typer.Option(metavar="TENANT", help="It sees this tenant's topics alone.")] = "",
    rate: Annotated[float, typer.Option(help="Requests a second, a batch counts as its jobs; 0: no limit.")] = 0.0,
    most_waiting: Annotated[int, typer.Option(help="Jobs that the tenant may have waiting; 0: no limit.")] = 0,
    most_topics: Annotated[
        int | None, typer.Option(help="Topics beyond which it makes no new ones, 1,000 if not given; 0: no limit.")
    ] = None,
    expires: Expires = "",
) -> None:
    """Make a token and print it, this once. A second one of the same name is for changing over to."""
    from penstock.api.http.tokens import MOST_TOPICS, TokenWish, create_token
    from penstock.rows.job_rows import read_span

    at_ms = now_ms()
    wish = TokenWish(
        name=name,
        topics=tuple(topics or ("*",)),
        verbs=_known_verbs(verbs),
        namespace=tenant,
        rate=rate,
        most_waiting=most_waiting,
        most_topics=MOST_TOPICS if most_topics is None else most_topics,
        expires_ms=at_ms + read_span("--expires", expires) if expires else 0,
    )
    async with call.session() as session:
        with _told():
            text, record = await create_token(session.bucket(BUCKET), wish, now_ms=at_ms)
    _show_text(call, text, record)


def _known_verbs(names: list[str] | None) -> "tuple[Verb, ...]":
    from actors.runtime.rules.setting_values import nearest
    from penstock.api.http.tokens import USUAL_VERBS, VERBS

    for name in names or ():
        if name not in VERBS:
            raise UsageError(f"--verb {name[:64]!r}: is none; {nearest(name, VERBS)}")
    return tuple(verb for verb in VERBS if verb in (names or USUAL_VERBS))


async def _rotate(call: CommandCall, name: Name, expires: Expires = "") -> None:
    """Make a second token with the same rights. Revoke the first when nobody uses it any more."""
    from penstock.rows.job_rows import read_span

    at_ms = now_ms()
    expires_ms = at_ms + read_span("--expires", expires) if expires else 0
    async with call.session() as session:
        from penstock.api.http.tokens import rotate_token

        with _told():
            text, record = await rotate_token(session.bucket(BUCKET), name, now_ms=at_ms, expires_ms=expires_ms)
    _show_text(call, text, record)


def _show_text(call: CommandCall, text: str, record: "TokenRecord") -> None:
    call.out.say(text)
    typer.echo(f"{record.name}, {record.id}: {NOTE}", err=True)
    call.out.result({"token": text, **_document(record)})


async def _list(call: CommandCall, limit: Limit = None, after: Annotated[str, behind("NAME.ID")] = "") -> None:
    """List tokens and what each may do. The tokens themselves are stored nowhere."""
    async with call.session() as session:
        from penstock.api.http.tokens import list_tokens, tokens_behind

        with _told():
            known = await list_tokens(session.bucket(BUCKET))
    at_ms, found = now_ms(), tokens_behind(known, after)[:limit]
    rows = [
        [
            one.name,
            one.id,
            _state(one, at_ms),
            ", ".join(one.topics),
            ", ".join(one.verbs),
            one.namespace or "-",
            f"{one.rate:g}/s" if one.rate else "-",
            time_text(one.expires_ms) if one.expires_ms else "-",
        ]
        for one in found
    ]
    columns = ["name", "id", "state", "topics", "may", "tenant", "rate", "expires"]
    call.out.table(columns, rows, empty="no tokens: the gateway answers on loopback alone")
    say_more(call.out, found, limit, lambda one: one.key)
    _warn_if_closed(known, at_ms)
    call.out.result([{**_document(one), "is_live": one.is_live(at_ms)} for one in found])


def _state(record: "TokenRecord", at_ms: int) -> str:
    if record.revoked_ms:
        return f"revoked {time_text(record.revoked_ms)}"
    return "live" if record.is_live(at_ms) else "expired"


async def _revoke(
    call: CommandCall,
    name: Name,
    id_: Annotated[str, typer.Argument(metavar="[ID]", help="One of that name.")] = "",
    yes: Yes = False,
) -> None:
    """Make a name's tokens, or one of them, invalid everywhere within a second."""
    confirm(f"Revoke {f'token {id_}' if id_ else 'all tokens'} of {name}?", is_sure=yes)
    async with call.session() as session:
        from penstock.api.http.tokens import list_tokens, revoke_token

        with _told():
            revoked = await revoke_token(session.bucket(BUCKET), name, id_, now_ms=now_ms())
            left = await list_tokens(session.bucket(BUCKET))
    for one in revoked:
        call.out.say(f"{one.name}, {one.id}: revoked")
    _warn_if_closed(left, now_ms())
    call.out.result({"revoked": [_document(one) for one in revoked]})


async def _forget(call: CommandCall, name: Name, yes: Yes = False) -> None:
    """Remove what is known of a name's revoked and expired tokens. Without any token left, the gateway asks for none on
    loopback."""
    confirm(f"Forget the tokens of {name} that are not valid any more?", is_sure=yes)
    async with call.session() as session:
        from penstock.api.http.tokens import forget_tokens, list_tokens

        with _told():
            forgotten = await forget_tokens(session.bucket(BUCKET), name, now_ms=now_ms())
            left = await list_tokens(session.bucket(BUCKET))
    for one in forgotten:
        call.out.say(f"{one.name}, {one.id}: forgotten")
    if not left:
        call.out.say("no tokens: the gateway answers on loopback alone, and asks for none")
    call.out.result({"forgotten": [_document(one) for one in forgotten]})


def _warn_if_closed(tokens: "Sequence[TokenRecord]", at_ms: int) -> None:
    """Say how the gateway opens again, if there were tokens and none is valid any more."""
    if tokens and not any(one.is_live(at_ms) for one in tokens):
        names = " ".join(sorted({one.name for one in tokens}))
        typer.echo(REOPEN.format(names=names), err=True)


def _document(record: "TokenRecord") -> dict[str, object]:
    import msgspec

    fields = msgspec.structs.asdict(record)
    return {key: value for key, value in fields.items() if key != "sha256"}


@contextmanager
def _told() -> Iterator[None]:
    from penstock.api.http.tokens import BadToken

    try:
        yield
    except BadToken as error:
        raise UsageError(str(error)) from error
