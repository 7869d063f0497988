"""The protocol's text: subjects and headers checked, frames built, headers and statuses read. Pure.

This module refuses what the server or the client would handle badly. For a control line above 4,096 bytes, or headers
and payload above `max_payload`, the server closes the link and the client gives up for good. The server stores `*` and
`>` literally. The client turns line ends inside a header into blanks, and drops a header whose name is no token. Each
was tried on nats-server 2.15.1 with nats-py 2.16.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from streams.errors import MalformedHeader, MalformedSubject, TooLarge
from streams.subjects import MAX_SUBJECT

MAX_SERVER_SUBJECT = 1024
"""Characters in a subject that starts with `$`: a user's subject or key behind the server's own prefix."""
MAX_HEADERS = 4096
"""Bytes of all headers of a message. The server's own limit is 64 KiB."""

_LITERAL = re.compile(r"(?!(?:[*>](?:\.|\Z)))[!-\-/-~]+(?:\.(?![*>](?:\.|\Z))[!-\-/-~]+)*")
_PATTERN = re.compile(r"[!-\-/-~]+(?:\.[!-\-/-~]+)*")
_NAME = re.compile(r"[!-9;-~]+")
_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?|")
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def check_subject(subject: str) -> str:
    """Return `subject` if it can be published to. Raises MalformedSubject with the reason."""
    if _LITERAL.fullmatch(subject) and len(subject) <= _longest(subject):
        return subject
    raise MalformedSubject(f"subject {_shown(subject)}: {_fault(subject)}")


def check_pattern(pattern: str) -> str:
    """Return `pattern` if it can be subscribed to: a subject whose tokens may be `*`, and the last one `>`."""
    if _PATTERN.fullmatch(pattern) and len(pattern) <= _longest(pattern) and ">" not in pattern.split(".")[:-1]:
        return pattern
    raise MalformedSubject(f"pattern {_shown(pattern)}: {_fault(pattern)}")


def check_header(name: str, value: str) -> None:
    """Raise MalformedHeader for a header that would not arrive as it was sent."""
    if not _NAME.fullmatch(name):
        raise MalformedHeader(f"header name {_shown(name)}: use printable ASCII without blanks and colons")
    if not _VALUE.fullmatch(value):
        raise MalformedHeader(f"header {name}: {_shown(value)}: use printable ASCII without blanks at the ends")


def header_block(*parts: Mapping[str, str]) -> bytes:
    """Return the headers as they travel. Raises MalformedHeader if one is invalid or doubled, or if all exceed 4
    KiB."""
    pairs = [pair for part in parts for pair in part.items()]
    if not pairs:
        return b""
    for name, value in pairs:
        check_header(name, value)
    names = [name.lower() for name, _ in pairs]
    if len(set(names)) < len(names):
        raise MalformedHeader(f"headers {_shown(', '.join(names))}: the same name twice")
    return _block("".join(f"{name}: {value}\r\n" for name, value in pairs))


def message_id_block(message_id: str) -> bytes:
    """Return the header block of a message that carries just its id: the hot path."""
    if not message_id or not _VALUE.fullmatch(message_id):
        raise MalformedHeader(f"message id {_shown(message_id)}: use printable ASCII without blanks at the ends")
    return _block(f"Nats-Msg-Id: {message_id}\r\n")


def check_size(subject: str, block: bytes, payload: bytes, max_payload: int) -> None:
    """Raise TooLarge if the server would close the link because of the size. Headers count too."""
    size = len(block) + len(payload)
    if size > max_payload:
        raise TooLarge(f"{size} bytes with headers, the server takes at most {max_payload}", subject=subject)


def publish_frame(subject: str, reply: str, block: bytes, payload: bytes) -> bytes:
    """Return the bytes that publish a message. Subject, reply and headers have been checked."""
    if block:
        head = f"HPUB {subject} {reply} {len(block)} {len(block) + len(payload)}\r\n".encode()
        return b"%b%b%b\r\n" % (head, block, payload)
    return b"%b%b\r\n" % (f"PUB {subject} {reply} {len(payload)}\r\n".encode(), payload)


class Message:
    """One message as it came. Headers are read on first use."""

    __slots__ = ("_block", "_headers", "payload", "reply", "subject")

    def __init__(self, subject: bytes, reply: bytes, payload: bytes, block: bytes | None) -> None:
        self.subject = subject.decode("utf-8", "replace")  # the server passes on any bytes
        self.reply = reply.decode("utf-8", "replace")
        self.payload = payload
        self._block = block
        self._headers: Mapping[str, str] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        if self._headers is None:
            self._headers = parse_headers(self._block)
        return self._headers

    @property
    def status(self) -> int:
        """The server's status (100, 204, 404, 408, 409, 503…), 0 for an ordinary message."""
        return status_of(self._block)[0]

    @property
    def status_text(self) -> str:
        return status_of(self._block)[1]


def parse_headers(block: bytes | None) -> Mapping[str, str]:
    """Return the headers by name. Bytes that are not UTF-8 become U+FFFD. Of a doubled name the last one stays."""
    if not block:
        return _NO_HEADERS
    pairs = (line.partition(b":") for line in block.split(b"\r\n")[1:])
    return {
        name.decode("utf-8", "replace"): value.strip().decode("utf-8", "replace") for name, sep, value in pairs if sep
    }


def header_of(block: bytes, name: bytes) -> bytes:
    """Return one header, empty if there is none, without reading the others. Of a doubled one the last."""
    at = block.rfind(b"\r\n%b:" % name)
    if at < 0:
        return b""
    begin = at + len(name) + 3
    return block[begin : block.find(b"\r\n", begin)].strip()


def status_of(block: bytes | None) -> tuple[int, str]:
    """Return the status and its text from the first line, (0, "") if there is none."""
    if not block or block[8:9] != b" ":
        return 0, ""
    code, _, text = block[9 : block.find(b"\r\n")].decode("utf-8", "replace").partition(" ")
    return (int(code), text) if code.isdigit() else (0, text)


def _block(lines: str) -> bytes:
    if len(lines) > MAX_HEADERS:
        raise MalformedHeader(f"headers: {len(lines)} bytes, at most {MAX_HEADERS}; put it into the payload")
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def _longest(subject: str) -> int:
    return MAX_SERVER_SUBJECT if subject.startswith("$") else MAX_SUBJECT


def _fault(subject: str) -> str:
    if not subject:
        return "empty"
    if len(subject) > _longest(subject):
        return f"{len(subject)} characters, at most {_longest(subject)}"
    if not (subject.isascii() and subject.isprintable()) or " " in subject:
        return "use printable ASCII without blanks"
    if "" in subject.split("."):
        return "a token between dots is empty"
    return "`*` and `>` are for subscribing, not tokens of a message"


def _shown(text: str) -> str:
    escaped = ascii(text)
    return escaped if len(escaped) <= 80 else f"{escaped[:80]}…"
