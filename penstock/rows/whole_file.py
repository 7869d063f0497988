"""Writes a file that is complete or not there."""

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

__all__ = ["write_whole"]


async def write_whole(target: Path, parts: AsyncIterator[bytes], *, growing: Path, is_synced: bool = False) -> None:
    """Write the parts into `growing`, which must not be there, and then give it the name `target`. `is_synced`: it is
    on the disk then. Raises OSError, and what `parts` raises. Then `growing` is gone."""
    try:
        async with await anyio.open_file(growing, "xb") as file:
            async for part in parts:
                await file.write(part)
            if is_synced:
                await file.flush()
                await anyio.to_thread.run_sync(os.fsync, file.wrapped.fileno())
        await anyio.to_thread.run_sync(growing.replace, target)
    except BaseException:
        with anyio.CancelScope(shield=True), suppress(OSError):
            # else the parts of many fill a folder that is nearly full
            await anyio.Path(growing).unlink(missing_ok=True)
        raise
