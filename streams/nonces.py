"""Nonces: an add is known by its nonce, whichever client repeats it (ADR 29)."""

import os
import secrets
from itertools import count

from streams.job_messages import MACHINE_MADE

_prefix = ""
_numbers = count()


def fresh_nonce() -> str:
    """Return a nonce for one add, known to no other client: 72 random bits of the process, and a number."""
    return f"{_prefix}{next(_numbers):x}"


def _renew() -> None:
    global _prefix, _numbers
    _prefix, _numbers = MACHINE_MADE + secrets.token_urlsafe(9), count()


_renew()
os.register_at_fork(after_in_child=_renew)
