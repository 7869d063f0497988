"""Which URLs may be called, and what is shown of them."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.transport import BadUrl, _error_text, check_url, shown_url
from tests.support.edits import edited

SECRET = "s3cr3t"
URLS = st.builds(
    "{}://{}{}{}/orders{}".format,
    st.sampled_from(["http", "https", "HTTPS", "ftp", ""]),
    st.sampled_from(["", "", f"user:{SECRET}@", f"{SECRET}@"]),
    st.sampled_from(["host", "api.example.com", "127.0.0.1", "[::1]", "größe.example", ""]),
    st.sampled_from(["", ":8080", ":0", ":99999", ":port"]),
    st.sampled_from(["", f"?sign={SECRET}", f"#{SECRET}"]),
)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/orders", "https://api.example.com", "HTTPS://Api.Example.com/x?y=1"]
)
def test_plain_addresses_may_be_called(url: str) -> None:
    assert check_url(url).scheme in ("http", "https")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "orders",
        "//host/orders",
        "ftp://host/orders",
        "file:///etc/passwd",
        "http://",
        "http:///orders",
        "http://[::1/orders",
        "http://host:99999/orders",
        "http://host:port/orders",
        "https://xn--a.example/orders",
        f"https://user:{SECRET}@host/orders",
        f"https://{SECRET}@host/orders",
        f"gopher://user:{SECRET}@host/orders?token={SECRET}",
        f"http://[bad?token={SECRET}",
    ],
)
def test_others_are_refused_without_repeating_a_secret(url: str) -> None:
    with pytest.raises(BadUrl) as told:
        check_url(url)
    assert SECRET not in str(told.value)


@given(URLS | edited(URLS, ":/@[]?# \\\n"))
def test_any_text_is_called_or_refused(text: str) -> None:
    with suppress(BadUrl):
        url = check_url(text)
        assert url.scheme in ("http", "https")
        assert url.host
        assert (url.user, url.password) == (None, None)


def test_what_is_shown_has_neither_user_nor_query() -> None:
    shown = shown_url(f"https://user:{SECRET}@host:8443/orders?sign={SECRET}#{SECRET}")
    assert shown == "https://host:8443/orders"


@pytest.mark.parametrize(
    "text",
    [
        f"Connection timeout to host http://h/orders?sign={SECRET}",
        f"400, message='bad', url='http://h/orders?a=1&sign={SECRET}'",
        f"http://h/orders#{SECRET} and on",
    ],
)
def test_what_the_client_quotes_of_a_query_is_left_out(text: str) -> None:
    said = _error_text(RuntimeError(text))
    assert SECRET not in said
    assert said[:5] == text[:5]
