"""Our parser gives what the client library's gives, wherever the bytes are cut."""

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from streams.link.wire_parser import LARGE, Deliver, WireParser

OURS, THEIRS = 1, 2


class Seen(NamedTuple):
    subject: bytes
    reply: bytes
    payload: bytes
    block: bytes | None


class Client:
    """What a parser calls. Keeps all that it hears, in order."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def sink_of(self, sid: int) -> Deliver | None:
        return (lambda *message: self.heard.append(Seen(*message))) if sid == OURS else None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.heard.append(Seen(subject, reply, data, headers))

    async def _process_ping(self) -> None:
        self.heard.append("ping")

    async def _process_pong(self) -> None:
        self.heard.append("pong")

    async def _process_info(self, info: object) -> None:
        self.heard.append(info)

    async def _process_err(self, message: str) -> None:
        self.heard.append(message)


subjects = st.text("abc.*$_0", min_size=1, max_size=12).map(str.encode)
payloads = st.binary(max_size=40) | st.sampled_from([b"x" * LARGE, b"y" * (LARGE + 1), b"MSG a 1 2\r\n", b"\r\n"])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    sid, payload, reply = draw(st.sampled_from([OURS, OURS, THEIRS])), draw(payloads), draw(st.none() | subjects)
    begin = b" ".join(part for part in (draw(subjects), b"%d" % sid, reply) if part is not None)
    if draw(st.booleans()):
        return b"MSG %b %d\r\n%b\r\n" % (begin, len(payload), payload)
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (begin, len(block), len(block) + len(payload), block, payload)


others = st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b'INFO {"a":1}\r\n', b"-ERR 'no'\r\n", b"PING \r\n"])


def heard_by(parser: Parser, client: Client, chunks: list[bytes]) -> list[object]:
    async def feed() -> None:
        for chunk in chunks:
            await parser.parse(chunk)

    asyncio.run(feed())
    return client.heard


def taken(chunks: list[bytes], reads: list[int]) -> list[object]:
    """Return what is heard when the parser takes each chunk at once, and the library reads what is left to it later:
    after each chunk in pieces of so many bytes as `reads` says, or not yet (0)."""
    client = Client()
    parser, buffer = WireParser(client, client.sink_of), bytearray()

    async def feed() -> None:
        parser.reset(behind=0)
        for chunk, read in zip(chunks, reads, strict=True):
            buffer.extend(parser.take(chunk))
            await parse(read)
        await parse(len(buffer))

    async def parse(size: int) -> None:
        while buffer and size > 0:
            data = bytes(buffer[:size])
            del buffer[:size]
            await parser.parse(data)

    asyncio.run(feed())
    return client.heard


def ours(chunks: list[bytes]) -> list[object]:
    client = Client()
    return heard_by(WireParser(client, client.sink_of), client, chunks)


def theirs(chunks: list[bytes]) -> list[object]:
    client = Client()
    return heard_by(Parser(client), client, chunks)


@given(st.lists(messages() | others, max_size=8), st.data())
def test_wherever_it_is_cut_it_is_what_the_library_hears(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    chunks = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert ours(chunks) == theirs([whole])
    reads = data.draw(st.lists(st.integers(0, len(whole)), min_size=len(chunks), max_size=len(chunks)))
    assert taken(chunks, reads) == theirs([whole])


@given(messages())
def test_a_message_that_comes_byte_by_byte_is_whole(message: bytes) -> None:
    if len(message) < 500:
        assert ours([bytes((byte,)) for byte in message]) == theirs([message])


@pytest.mark.parametrize(
    "line",
    [b"MSG a 1\r\n", b"MSG a 1 -2\r\n", b"MSG a x 2\r\n", b"NOISE\r\n", b"MSG a 1 2 3 4\r\n"],
)
def test_what_is_no_line_of_the_protocol_is_told(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        ours([b"MSG a 1 1\r\nx\r\n", line])


def test_after_a_new_link_nothing_is_left_of_the_old_one() -> None:
    client = Client()
    parser = WireParser(client, client.sink_of)
    asyncio.run(parser.parse(b"MSG a 1 5\r\nhal"))
    parser.reset()
    asyncio.run(parser.parse(b"MSG b 1 1\r\nx\r\n"))
    assert client.heard == [Seen(b"b", b"", b"x", None)]


def test_what_the_library_has_read_before_comes_first() -> None:
    client = Client()
    parser, first = WireParser(client, client.sink_of), b"PING\r\nMSG a 1 1\r\n1\r\n"
    parser.reset(behind=len(first))
    rest = parser.take(b"MSG a 1 1\r\n2\r\n")
    asyncio.run(parser.parse(first))
    asyncio.run(parser.parse(rest))
    assert parser.take(b"MSG a 1 1\r\n3\r\n") == b""
    assert client.heard == ["ping", *(Seen(b"a", b"", b"%d" % each, None) for each in (1, 2, 3))]
