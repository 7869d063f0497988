"""Finds the fault of a row that can be read here, and not be written, or not be read again by others."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from platforms.adapter import LARGEST, LONGEST_KEY, Row

_DEEP = 300  # brackets: a row with fewer needs no further check
_SPARE_DEPTH = 100  # levels between what we can read and what a reader of a page of orders can
_any_json = msgspec.json.Decoder(Raw)


def oddity(row: Row, most_bytes: int) -> str:
    """Return the fault, "" for none."""
    key, version, modified_ms, body = row
    if not 0 < len(key) <= LONGEST_KEY:
        return f"its key has {len(key)} characters, where 1 to {LONGEST_KEY} are allowed"
    if not 0 <= version <= LARGEST:
        return "its version is no number from 0 to 2**63 - 1"
    if modified_ms is not None and not -LARGEST <= modified_ms <= LARGEST:
        return "its time does not fit into 64 bit"
    if len(body) > most_bytes:
        return f"{len(body)} bytes, where {most_bytes} are allowed"
    if len(body) > _DEEP and body.count(b"[") + body.count(b"{") > _DEEP and _is_deep(body):
        return "it is nested too deeply"
    return ""


def _is_deep(body: bytes) -> bool:
    """Return whether a row could be too deep for others, which read it inside of a page at another depth."""
    try:
        _any_json.decode(b"[" * _SPARE_DEPTH + body + b"]" * _SPARE_DEPTH)
    except (msgspec.DecodeError, RecursionError):
        return True
    return False
