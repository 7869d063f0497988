"""Disks of a test's own: a file system in a file, whose power can be cut, and a small one in memory that gets full."""

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SHUTDOWN, _WITHOUT_THE_LOG = 0x8004587D, 2
"""FS_IOC_SHUTDOWN of ext4, and its way that writes nothing more, not even the journal: what was not synced is lost."""
_CHUNK = bytes(64 * 1024)


class PowerDisk:
    """An ext4 file system of its own, on a loop device."""

    def __init__(self, image: Path, path: Path) -> None:
        self.path = path
        self._image = image

    def cut(self) -> None:
        """Lose power: from now on every read and write fails, and what was not synced is gone."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _WITHOUT_THE_LOG))
        finally:
            os.close(folder)

    def back(self) -> None:
        """Have power again. Whoever had files open must have ended."""
        self.unmount()
        subprocess.run(["mount", "-o", "loop", str(self._image), str(self.path)], check=True)

    def sync(self) -> None:
        """Write out all that is in the page cache, as a server does every two minutes."""
        subprocess.run(["sync", "-f", str(self.path)], check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.path)], check=True)


@contextmanager
def power_disk(folder: Path, *, size_mb: int = 512) -> Iterator[PowerDisk]:
    """Make and mount one in `folder`; skip the test where that cannot be had."""
    image, path = folder / "disk.img", folder / "disk"
    path.mkdir(parents=True)
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
        pytest.skip("a power cut needs root and mkfs.ext4")
    with image.open("wb") as file:
        file.truncate(size_mb * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(path)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a power cut needs loop devices: {mounted.stderr.decode(errors='replace').strip()}")
    disk = PowerDisk(image, path)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a disk in memory of this size, as `64m`; skip the test where that cannot be had."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "penstock-tests", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all the room that is left; return the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(_CHUNK):
                pass
        except OSError:
            return ballast
    raise AssertionError("the disk has no end")
