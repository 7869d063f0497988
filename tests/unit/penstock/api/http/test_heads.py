"""A request's head: what is refused before anybody looks at who sent it."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.http.heads import check_head, is_json, is_local
from penstock.api.http.limits import LARGEST_BODY
from penstock.api.http.problems import RefusedRequest

HOST = (b"host", b"127.0.0.1:7070")


def status_of(
    method: str = "POST",
    path: bytes = b"/queue",
    query: bytes = b"",
    headers: tuple[tuple[bytes, bytes], ...] = (HOST,),
) -> int:
    try:
        check_head(method, path, query, headers)
    except RefusedRequest as told:
        return told.problem.status
    return 200


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (200, {}),
        (200, {"method": "HEAD"}),
        (405, {"method": "TRACE"}),
        (405, {"method": "CONNECT"}),
        (405, {"method": "PUT"}),
        (400, {"path": b"/v1//topics"}),
        (400, {"path": b"/v1/../queue"}),
        (400, {"path": b"/v1/."}),
        (200, {"path": b"/v1/topics/a/jobs/%2e%2e%2f"}),
        (400, {"query": b"token=pst_1"}),
        (400, {"query": b"a=1&Access_Token=x"}),
        (200, {"query": b"after=token"}),
        (400, {"headers": ()}),
        (400, {"headers": (HOST, HOST)}),
        (400, {"headers": ((b"host", b"a b"),)}),
        (400, {"headers": ((b"host", b"localhost:x"),)}),
        (400, {"headers": ((b"host", b"joe@localhost"),)}),
        (200, {"headers": ((b"host", b"[::1]:7070"),)}),
        (400, {"headers": (HOST, (b"authorization", b"Bearer a"), (b"authorization", b"Bearer b"))}),
        (400, {"headers": (HOST, (b"x-http-method-override", b"DELETE"))}),
        (415, {"headers": (HOST, (b"content-encoding", b"gzip"))}),
        (200, {"headers": (HOST, (b"content-encoding", b"identity"))}),
        (413, {"headers": (HOST, (b"content-length", b"%d" % (LARGEST_BODY + 1)))}),
        (200, {"headers": (HOST, (b"content-length", b"%d" % LARGEST_BODY))}),
        (400, {"headers": (HOST, (b"content-length", b"3"), (b"transfer-encoding", b"chunked"))}),
        (403, {"headers": (HOST, (b"origin", b"https://evil.example"))}),
        (403, {"headers": (HOST, (b"origin", b"null"))}),
        (403, {"headers": (HOST, (b"origin", b"http://[bad"))}),
        (200, {"headers": (HOST, (b"origin", b"http://127.0.0.1:7070"))}),
    ],
)
def test_heads(status: int, changes: dict[str, object]) -> None:
    assert status_of(**changes) == status  # type: ignore[arg-type]  # each is a keyword of status_of


@pytest.mark.parametrize(
    ("value", "token"),
    [(b"Bearer abc", "abc"), (b"bearer  abc ", "abc"), (b"Basic abc", ""), (b"abc", ""), (b"", "")],
)
def test_only_a_bearer_token_is_one(value: bytes, token: str) -> None:
    assert check_head("GET", b"/", b"", [HOST, (b"authorization", value)]).token == token


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("localhost:7070", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("user@localhost", True),
        ("localhost.evil.example:7070", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_a_foreign_host_is_told_from_our_own(host: str, expected: bool) -> None:
    assert is_local(host) is expected


@pytest.mark.parametrize(
    ("media_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=UTF-8", True),
        ('application/json;charset="utf-8"', True),
        ("application/json; charset=latin-1", False),
        ("text/plain", False),
        ("application/x-www-form-urlencoded", False),
        ("", False),
    ],
)
def test_json_is_told_from_what_a_foreign_page_may_send(media_type: str, expected: bool) -> None:
    assert is_json(media_type) is expected


@given(some.binary(max_size=60), some.binary(max_size=60), some.lists(some.tuples(some.binary(), some.binary())))
def test_no_head_does_more_than_be_refused(path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    named = tuple((name.lower(), value) for name, value in headers if name.lower() != b"content-length")
    assert status_of("GET", path, query, (HOST, *named)) in (200, 400, 403, 405, 413, 415)
