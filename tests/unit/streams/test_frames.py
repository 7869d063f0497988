"""Subjects, headers and frames: what is let through arrives as it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.errors import MalformedHeader, MalformedSubject, TooLarge
from streams.link.frames import (
    Message,
    check_pattern,
    check_size,
    check_subject,
    header_block,
    header_of,
    message_id_block,
    parse_headers,
    publish_frame,
    status_of,
)

printable = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
values = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40).map(str.strip)
names = printable.filter(lambda name: ":" not in name)


@given(
    st.lists(
        printable.map(lambda text: text.replace(".", "-").replace("*", "-").replace(">", "-")), min_size=1, max_size=9
    )
)
def test_a_sound_subject_passes_as_it_is(tokens: list[str]) -> None:
    assert check_subject(".".join(tokens)) == check_pattern(".".join(tokens)) == ".".join(tokens)


@given(st.text(max_size=60))
def test_what_passes_cannot_break_a_control_line(text: str) -> None:
    for check in (check_subject, check_pattern):
        try:
            passed = check(text)
        except MalformedSubject:
            continue
        assert passed.isascii()
        assert passed.isprintable()
        assert " " not in passed
        assert "" not in passed.split(".")
        assert check is check_pattern or not {"*", ">"} & set(passed.split("."))


@pytest.mark.parametrize("subject", ["a*b", "a.b>", ">a.b", "a/b", "$JS.API.INFO", "a" * 512, "$KV.B." + "k" * 519])
def test_odd_subjects_that_the_server_takes_literally_and_harmlessly(subject: str) -> None:
    assert check_subject(subject) == subject


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("", "empty"),
        ("a" * 513, "513 characters, at most 512"),
        ("$" + "a" * 1024, "1025 characters, at most 1024"),
        ("a b", "without blanks"),
        ("a\n", "without blanks"),
        ("a..b", "a token between dots is empty"),
        ("a.*", "are for subscribing"),
        (">", "are for subscribing"),
    ],
)
def test_a_refusal_says_what_is_wrong(subject: str, fault: str) -> None:
    with pytest.raises(MalformedSubject, match=fault) as refused:
        check_subject(subject)
    assert len(str(refused.value)) < 200
    assert isinstance(refused.value, ValueError)


def test_wildcards_are_for_patterns_where_they_mean_something() -> None:
    assert check_pattern("a.*.c.>") == "a.*.c.>"
    assert check_pattern(">") == ">"
    with pytest.raises(MalformedSubject):
        check_pattern("a.>.b")


@given(st.dictionaries(names, values, max_size=5))
def test_headers_arrive_as_they_were_sent(headers: dict[str, str]) -> None:
    if len({name.lower() for name in headers}) < len(headers):
        with pytest.raises(MalformedHeader):
            header_block(headers)
        return
    block = header_block(headers)
    assert parse_headers(block) == headers
    for name, value in headers.items():
        assert header_of(block, name.encode()) == value.strip().encode()
    assert header_of(block, b"Nats-Absent") == b""
    assert status_of(block) == (0, "")


@given(values.filter(bool))
def test_the_short_way_for_an_id_is_the_long_one(message_id: str) -> None:
    assert message_id_block(message_id) == header_block({"Nats-Msg-Id": message_id})


@pytest.mark.parametrize("message_id", ["", " a", "a ", "a\r", "ü", "a\0", "a" * 5000])
def test_an_id_that_would_not_arrive_is_refused(message_id: str) -> None:
    with pytest.raises(MalformedHeader):
        message_id_block(message_id)


def test_headers_and_payload_count_together() -> None:
    block = header_block({"A": "b"})
    check_size("s", block, bytes(100 - len(block)), 100)
    with pytest.raises(TooLarge, match="101 bytes with headers, the server takes at most 100"):
        check_size("s", block, bytes(101 - len(block)), 100)


def test_frames_are_the_protocols() -> None:
    assert publish_frame("a", "", b"", b"hello") == b"PUB a  5\r\nhello\r\n"
    assert publish_frame("a", "r.1", b"", b"") == b"PUB a r.1 0\r\n\r\n"
    block = header_block({"A": "b"})
    assert block == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert publish_frame("a", "r", block, b"hello") == b"HPUB a r 18 23\r\nNATS/1.0\r\nA: b\r\n\r\nhello\r\n"


@pytest.mark.parametrize(
    ("block", "status", "headers"),
    [
        (None, (0, ""), {}),
        (b"", (0, ""), {}),
        (b"NATS/1.0 503\r\n\r\n", (503, ""), {}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", (404, "No Messages"), {}),
        (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\n\r\n",
            (408, "Request Timeout"),
            {"Nats-Pending-Messages": "7"},
        ),
        (b"NATS/1.0 what\r\nA:b\r\nno header\r\n\r\n", (0, ""), {"A": "b"}),
        (b"NATS/1.0\r\nA: \xff:c \r\n\r\n", (0, ""), {"A": "\ufffd:c"}),
    ],
)
def test_statuses_and_headers_are_read(block: bytes | None, status: tuple[int, str], headers: dict[str, str]) -> None:
    message = Message(b"s", b"r", b"p", block)
    assert (message.status, message.status_text) == status
    assert message.headers == headers
    assert (message.subject, message.reply, message.payload) == ("s", "r", b"p")
