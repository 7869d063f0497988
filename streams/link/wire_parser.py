"""Takes messages off the bytes that a server sends, several times as fast as the client library's parser.

The library's parser tries a pattern for each kind of line and moves all that follows to the front after each message.
Here messages for our own sinks are cut out of a chunk where they stand. The library's parser gets everything else, byte
for byte: other lines, messages for other subscriptions, malformed ones, and those larger than some chunks.
"""

import math
from collections.abc import Callable

from streams.clock import monotonic_s
from streams.link.library import AWAITING_MSG_PAYLOAD, Parser

Deliver = Callable[[bytes, bytes, bytes, bytes | None], None]
"""Called for each message with subject, reply, payload and header block. It is short, and does not raise."""

LARGE = 64 * 1024
"""Bytes. The library puts together a message of this size or more, since it does not start over with each chunk."""
LONGEST_LINE = 4096
_LINE_END = b"\r\n"
_MSG, _HMSG = 5, 6
_WITH_REPLY = {b"MSG": _MSG, b"HMSG": _HMSG}
"""The fields of a message's line that has a reply subject."""


class WireParser(Parser):
    """The parser of one client. `sink_of` returns the receiver of a subscription's messages, None if it is the
    library."""

    def __init__(self, client: object, sink_of: Callable[[int], Deliver | None]) -> None:
        self._sink_of = sink_of
        self.heard_s = -math.inf
        """When the server sent something last, by the monotonic clock."""
        super().__init__(client)

    def reset(self, behind: int = 0) -> None:
        """Begin a new link, of which the library has `behind` bytes to parse already."""
        self._rest = b""
        self._behind = behind
        super().reset()

    def take(self, data: bytes) -> bytes:
        """Deliver at once what the socket brings, and return what is the library's to parse. That takes its time, and
        until then all that follows waits behind it."""
        self.heard_s = monotonic_s()
        if not self._behind and not self.buf and self.state != AWAITING_MSG_PAYLOAD:
            data, self._rest = self._rest + data, b""
            end, size = self._deliver(data)
            data = data[end:]
            if not size:
                self._rest = data
                return b""
        self._behind += len(data)
        return data

    async def parse(self, data: bytes = b"") -> None:
        """Called by the library with each chunk that it reads."""
        self.heard_s = monotonic_s()
        chunk, self._rest = self._rest + data, b""
        while chunk:
            if self.state == AWAITING_MSG_PAYLOAD:
                size = self.needed + len(_LINE_END) - len(self.buf)
            elif self.buf:
                size = len(chunk)
            else:
                end, size = self._deliver(chunk)
                chunk = chunk[end:]
                if not size:
                    self._rest = chunk
                    break
            await super().parse(chunk[:size])
            chunk = chunk[size:]
        self._behind -= len(data)

    def _deliver(self, chunk: bytes) -> tuple[int, int]:
        """Deliver the messages at the chunk's beginning. Return where the rest begins, and how much of the rest is for
        the library: nothing, if more has to come first. It is one piece, since it is the hottest loop there is."""
        at, end = 0, len(chunk)
        while at < end:
            begin = chunk.find(_LINE_END, at, at + LONGEST_LINE) + len(_LINE_END)
            if begin < len(_LINE_END):
                return at, 0 if end - at < LONGEST_LINE else end - at
            line = chunk[at : begin - len(_LINE_END)].split(b" ")
            fields, with_reply = len(line), _WITH_REPLY.get(line[0], 0)
            try:
                if not with_reply - 1 <= fields <= with_reply:
                    return at, begin - at
                sink, size = self._sink_of(int(line[2])), int(line[-1])
                headers = int(line[-2]) if with_reply == _HMSG else 0
            except ValueError:
                return at, begin - at
            middle, stop = begin + headers, begin + size
            after = stop + len(_LINE_END)
            if sink is None or not begin <= middle <= stop or (after > end and size > LARGE):
                return at, begin - at
            if after > end:
                return at, 0
            reply = line[3] if fields == with_reply else b""
            sink(line[1], reply, chunk[middle:stop], chunk[begin:middle] if headers else None)
            at = after
        return at, 0
