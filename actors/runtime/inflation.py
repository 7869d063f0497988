"""Takes a compressed body apart in bounded steps, so that whoever reads it can stop when it has become too much: a
kilobyte may hold a megabyte, and a megabyte a gigabyte. Pure."""

import zlib
from collections.abc import Iterator

ENCODINGS = "gzip, deflate"
"""What we say that we take."""
STEP = 1 << 16
_GZIP, _ZLIB, _RAW = 31, 15, -15
_METHOD = 8
"""A head of zlib's names this method; what begins otherwise has no head, as some servers send it."""


class BadEncoding(Exception):
    """The body is not compressed as it says, or it is cut off."""


class Inflater:
    """One body, by its Content-Encoding; of another one than gzip and deflate it passes on what comes."""

    def __init__(self, encoding: str) -> None:
        kind = encoding.strip().lower()
        self._is_gzip = kind in ("gzip", "x-gzip")
        self._is_plain = not self._is_gzip and kind != "deflate"
        self._inflate: zlib._Decompress | None = None
        self._is_over = False

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Yield what a part of the body says, at most STEP bytes at a time. Raises BadEncoding."""
        if self._is_plain:
            yield data
            return
        try:
            while data:
                if self._inflate is None:
                    if self._is_over and data[:1] != b"\x1f":
                        return  # what some servers send behind a body
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
        """Say that no more comes. Raises BadEncoding if more would have to."""
        if self._inflate is not None:
            raise BadEncoding("the compressed body is cut off")

    def _wbits(self, data: bytes) -> int:
        if self._is_gzip:
            return _GZIP
        return _ZLIB if data[0] & 0x0F == _METHOD else _RAW
