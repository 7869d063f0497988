"""Cause and node travel in headers; credentials do not travel into messages; the clock is UTC milliseconds."""

import time
from pathlib import Path

import pytest

from streams.clock import SYSTEM, monotonic_s, now_ms
from streams.context import Context, from_headers, to_headers
from streams.credentials import Credentials, shown_url
from streams.server import settings_text, why_not_started


@pytest.mark.parametrize("context", [Context(), Context(cause="t3-1-2"), Context(cause="c", node="n1")])
def test_a_context_arrives_as_it_was_sent(context: Context) -> None:
    assert from_headers(to_headers(context)) == context
    assert all(to_headers(context).values())


def test_the_clock_is_the_systems_in_milliseconds() -> None:
    assert abs(now_ms() - time.time() * 1000) < 1000
    assert abs(SYSTEM.now_ms() - now_ms()) < 1000
    assert monotonic_s() <= monotonic_s()


def test_no_secret_is_shown() -> None:
    login = Credentials(user="u-secret", password="p-secret", token="t-secret", nkey_seed="s-secret")
    assert "secret" not in repr(login)
    assert "password=***" in repr(login)
    assert login.options()["password"] == "p-secret"
    assert Credentials().options() == {"inbox_prefix": "_INBOX"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:p@host:4222", "nats://host:4222"),
        ("token@host:1,tls://other:2", "nats://host:1,tls://other:2"),
        ("127.0.0.1:4222", "nats://127.0.0.1:4222"),
    ],
)
def test_an_address_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_the_servers_settings_name_what_they_mean() -> None:
    safe = settings_text(Path("/data"), "n", 4222, "max_payload: 1", sync_always=True)
    fast = settings_text(Path("/data"), "n", 0, "", sync_always=False)
    assert "sync_interval: always" in safe
    assert 'listen: "127.0.0.1:4222"' in safe
    assert "max_payload: 1" in safe
    assert "sync_interval" not in fast
    assert 'listen: "127.0.0.1:-1"' in fast


@pytest.mark.parametrize(
    ("log_text", "told"),
    [
        ("[INF] Starting\n[FTL] bind: address already in use\n", "port 4222 on 127.0.0.1 is in use"),
        ("[INF] Starting\n[ERR] disk\n[INF] Exiting\n", "[ERR] disk"),
        ("nats-server: nats.conf:3: unknown field\n", "unknown field"),
        ("", "it logged nothing"),
    ],
)
def test_why_a_server_did_not_start(log_text: str, told: str) -> None:
    assert told in why_not_started(log_text, 4222)
