"""Decompresses a body in bounded steps, so that its reader can stop when it becomes too large. A kilobyte may hold a
megabyte, and a megabyte a gigabyte. Pure."""

import zlib
from collections.abc import Iterator

ENCODINGS = "gzip, deflate"
"""The encodings that requests accept."""
STEP = 1 << 16
_GZIP, _ZLIB, _RAW = 31, 15, -15
_METHOD = 8
"""A zlib header names this method. A body that begins otherwise has no header, as some servers send it."""


class BadEncoding(Exception):
    """The body is not compressed as its encoding says, or it is cut off."""


class Inflater:
    """One body, by its Content-Encoding. With encodings other than gzip and deflate it passes the data on unchanged."""

    def __init__(self, encoding: str) -> None:
        kind = encoding.strip().lower()
        self._is_gzip = kind in ("gzip", "x-gzip")
        self._is_plain = not self._is_gzip and kind != "deflate"
        self._inflate: zlib._Decompress | None = None
        self._is_over = False

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed data of a part of the body, at most STEP bytes at a time. Raises BadEncoding."""
        if self._is_plain:
            yield data
            return
        try:
            while data:
                if self._inflate is None:
                    if self._is_over and data[:1] != b"\x1f":
                        return  # what some servers send after a body
                    self._inflate, self._is_over = zlib.decompressobj(wbits=self._wbits(data)), False
                yield self._inflate.decompress(data, STEP)
                data = self._inflate.unconsumed_tail or self._inflate.unused_data
                if self._inflate.eof:
                    self._inflate, self._is_over = None, True
                    if not self._is_gzip:
                        return
        except zlib.error as error:
            raise BadEncoding(str(error)) from None

    def end(self) -> None:
        """The body has ended. Raises BadEncoding if it is incomplete."""
        if self._inflate is not None:
            raise BadEncoding("the compressed body is cut off")

    def _wbits(self, data: bytes) -> int:
        if self._is_gzip:
            return _GZIP
        return _ZLIB if data[0] & 0x0F == _METHOD else _RAW
