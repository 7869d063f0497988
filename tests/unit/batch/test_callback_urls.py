"""Callbacks: what may not be called is refused by name, whatever it is made to look like; and for how long is tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from actors.batch.callback_transport import BadCallback, check_addresses, check_callback
from actors.batch.callbacks import ATTEMPTS, TRIES
from actors.batch.rules.callbacks import parse_allowed
from streams.backoff import next_delay_ms
from tests.support.edits import edited

LISTED = parse_allowed(["shop.example.com", "*.partner.example", "127.0.0.1:8080", "xn--bcher-kva.example"])
BAD = [
    "http://169.254.169.254/latest/meta-data",
    "https://169.254.169.254/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::1]/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://2130706433/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://localhost/",
    "https://127.0.0.1:4222/",
    "http://127.0.0.1:8081/",
    "https://shop.example.com:4222/",
    "https://shop.example.com:0/",
    "https://shop.example.com:99999/",
    "http://shop.example.com/",
    "HTTP://shop.example.com/",
    "https://joe:hunter2@shop.example.com/",
    "https://joe@shop.example.com/",
    "https://evil.example.org/",
    "https://shop.example.com\\@evil.example.org/",
    "https://evil.example.org\\.shop.example.com/",
    "https://shop.example.com.evil.example.org/",
    "https://shop.example.com@evil.example.org/",
    "https://evil.example.org#@shop.example.com/",
    "https://evil.example.org?@shop.example.com/",
    "https://shop.example.com./",
    "https://partner.example/",
    "https://partner.example.evil.example.org/",
    "https://shop.example.com/\r\nHost: evil.example.org",
    "https://shop.example.com/ x",
    "https://shop.example.com/\x00",
    "https://shop.example.com/ü",
    "https://shop。example。com/",
    "https://shop.example.com/" + "x" * 2_000,
    "ftp://shop.example.com/",
    "file:///etc/passwd",
    "gopher://shop.example.com:443/",
    "//shop.example.com/",
    "shop.example.com",
    "https://",
    "https:///",
    "https://[::1",
    "https://xn--a.example/",
    "https://*/",
    "https://*.partner.example/",
    " ",
    "",
]
GOOD = [
    "https://shop.example.com/told?shop=7",
    "https://SHOP.example.com",
    "https://shop.example.com:443/a/b",
    "https://a.b.partner.example/x",
    "http://127.0.0.1:8080/told",
    "https://xn--bcher-kva.example/",
]


@pytest.mark.parametrize("url", BAD)
def test_120_bad_callbacks_are_refused_without_what_is_secret(url: str) -> None:
    with pytest.raises(BadCallback, match=r"^callback") as refused:
        check_callback(url, LISTED)
    said = str(refused.value)
    assert "hunter2" not in said
    assert said.isprintable()
    assert len(said) < 500


@pytest.mark.parametrize("url", GOOD)
def test_what_is_listed_is_called(url: str) -> None:
    check_callback(url, LISTED)
    with pytest.raises(BadCallback, match="callback_hosts"):
        check_callback(url, parse_allowed([]))


def test_a_name_that_leads_within_by_any_of_its_addresses_is_not_used_at_all() -> None:
    check_addresses("shop.example.com", ["93.184.216.34", "2606:4700::1111"], LISTED)
    for within in ("10.0.0.5", "127.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.5"):
        with pytest.raises(OSError, match=r"shop\.example\.com leads to .* not public; list its network"):
            check_addresses("shop.example.com", ["93.184.216.34", within], LISTED)
    check_addresses("shop.example.com", ["10.0.0.5"], parse_allowed(["shop.example.com", "10.0.0.0/24"]))


@given(st.floats(0, 1, exclude_max=True))
def test_a_call_is_tried_twelve_times_within_three_hours(chance: float) -> None:
    waits = [next_delay_ms(attempt, TRIES, chance=chance) for attempt in range(2, 13)]
    assert [TRIES.is_last(attempt) for attempt in (11, 12)] == [False, True]
    assert 2 * 3_600_000 < sum(waits) < 3 * 3_600_000
    assert waits == sorted(waits)
    assert ATTEMPTS > 12


@given(edited(st.sampled_from([url for url in GOOD if "127.0.0.1" not in url]), ":/@.?#%-*\\ aü"))
def test_whatever_is_accepted_leads_where_it_is_listed(url: str) -> None:
    try:
        check_callback(url, LISTED)
    except BadCallback:
        return
    parsed = URL(url)
    assert parsed.raw_host in ("shop.example.com", "xn--bcher-kva.example") or str(parsed.raw_host).endswith(
        ".partner.example"
    )
    assert (parsed.scheme, parsed.port, parsed.user) == ("https", 443, None)
