"""What an answer means before its body is read."""

import pytest

from platforms.adapter import Bug, Later, Login, Outcome, Park, Response, SlowDown, Split
from platforms.outcomes import http_date_ms, json_outcome, retry_after_ms, usual_outcome

MINUTE = 60_000
NOW = "Sun, 06 Nov 1994 08:49:37 GMT"


@pytest.mark.parametrize(
    ("headers", "wait_ms"),
    [
        ({"retry-after": "3"}, 3_000),
        ({"retry-after": " 3 "}, 3_000),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "1000000000"}, 15 * MINUTE),
        ({"retry-after": "9" * 5_000}, 15 * MINUTE),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "2.0"}, 2_000),
        ({"retry-after": "1.0001"}, 1_001),
        ({"retry-after": "9" * 5_000 + ".9"}, 15 * MINUTE),
        ({"retry-after": "1.5.1"}, None),
        ({"retry-after": "1e3"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT", "date": NOW}, 30_000),
        ({"retry-after": "Sun, 06 Nov 1994 08:00:00 GMT", "date": NOW}, 0),
        ({"retry-after": "Sun, 06 Nov 2094 08:00:00 GMT", "date": NOW}, 15 * MINUTE),
        ({"retry-after": "Sun, 06 Nov 1994 08:50:07 GMT"}, None),
        ({"retry-after": "Sun, 31 Feb 1994 08:50:07 GMT", "date": NOW}, None),
    ],
)
def test_retry_after_is_a_bounded_wait_or_nothing(headers: dict[str, str], wait_ms: int | None) -> None:
    assert retry_after_ms(headers, 15 * MINUTE) == wait_ms


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        (NOW, 784_111_777_000),
        ("Sun, 06 Nov 1994 08:49:60 GMT", 784_111_799_000),
        ("Sunday, 06-Nov-94 08:49:37 GMT", None),
        ("Sun, 06 Foo 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49 GMT", None),
        ("Sun, 06 Nov 99999999999999999999 08:49:37 GMT", None),
        ("", None),
    ],
)
def test_http_dates_are_read_or_left(text: str, at_ms: int | None) -> None:
    assert http_date_ms(text) == at_ms


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (200, {}, None),
        (204, {}, None),
        (429, {"retry-after": "2"}, SlowDown(2_000)),
        (429, {}, SlowDown()),
        (500, {}, Later()),
        (503, {"retry-after": "7"}, Later(7_000)),
        (408, {}, Later()),
        (304, {}, Later()),  # of a cache on the way: no request asks whether something changed
        (401, {}, Login()),
        (413, {}, Split()),
        (414, {}, Split()),
    ],
)
def test_a_status_says_what_to_do(status: int, headers: dict[str, str], outcome: Outcome | None) -> None:
    assert usual_outcome(Response(status, headers, b""), longest_wait_ms=MINUTE) == outcome


@pytest.mark.parametrize("status", [400, 404, 405, 422])
def test_a_refused_request_is_a_bug_of_ours(status: int) -> None:
    outcome = usual_outcome(Response(status, {}, b"order 17 of Ms Rossi"), longest_wait_ms=MINUTE)
    assert isinstance(outcome, Bug)
    assert str(status) in outcome.reason
    assert "Rossi" not in outcome.reason


@pytest.mark.parametrize(
    ("location", "named"),
    [
        ("http://evil.example/orders?token=x", "evil.example"),
        ("/login", "path of its own"),
        ("http://[", "cannot be read"),
    ],
)
@pytest.mark.parametrize(("status", "kind"), [(301, Park), (308, Park), (302, Later), (303, Later), (307, Later)])
def test_a_redirect_for_good_parks_the_shop_one_for_now_passes_and_both_name_the_host_alone(
    status: int, kind: type[Park | Later], location: str, named: str
) -> None:
    outcome = usual_outcome(Response(status, {"location": location}, b""), longest_wait_ms=MINUTE)
    assert isinstance(outcome, Park | Later)
    assert type(outcome) is kind
    assert named in outcome.reason
    assert "token" not in outcome.reason


def test_forbidden_parks_the_shop() -> None:
    for body in (b"", b'{"message":"orders are not in your scope"}'):
        assert isinstance(usual_outcome(Response(403, {}, body), longest_wait_ms=MINUTE), Park)


@pytest.mark.parametrize(
    ("headers", "body", "after_ms"),
    [
        ({}, b" \n<!DOCTYPE html><title>Just a moment...</title>", None),
        ({"retry-after": "20"}, b"<html>Attention Required!</html>", 20_000),
        ({"retry-after": "20"}, b'{"message":"blocked"}', 20_000),
    ],
)
def test_a_firewall_before_the_platform_parks_nothing(
    headers: dict[str, str], body: bytes, after_ms: int | None
) -> None:
    outcome = usual_outcome(Response(403, headers, body), longest_wait_ms=MINUTE)
    assert isinstance(outcome, Later)
    assert (outcome.after_ms, "firewall" in outcome.reason) == (after_ms, True)


@pytest.mark.parametrize("body", [b"", b"<html>Back soon</html>", b'{"orders":[{"id":1', b"  \n", b"OK"])
def test_what_is_no_json_comes_later(body: bytes) -> None:
    outcome = json_outcome(Response(200, {}, body))
    assert isinstance(outcome, Later)
    assert ("is empty" if not body.strip() else repr(body.decode())) in outcome.reason


@pytest.mark.parametrize("body", [b"{}", b"[]", b' {"orders":[]}\n'])
def test_json_may_be_read(body: bytes) -> None:
    assert json_outcome(Response(200, {}, body)) is None
