"""Requests go to the account's own platform and nowhere else."""

import pytest

from platforms.errors import BadDeclaration, BrokenContract
from platforms.urls import check_base_url, next_url

BASE = "https://api.example.com/v1"


@pytest.mark.parametrize("text", [BASE, BASE + "/", "http://127.0.0.1:8080", "https://[::1]:8443"])
def test_plain_addresses_may_be_used(text: str) -> None:
    assert check_base_url("base_url", text) == text.rstrip("/")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "api.example.com",
        "file:///etc/passwd",
        "ftp://api.example.com",
        "https://",
        "https://:443",
        "https://user:pw@api.example.com",
        "https://user@api.example.com",
        "https://api.example.com?x=1",
        "https://api.example.com#x",
        "https://api.example.com:99999",
        "https://[::1",
    ],
)
def test_other_addresses_are_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(BadDeclaration) as refused:
        check_base_url("base_url", text)
    assert "pw" not in str(refused.value)


@pytest.mark.parametrize(
    ("link", "url"),
    [
        (f"{BASE}/orders?page=2", f"{BASE}/orders?page=2"),
        ("/v1/orders?page=2", f"{BASE}/orders?page=2"),
        ("?page=2", f"{BASE}/?page=2"),
        ("https://api.example.com:443/v1/orders", "https://api.example.com:443/v1/orders"),
        ("HTTPS://API.example.com/v1/orders", "HTTPS://API.example.com/v1/orders"),
    ],
)
def test_a_next_link_may_stay_on_the_platform(link: str, url: str) -> None:
    assert next_url(link, BASE) in (url, url.replace("HTTPS", "https"))


@pytest.mark.parametrize(
    ("link", "base", "url"),
    [
        ("http://api.example.com/v1/orders?page=2", BASE, "https://api.example.com/v1/orders?page=2"),
        ("http://api.example.com:80/v1/orders", BASE, "https://api.example.com/v1/orders"),
        ("http://api.example.com:443/v1/orders", BASE, "https://api.example.com/v1/orders"),
        ("http://shop.example:8443/o", "https://shop.example:8443", "https://shop.example:8443/o"),
    ],
)
def test_a_next_link_of_a_shop_that_does_not_know_of_its_tls_stays_on_https(link: str, base: str, url: str) -> None:
    """A proxy in front of the shop ends TLS, and the shop writes http into its links."""
    assert next_url(link, base) == url


def test_a_next_link_never_leaves_http_for_another_origin() -> None:
    for link in ("https://api.example.com/v1/orders", "https://api.example.com:80/v1/orders"):
        with pytest.raises(BrokenContract, match=r"https://api\.example\.com.*, away from http://api\.example\.com"):
            next_url(link, "http://api.example.com")


@pytest.mark.parametrize(
    "link",
    [
        "https://evil.example/orders",
        "//evil.example/orders",
        "http://api.example.com:8080/v1/orders",
        "https://api.example.com:8443/v1/orders",
        "https://api.example.com.evil.example/",
        "https://user@api.example.com/v1/orders",
        "https://api.example.com@evil.example/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http://[",
    ],
)
def test_a_next_link_to_elsewhere_is_a_broken_contract(link: str) -> None:
    with pytest.raises(BrokenContract, match="next link"):
        next_url(link, BASE)
