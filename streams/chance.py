"""Chance, for the code that carries out decisions. The decisions themselves take it as an argument."""

import secrets


def chance() -> float:
    """Return a number in [0, 1)."""
    return secrets.randbelow(1 << 20) / (1 << 20)
