"""Notices by mail: over TLS, several in one, again until the server takes them, and beside the webhook."""

import logging
from pathlib import Path

import aiohttp
import anyio
import pytest

from actors.runtime.notices import alerts as alerts_module
from actors.runtime.notices import mail as mail_module
from actors.runtime.notices.alerts import Alerts
from actors.runtime.notices.mail import MailRefused, MailServer, check_mail, send_mail
from actors.runtime.notices.notify import Notifier
from actors.runtime.rules.notices import Notice
from actors.runtime.transport import Transport
from penstock.admin.doctor import examine
from penstock.node.config import Config
from streams.backoff import Backoff
from streams.clock import monotonic_s
from tests.support.mail import PASSWORD, UNKNOWN, USER, Post, a_post
from tests.support.moments import a_moment
from tests.support.office import an_office
from tests.support.processes import free_ports


def notice(kind: str, source: str) -> Notice:
    return Notice(kind=kind, source=source, text=f"what became of {source}", what_to_do="look at it")


def server_of(post: Post, **changes: object) -> MailServer:
    server = MailServer(
        host="127.0.0.1",
        port=post.port,
        sender="penstock@example.com",
        to=("ops@example.com", "second@example.com"),
        user=USER,
        password="env:MAIL_PASSWORD_OF_TEST",
        ca=post.ca,
    )
    return server._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD_OF_TEST", PASSWORD)
    monkeypatch.setattr(alerts_module, "GROUP_S", 0.1)
    monkeypatch.setattr(alerts_module, "AGAIN", Backoff(growth="linear", base_ms=50, cap_ms=50, spread=0.0))


async def test_notices_that_come_together_are_one_mail_beside_the_webhook_and_their_end_is_another(
    tmp_path: Path,
) -> None:
    seen = [notice("parked", "mall/s1"), notice("parked", "mall/s2"), notice("hole", "fair\r\nBcc: all@example.com")]
    over = notice("holes_over", "fair")
    async with a_post(tmp_path) as post, an_office() as office, aiohttp.ClientSession() as session:
        alerts = Alerts(Notifier(Transport(session), server_of(post)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alerts.run)
            for each in seen:
                alerts.submit(each.source, each, lambda: office.url)
            [first] = await post.until(1)
            alerts.submit("over", over, lambda: office.url)
            [_, second] = await post.until(2)
            await office.until(4)
            with anyio.fail_after(20):
                while not alerts.is_sent("over"):
                    await a_moment()
            tasks.cancel_scope.cancel()
    assert first["Subject"] == "[penstock] 3 notices: 2 parked, 1 hole"
    assert (first["From"], first["To"]) == ("penstock@example.com", "ops@example.com, second@example.com")
    assert (first["Auto-Submitted"], first["Bcc"]) == ("auto-generated", None)
    assert (
        first.get_content()
        .replace("\r\n", "\n")
        .startswith("mall/s1 (parked)\n  what became of mall/s1\n  what to do: look at it\n\nmall/s2 (parked)\n")
    )
    assert second["Subject"] == "[penstock] holes_over: fair"


async def test_a_mail_is_sent_again_until_it_is_taken_and_the_webhook_once(tmp_path: Path) -> None:
    async with a_post(tmp_path) as post, an_office() as office, aiohttp.ClientSession() as session:
        post.is_shut = True
        alerts = Alerts(Notifier(Transport(session), server_of(post)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alerts.run)
            alerts.submit("one", notice("parked", "mall/s1"), lambda: office.url)
            await post.until(0, put_off=2)
            assert not alerts.is_sent("one")
            alerts.submit("two", notice("parked", "mall/s2"), lambda: office.url)
            post.is_shut = False
            [mail] = await post.until(1)
            tasks.cancel_scope.cancel()
    assert mail["Subject"] == "[penstock] 2 notices: 2 parked"
    assert len(office.taken) == 2


async def test_bad_servers_logins_and_addresses_are_told_without_the_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_post(tmp_path) as post:
        good = server_of(post)
        await check_mail(good)
        assert post.mails == []
        [closed] = free_ports(1)
        for server, told in (
            (good._replace(port=closed), "ConnectionRefusedError"),
            (good._replace(host="no-such-host.invalid"), "gaierror"),
            (good._replace(ca=""), "CERTIFICATE_VERIFY_FAILED"),
            (good._replace(user="somebody"), "the login of somebody was refused: 5.7.8"),
            (good._replace(password="env:NOT_THERE"), "env:NOT_THERE: the variable is not set"),
            (good._replace(to=(UNKNOWN,)), f"no recipient was accepted: {UNKNOWN}: 550 no such mailbox"),
        ):
            with pytest.raises(MailRefused) as refused:
                await send_mail(server, [notice("parked", "mall/s1")])
            assert told in str(refused.value)
            assert PASSWORD not in str(refused.value)
        assert post.mails == []
        config = Config(nats="nats://127.0.0.1:9", connect_s=0.1, smtp=f"127.0.0.1:{post.port}", mail_to=good.to)
        config = config.with_changes(smtp_user=USER, smtp_password="env:MAIL_PASSWORD_OF_TEST", smtp_ca=post.ca)
        [looked] = [check for check in await examine(config) if check.name == "mail"]
        assert (looked.level, looked.found) == (
            "ok",
            f"127.0.0.1:{post.port} takes mail for ops@example.com, second@example.com",
        )
        [looked] = [check for check in await examine(config.with_changes(smtp_user="me")) if check.name == "mail"]
        assert looked.level == "fail"
        caplog.set_level(logging.WARNING)
        await send_mail(good._replace(to=("ops@example.com", UNKNOWN)), [notice("parked", "mall/s1")])
        assert len(post.mails) == 1
        assert [one.message for one in caplog.records if one.name.startswith("actors")] == [
            "notice.mail_recipients_refused"
        ]


async def test_without_tls_nothing_is_sent(tmp_path: Path) -> None:
    async with a_post(tmp_path, has_tls=False) as post:
        with pytest.raises(MailRefused, match="with TLS only"):
            await send_mail(server_of(post), [notice("parked", "mall/s1")])
        assert post.mails == []


async def test_on_the_port_of_tls_it_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_post(tmp_path, has_tls=False, is_tls_first=True) as post:
        monkeypatch.setattr(mail_module, "TLS_PORT", post.port)
        await send_mail(server_of(post, user="", password=""), [notice("parked", "mall/s1")])
    assert post.mails[0]["Subject"] == "[penstock] parked: mall/s1"


@pytest.mark.parametrize("drips", [False, True])
async def test_a_server_that_hangs_holds_up_neither_a_webhook_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drips: bool
) -> None:
    monkeypatch.setattr(mail_module, "LONGEST_S", 2.0)
    tried, hung_up = anyio.Event(), anyio.Event()

    async def hang(client: anyio.abc.SocketStream) -> None:
        async with client:
            tried.set()
            try:
                while drips:
                    await client.send(b"220-wait\r\n")
                    with anyio.move_on_after(0.2):
                        await client.receive()
                await client.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                hung_up.set()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    server = MailServer("127.0.0.1", port, "penstock@example.com", ("ops@example.com",))
    async with (
        listener,
        an_office() as office,
        aiohttp.ClientSession() as http,
        anyio.create_task_group() as outer,
    ):
        outer.start_soon(listener.serve, hang)
        with pytest.raises(MailRefused, match=rf"127.0.0.1:{port}: no end within 2 s"):
            await send_mail(server, [notice("parked", "mall/s1")])
        with anyio.fail_after(30):
            await hung_up.wait()
        tried = anyio.Event()
        monkeypatch.setattr(mail_module, "LONGEST_S", 60.0)
        alerts = Alerts(Notifier(Transport(http), server))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alerts.run)
            alerts.submit("one", notice("parked", "mall/s1"), lambda: office.url)
            await office.until(1)
            await tried.wait()
            began_s = monotonic_s()
            tasks.cancel_scope.cancel()
        assert monotonic_s() - began_s < 30
        outer.cancel_scope.cancel()
