"""Whom a callback may reach: what the operator lists, and no address within by whatever name or spelling."""

import hashlib
import hmac
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.batch.rules.callbacks import is_public, may_connect, parse_allowed, refusal_of, signature, tenant_secret

NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,8}[a-z0-9])?){1,3}", fullmatch=True)
INNER = [
    "127.0.0.1",
    "127.255.0.9",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "192.0.2.7",
    "198.18.0.1",
    "240.0.0.1",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2002:102:304::",
    "2001::1",
    "2001:db8::1",
    "fc00::1",
    "fd12::1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]


@pytest.mark.parametrize("address", INNER)
def test_what_is_within_is_not_public_and_not_connected_to(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not may_connect(address, parse_allowed(["*", "shop.example.com"]))


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "64:ff9b::102:304"])
def test_what_is_anybodys_is_public(address: str) -> None:
    assert is_public(ip_address(address))
    assert may_connect(address, parse_allowed([]))


@given(st.ip_addresses(v=4))
def test_an_address_is_no_more_public_for_being_wrapped(inner: IPv4Address) -> None:
    number = int(inner)
    wrapped = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x0064_FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
    ]
    for each in wrapped:
        assert is_public(inner) or not is_public(each)


@given(st.ip_addresses(v=6))
def test_of_version_6_only_what_is_handed_out_is_public(address: IPv6Address) -> None:
    if is_public(address) and address.ipv4_mapped is None:
        assert str(address).startswith(("2", "3", "64:ff9b::", "::"))
        assert not address.is_private
        assert not address.is_multicast


REFUSED = [
    ("http", "169.254.169.254", 80),
    ("https", "169.254.169.254", 443),
    ("https", "::ffff:127.0.0.1", 443),
    ("https", "127.0.0.1", 443),
    ("https", "0x7f000001", 443),
    ("https", "2130706433", 443),
    ("https", "127.1", 443),
    ("https", "0177.0.0.1", 443),
    ("https", "shop.0x7f", 443),
    ("https", "localhost", 443),
    ("http", "localhost", 80),
    ("https", "shop.example.com", 4222),
    ("http", "shop.example.com", 80),
    ("http", "93.184.216.34", 80),
    ("ftp", "shop.example.com", 443),
    ("https", "shop.example.com.", 443),
    ("https", "shop.example.com\n", 443),
    ("https", "", 443),
    ("https", "[::1]", 443),
]


@pytest.mark.parametrize(("scheme", "host", "port"), REFUSED, ids=str)
def test_bad_places_are_refused_even_where_any_name_may_be_called(scheme: str, host: str, port: int) -> None:
    said = refusal_of(scheme, host, port, parse_allowed(["*", "shop.example.com"]))
    assert "use https" in said or "callback_hosts" in said


@given(NAMES, st.integers(1, 65_535))
def test_nobody_is_called_that_is_not_listed(name: str, port: int) -> None:
    assert refusal_of("https", name, port, parse_allowed([]))
    listed = parse_allowed([f"{name}:{port}"])
    assert refusal_of("https", name, port, listed) == ""
    assert refusal_of("https", name.upper(), port, listed) == ""
    assert refusal_of("http", name, port, listed)
    assert refusal_of("https", f"x.{name}", port, listed)
    assert refusal_of("https", f"x{name}", port, listed)
    assert refusal_of("https", name, port % 65_535 + 1, listed)


@given(NAMES)
def test_a_star_stands_for_what_is_below(name: str) -> None:
    below = parse_allowed([f"*.{name}"])
    assert refusal_of("https", f"a.b.{name}", 443, below) == ""
    assert refusal_of("https", name, 443, below)
    assert refusal_of("https", f"a{name}", 443, below)
    assert refusal_of("https", f"{name}.evil.example", 443, below)
    assert refusal_of("https", name, 443, parse_allowed(["*"])) == ""


def test_addresses_and_networks_are_called_where_the_operator_lists_them() -> None:
    allowed = parse_allowed(["127.0.0.1:8080", "[::1]:8081", "10.0.0.0/8"])
    assert refusal_of("http", "127.0.0.1", 8080, allowed) == ""
    assert refusal_of("http", "::1", 8081, allowed) == ""
    assert refusal_of("https", "10.9.8.7", 443, allowed) == ""
    assert refusal_of("http", "10.9.8.7", 443, allowed)
    assert refusal_of("https", "10.9.8.7", 4222, allowed)
    assert refusal_of("http", "127.0.0.1", 8081, allowed)
    assert may_connect("10.9.8.7", allowed)
    assert may_connect("::ffff:10.9.8.7", allowed)
    assert not may_connect("127.0.0.1", allowed)  # a listed address is a host; no name may lead there
    assert not may_connect("nonsense", allowed)


@pytest.mark.parametrize(
    "entry",
    ["", " ", "https://shop.example.com", "shop.example.com:", "shop:0", "shop:65536", "shop:٣", "a b", "*.*", "**",
     "shop.*", "10.0.0.1/8", "10.0.0.0/33", "0x7f000001", "127.1", "-a.example", "a..b", "user@shop.example.com"],
)  # fmt: skip
def test_an_entry_that_is_none_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=r"write|no network"):
        parse_allowed([entry])


@given(st.text(min_size=1), st.binary(max_size=200), st.integers(0, 2**40))
def test_a_signature_is_of_the_moment_and_the_body(secret: str, body: bytes, at_s: int) -> None:
    try:
        key = secret.encode()
    except UnicodeEncodeError:
        return
    moment, _, mac = signature(secret, body, at_s).partition(",v1=")
    assert moment == f"t={at_s}"
    assert hmac.compare_digest(mac, hmac.new(key, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest())
    assert signature(secret, body, at_s + 1).partition(",v1=")[2] != mac
    assert signature(secret, body + b"x", at_s).partition(",v1=")[2] != mac


def test_each_tenant_has_a_secret_of_its_own() -> None:
    """The example is what `openssl dgst -sha256 -hmac` says."""
    assert tenant_secret("a key", "") == "a key"
    assert tenant_secret("a key", "acme") == "c1e9a2f06397faf1ed9a4276d978800328cd70c0bd09668dfd7558ea864ce680"
    assert tenant_secret("a key", "acme") != tenant_secret("a key", "acme2")
