"""Nonces: by which an add is known, whoever repeats it (ADR 29)."""

import secrets

from streams.job_messages import MACHINE_MADE


def fresh_nonce() -> str:
    """Return a nonce for one add, known to nobody else."""
    return MACHINE_MADE + secrets.token_urlsafe(9)
