"""Nonces: an add is known by its nonce, whichever client repeats it (ADR 29). And fresh ids."""

import os
import secrets
from itertools import count

from streams.messages.jobs import MACHINE_MADE

POOL = 256
"""Ids that are drawn in one go, since asking the system for random bytes is most of the cost of one."""
HEX = 24
_prefix = ""
_numbers = count()
_drawn: list[str] = []


def fresh_nonce() -> str:
    """Return a nonce for one add, known to no other client: 72 random bits of the process, and a number."""
    return f"{_prefix}{next(_numbers):x}"


def fresh_hex() -> str:
    """Return 96 random bits, for the id of a job."""
    if not _drawn:
        text = secrets.token_hex(POOL * HEX // 2)
        _drawn.extend(text[at : at + HEX] for at in range(0, len(text), HEX))
    return _drawn.pop()


def _renew() -> None:
    global _prefix, _numbers
    _prefix, _numbers = MACHINE_MADE + secrets.token_urlsafe(9), count()
    _drawn.clear()


_renew()
os.register_at_fork(after_in_child=_renew)
