"""What `penstock doctor` says of one thing that it looked at."""

from typing import Literal

from msgspec import Struct

__all__ = ["Check", "Level"]

Level = Literal["ok", "warn", "fail"]


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    do: str = ""
