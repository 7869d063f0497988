"""Accounts of less trust against the one that holds truth, by replies: JetStream answers wherever a client says."""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from anyio import fail_after

from streams.embedded.server import EmbeddedServer
from streams.errors import NoStream, PermissionDenied
from streams.link.connection import Connection, connect
from streams.link.frames import publish_frame
from streams.subjects import Namespace
from streams.topology.specs import wanted
from streams.topology.topology import apply
from tests.support.accounts import SHIPPED, Users, block_of, reachable, secured_server, spy, with_spies
from tests.support.moments import a_moment

pytestmark = pytest.mark.asyncio(loop_factories=["asyncio"])  # the server's accounts do not depend on the loop

TOPOLOGY = wanted(Namespace(), profile="fast")
STREAMS = TOPOLOGY.all_streams()
API = "$JS.API."
VERBS = ("STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.MSG.DELETE", "STREAM.CREATE", "STREAM.RESTORE")
TARGETS = [
    *(subject.replace(">", "forged.x") for stream in STREAMS for subject in stream.subjects),
    *(f"{API}{verb}.{stream.name}" for stream in STREAMS for verb in VERBS),
    f"{API}CONSUMER.CREATE.PENSTOCK_JOBS.forged",
    "penstock.submit.job.other",
    "penstock.api.jobs.add",
    "penstock.batch.news.x",
    "penstock.gone",
    "penstock.begun-jobs",
    "penstock.rates",
    "penstock.rates-begun",
    "penstock.due.1",
    "_INBOX_node.x",
    "_INBOX_admin.x",
    "$SYS.REQ.SERVER.PING",
]
"""Where somebody may want an answer written: into each stream, to what ends one, to nodes and to their users."""

SHOP = (
    block_of("APP")
    .replace("APP {", "SHOP {")
    .replace("nkey: $PENSTOCK_NKEY_APP", 'user: "shop", password: "spy"')
    .replace("penstock.submit.job.>", "penstock.submit.job.mail")
    .replace("_INBOX_app", "_INBOX_shop")
    .replace("penstock.ask.app.>", "penstock.ask.shop.>")
)
"""A program apart from other programs, made as the file says."""


@pytest.fixture(scope="module")
def users() -> Users:
    return Users()


@pytest.fixture(scope="module")
def secured(users: Users, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    accounts = with_spies(SHIPPED.replace("\n  CONSOLE {", f"{SHOP}\n  }}\n\n  CONSOLE {{"))
    with secured_server(tmp_path_factory.mktemp("secured"), users, accounts) as running:
        yield running


@pytest.mark.parametrize("account", ["APP", "SHOP", "CONSOLE"])
async def test_no_answer_is_written_where_a_user_may_not_publish(
    secured: EmbeddedServer, users: Users, account: str
) -> None:
    """Each subject on which the account may ask, with each target as the reply, by a user with no list of his own."""
    asked = [answered_subject(pattern) for pattern in allowed(account)]
    forbidden = {target for target in TARGETS if not any(matches(pattern, target) for pattern in allowed(account))}
    own = {s.name for s in STREAMS for pattern in s.subjects if any(matches(pattern, subject) for subject in asked)}
    heard: Counter[str] = Counter()
    answered: Counter[str] = Counter()

    with fail_after(90):
        async with (
            connect(secured.url, name="admin", credentials=users.credentials("admin")) as admin,
            connect(secured.url, name="node", credentials=spy("PENSTOCK")) as careless,
            connect(secured.url, name="attacker", credentials=spy(account)) as attacker,
        ):
            await apply(admin, TOPOLOGY)
            before = await states(admin)
            await admin.subscribe(">", lambda message: heard.update([message.subject]))
            await attacker.subscribe(">", lambda message: answered.update([message.subject]))
            await admin.flush()
            answer_all(careless)
            await careless.flush()
            for target in TARGETS:
                for subject in asked:
                    await attacker.publish_core(subject, b"", reply=target)
            while any(answered[target] < len(asked) for target in TARGETS):  # so all of them came to his own account
                await a_moment()
            await admin.flush()
            after = await states(admin)
    assert sorted(forbidden & set(heard)) == []
    assert {name for name in before if before[name] != after.get(name)} <= own
    assert own <= {"PENSTOCK_SUBMIT"}


@pytest.mark.parametrize("account", ["APP", "SHOP", "CONSOLE"])
async def test_what_is_not_imported_is_not_reached(secured: EmbeddedServer, users: Users, account: str) -> None:
    """By a user with no list of his own: the account is the wall."""
    reached: list[str] = []
    with fail_after(60):
        async with (
            connect(secured.url, name="admin", credentials=users.credentials("admin")) as admin,
            connect(secured.url, name="node", credentials=spy("PENSTOCK")) as careless,
            connect(secured.url, name="attacker", credentials=spy(account)) as attacker,
        ):
            await apply(admin, TOPOLOGY)
            answer_all(careless)
            await careless.flush()
            for target in TARGETS:
                with suppress(NoStream):
                    answer = await attacker.request(target, b"{}")
                    if b"JetStream not enabled for account" not in answer.payload:
                        reached.append(target)
    assert reached == [target for target in TARGETS if any(matches(pattern, target) for pattern in allowed(account))]


@pytest.mark.parametrize("reply", ["$JS.ACK.PENSTOCK_JOBS.jobs_mail.1.1.1.1.1", "_R_.node.x", "_GR_.x.y"])
async def test_an_acknowledgement_or_a_mapped_answer_is_no_reply(secured: EmbeddedServer, reply: str) -> None:
    with fail_after(20):
        async with connect(secured.url, name="attacker", credentials=spy("APP")) as attacker:
            await attacker.publish_core("penstock.submit.job.mail", b"{}", reply=reply)
            with pytest.raises(PermissionDenied):
                await attacker.failure()


def allowed(account: str) -> list[str]:
    return reachable(block_of(account) if account != "SHOP" else SHOP)


def matches(pattern: str, subject: str) -> bool:
    tokens, others = pattern.split("."), subject.split(".")
    if tokens[-1] == ">":
        tokens.pop()
        others = others[: len(tokens)] if len(others) > len(tokens) else []
    return len(tokens) == len(others) and all(one in ("*", other) for one, other in zip(tokens, others, strict=True))


def answered_subject(pattern: str) -> str:
    """Return a subject of the pattern on which there is an answer."""
    if pattern == "$SRV.>":
        return "$SRV.PING"
    return pattern.replace("*", "PENSTOCK_JOBS").replace(">", "x.y")


def answer_all(connection: Connection) -> None:
    """Answer whoever asks, wherever it is wanted and with what was sent: a node as careless as can be."""

    def answer(_subject: bytes, reply: bytes, payload: bytes, _block: bytes | None) -> None:
        if reply:
            connection.client.send(publish_frame(reply.decode(), "", b"", payload))

    connection.listen("penstock.api.>", answer)
    connection.listen("$SRV.>", answer)


async def states(admin: Connection) -> dict[str, tuple[int, int, int]]:
    listed = await admin.api("STREAM.LIST")
    state = {each["config"]["name"]: each["state"] for each in listed["streams"]}
    return {name: (each["first_seq"], each["last_seq"], each["messages"]) for name, each in state.items()}
