"""What is refused before a source is stored, and that no message shows a secret."""

import pytest

from actors.fetch.sources import SourceKey
from penstock.admin.source_door import check_account, read_adapter_table, read_pairs, read_platform, read_source
from penstock.errors import UsageError
from platforms.registry import adapter_named

SHOP = SourceKey("mall", "s1")
GOOD = {"base_url": "https://shop.example.com/v1", "shop": "s1"}
NOW_MS = 1_800_000_000_000

TOML = """
name = "acme"
[request]
path = "/orders"
[request.params]
from = "{window.start}"
to = "{window.end}"
shop = "{account.shop}"
[record]
rows = "orders"
key = "id"
"""


def test_a_source_is_platform_and_source() -> None:
    assert read_source("mall/s1") == SHOP
    assert read_platform("mall") == "mall"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mall", "PLATFORM/SOURCE"),
        ("", "PLATFORM/SOURCE"),
        ("mall/", "empty"),
        ("mall/s1/x", "contains '/'"),
        ("ma.ll/s1", "contains '.'"),
        ("mall/*", "contains '*'"),
        ("mall/>", "contains '>'"),
        ("mall/s 1", "contains ' '"),
        ("mall/s\r\nPUB", r"contains '\\r'"),
        ("mall/" + "x" * 65, "65 characters"),
        ("default/s1", "level of settings"),
    ],
)
def test_a_name_that_could_not_be_a_subject_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_source(text)


def test_pairs_are_read_with_their_first_equals_sign() -> None:
    assert read_pairs("--account", ["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["hunter2", "=x", "a b=1", "ключ=1"])
def test_what_is_no_pair_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE") as refused:
        read_pairs("--account", [text])
    assert "hunter2" not in str(refused.value)


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        read_pairs("--account", ["a=1", "a=2"])


def test_an_account_that_fits_its_adapter_passes() -> None:
    check_account(SHOP, adapter_named("mall"), GOOD, now_ms=NOW_MS)
    check_account(SHOP, adapter_named("mall"), {**GOOD, "token": "env:SHOP_TOKEN"}, now_ms=NOW_MS)
    check_account(SHOP, adapter_named("mall"), {**GOOD, "base_url": "file:/etc/shop/url"}, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("account", "said"),
    [
        ({"base_url": GOOD["base_url"]}, "needs the account value 'shop'"),
        ({"base_url": GOOD["base_url"], "shopp": "s1"}, "did you mean 'shopp'"),
        ({}, "needs the account value"),
        ({**GOOD, "shop": ""}, "empty"),
        ({**GOOD, "shop": "s1\x1b[2J"}, "printable"),
        ({**GOOD, "shop": "x" * 2001}, "printable"),
        ({**GOOD, "base_url": "shop.example.com"}, "no http or https address"),
        ({**GOOD, "base_url": "file:///etc/passwd"}, "a reference is env:NAME or file:"),
        ({**GOOD, "base_url": "https://kim:pass@shop.example.com"}, "holds a user"),
        ({**GOOD, "base_url": "https://shop.example.com/?key=1"}, "query"),
        ({**GOOD, "callback": "gopher://shop.example.com"}, "http:// or https://"),
        ({**GOOD, "callback": "https://kim:pass@shop.example.com"}, "user and password"),
        ({**GOOD, "token": "env:"}, "env:NAME"),
        ({**GOOD, "token": "env:A B"}, "env:NAME"),
        ({**GOOD, "token": "file:relative"}, "absolute"),
        ({**GOOD, **{f"n{at}": "x" for at in range(65)}}, "at most 64"),
    ],
)
def test_an_account_that_does_not_fit_is_refused(account: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_account(SHOP, adapter_named("mall"), account, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("token", "swordfish"),
        ("app_secret", "swordfish"),
        ("extra", "shpat_1234567890abcdef"),
        ("extra", "A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6"),
    ],
)
def test_a_secret_that_was_written_down_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(UsageError, match="env:NAME") as refused:
        check_account(SHOP, adapter_named("mall"), {**GOOD, name: value}, now_ms=NOW_MS)
    assert value not in str(refused.value)


def test_an_adapter_file_becomes_the_same_bytes_each_time() -> None:
    first, again = (read_adapter_table(text, where="acme.toml") for text in (TOML, f"# a comment\n{TOML}"))
    assert first.name == "acme"
    assert first.stored == again.stored


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "no TOML"),
        (TOML.replace("[record]", "[recrod]"), "did you mean 'record'"),
        (TOML.replace('key = "id"', "key = 5"), r"\[record\] key: is text or a list"),
        (TOML.replace('"acme"', '"mall"'), "built-in"),
        (TOML.replace('"acme"', '"a.b"'), "name"),
        ("x" * 300_000, "at most"),
    ],
)
def test_a_bad_adapter_file_is_refused_with_where(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        read_adapter_table(text, where="acme.toml")
    assert "acme.toml" in str(refused.value)
