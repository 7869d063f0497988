"""References lead to secrets, and secrets do not show themselves."""

import json
import os
import pickle
import uuid
from pathlib import Path

import msgspec
import pytest

from actors.runtime.secrets import (
    BadReference,
    Secret,
    known_secrets,
    looks_secret,
    resolve_reference,
    resolve_values,
    without_secrets,
)

VALUE = "s3cr3t-value-of-a-shop"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    path.chmod(0o600)
    return path


def test_a_variable_and_a_file_lead_to_the_value_without_its_line_end(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", VALUE)
    assert resolve_reference("env:SHOP_TOKEN").reveal() == VALUE
    assert resolve_reference(f"file:{file}") == resolve_reference("env:SHOP_TOKEN")


def test_a_secret_does_not_show_itself() -> None:
    secret = Secret(VALUE)
    assert VALUE not in f"{secret} {secret!r} {secret:>40} {[secret]}"
    assert VALUE in known_secrets()


def test_a_secret_is_not_written_down() -> None:
    secret = Secret(VALUE)
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError):
        pickle.dumps(secret)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_may_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(BadReference, match="chmod 600"):
        resolve_reference(f"file:{file}")


def test_what_leads_nowhere_is_refused_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOP_TOKEN", raising=False)
    empty = tmp_path / "empty"
    empty.touch(0o600)
    pipe = tmp_path / "folder"
    pipe.mkdir(0o700)
    for reference, why in [
        ("env:SHOP_TOKEN", f"SHOP_TOKEN: the variable is not set in process {os.getpid()} on "),
        ("env:", "by reference"),
        (f"file:{tmp_path}/none", "No such file"),
        (f"file:{empty}", "empty"),
        (f"file:{pipe}", "directory"),
        ("file:token", "whole path"),
    ]:
        with pytest.raises(BadReference, match=why):
            resolve_reference(reference)


@pytest.mark.parametrize("literal", [VALUE, "vault:shop/token", "https://shop.example", ""])
def test_a_literal_is_refused_and_not_repeated(literal: str) -> None:
    with pytest.raises(BadReference) as refused:
        resolve_reference(literal)
    assert "env:NAME" in str(refused.value)
    assert not literal or literal not in str(refused.value)


def test_an_account_is_resolved_value_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_TOKEN", VALUE)
    account = {"base_url": "https://shop.example/api", "api_key": "env:SHOP_TOKEN"}
    assert resolve_values(account) == {"base_url": "https://shop.example/api", "api_key": VALUE}


def test_an_account_with_a_secret_written_down_is_refused_by_its_name() -> None:
    with pytest.raises(BadReference, match=r"^api_key: looks like a secret"):
        resolve_values({"api_key": VALUE})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "x"),
        ("shop.access_key", "abc"),
        ("client_secret", "abc"),
        ("note", "shpat_0123456789abcdef0123"),
        ("note", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"),
        ("note", "-----BEGIN PRIVATE KEY-----\nMC4C"),
        ("note", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    ],
)
def test_what_looks_like_a_secret(name: str, value: str) -> None:
    assert looks_secret(name, value)
    assert not looks_secret(name, "env:SHOP_TOKEN")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("base_url", "https://shop.example/9f86d081884c7d659a2feaa0c55ad015"),
        ("slice", "60s"),
        ("shop", str(uuid.UUID(int=2**100))),
        ("marketplace", "ATVPDKIKX0DER"),
        ("keyboard", "qwertz"),
        ("password", ""),
    ],
)
def test_what_does_not_look_like_a_secret(name: str, value: str) -> None:
    assert not looks_secret(name, value)


def test_reading_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.touch(0o600)
    os.truncate(path, 1 << 20)
    with pytest.raises(BadReference, match="larger"):
        resolve_reference(f"file:{path}")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('{"error":"token s3cret-s3cret is void"}', '{"error":"token *** is void"}'),
        ('{"access_token" : "abc", "name":"Ann"}', '{"access_token":"***", "name":"Ann"}'),
        ('{"password":"cut off in the mid', '{"password":"***"'),
        ('{"at":"2026-01-31T08:00:00Z","id":"s1-0000983"}', '{"at":"2026-01-31T08:00:00Z","id":"s1-0000983"}'),
        ("Bearer shpat_0123456789abcdef", "Bearer ***"),
    ],
)
def test_what_somebody_else_said_is_shown_without_secrets(said: str, shown: str) -> None:
    Secret("s3cret-s3cret")
    assert without_secrets(said) == shown
