"""What a node last saw of the server's streams, and so whether they are as they were after a crash.

A stream's last sequence never goes back while its files are whole. If it is lower than it was seen before, the stream
has lost what was stored since: the machine lost its power before it was written, or an older copy of the files was put
in place. A node remembers the sequences in memory, and in a small file for the next process. That file is outside the
server's folder, so that a restored copy of the folder does not bring its own memory along.

Without a memory nobody can know, and the acknowledgements of the consumers are *in doubt*. A machine that was not
started again since (on Linux its boot id says so) has lost nothing, nor has a server that syncs always.

One of three servers that is cut off from the others is behind, too, and goes on answering for some fifteen seconds (ADR
37). So on three servers what is behind counts if it stays so for longer.
"""

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec

from streams.clock import monotonic_s
from streams.errors import NoStream, StreamError
from streams.link.connection import Connection

log = logging.getLogger(__name__)

LASTS_S = 20.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Seen(msgspec.Struct, frozen=True):
    """A stream at one moment: when it was made, as the server writes it, and its last sequence."""

    created: str
    last_seq: int


class WentBack(NamedTuple):
    """A stream that is behind what was seen of it, or was made anew since: its last sequence was `had`, and is `has`
    now."""

    stream: str
    had: int
    has: int


class _Kept(msgspec.Struct, frozen=True):
    boot: str
    streams: dict[str, Seen]


def boot_id() -> str:
    """Return the id of this start of the machine, empty if the system has none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def compared(before: Mapping[str, Seen], now: Mapping[str, Seen]) -> list[WentBack]:
    """Return the streams that are behind what was seen of them. Streams that are missing now are left out."""
    return [
        WentBack(name, had.last_seq, now[name].last_seq)
        for name, had in before.items()
        if name in now and (now[name].last_seq < had.last_seq or now[name].created != had.created)
    ]


class StoreMemory:
    """One node's memory of some streams. `file` None: memory in this process alone. `survives_power`: acknowledged
    messages are synced."""

    def __init__(
        self,
        connection: Connection,
        streams: Sequence[str],
        *,
        file: Path | None = None,
        survives_power: bool = False,
        boot: str = "",
    ) -> None:
        self._connection = connection
        self._names = tuple(streams)
        self._file = file
        self._survives_power = survives_power
        self._boot = boot
        self._seen: dict[str, Seen] | None = None
        self._in_doubt: set[str] = set()
        self._doubted = anyio.Event()
        self._behind_s = math.inf
        self._is_told = False
        self.is_fresh = False
        """Whether the streams were looked at since the last reconnect."""

    def is_in_doubt(self, stream: str) -> bool:
        """True if the acknowledgements of this stream's consumers may be ahead of its messages."""
        return stream in self._in_doubt

    def has_settled(self, stream: str) -> None:
        """Record that its messages were delivered again: the stream is no longer in doubt."""
        self._in_doubt.discard(stream)

    async def doubted(self) -> None:
        """Wait until a stream is in doubt that was not before."""
        await self._doubted.wait()

    def reconnected(self) -> None:
        """Record a reconnect: the server may have been started again."""
        self.is_fresh = False

    async def look(self) -> list[WentBack]:
        """Look at the streams, remember them, and return those that went back. Raises Disconnected, OutcomeUnknown."""
        now = await self._ask()
        if self._seen is None:
            kept = await anyio.to_thread.run_sync(self._read)
            before = kept.streams if kept else {}
            is_same_boot = kept is not None and self._boot != "" and kept.boot == self._boot
            is_sure = self._survives_power or is_same_boot
        else:
            before, is_sure = self._seen, True
        behind = compared(before, now)
        if not self._counts(behind):
            self.is_fresh = False
            return []
        if behind or not is_sure:
            self._in_doubt = set(self._names)
            self._doubted.set()
            self._doubted = anyio.Event()
        self.is_fresh = True
        if now != self._seen:
            self._seen = now
            await anyio.to_thread.run_sync(self._write, _Kept(self._boot, now))
        return behind

    def _counts(self, behind: Sequence[WentBack]) -> bool:
        """Return whether what is behind has been so for long enough. So has nothing."""
        if not behind or not self._connection.is_clustered:
            self._behind_s = math.inf
            return True
        now_s = monotonic_s()
        self._behind_s = min(self._behind_s, now_s)
        return now_s - self._behind_s >= LASTS_S

    async def _ask(self) -> dict[str, Seen]:
        """Return the streams that are there."""
        now: dict[str, Seen] = {}
        answers = await self._connection.api_each([f"STREAM.INFO.{name}" for name in self._names])
        for name, answer in zip(self._names, answers, strict=True):
            if not isinstance(answer, StreamError):
                now[name] = Seen(answer["created"], answer["state"]["last_seq"])
            elif not isinstance(answer, NoStream) or answer.code == 503:
                raise answer
        return now

    def _read(self) -> _Kept | None:
        if self._file is None:
            return None
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return None  # without a memory nothing is sure

    def _write(self, kept: _Kept) -> None:
        if self._file is None:
            return
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._file.with_name(f"{self._file.name}.{os.getpid()}")
            draft.write_bytes(msgspec.json.encode(kept))
            draft.replace(self._file)
        except OSError as error:  # no room or no right
            if not self._is_told:
                means = "the next process cannot know whether the server's data went back; set PENSTOCK_STATE"
                facts = {"file": str(self._file), "error": error.strerror, "means": means}
                log.warning("store.not_remembered", extra={"fields": facts})
            self._is_told = True
