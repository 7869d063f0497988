"""Makes a single server forget which messages it has removed, as nats-server 2.15.1 now and then does by itself.

A removal is a record of its own in the block that is written at that moment, a tombstone. Every `sync_interval` the
server rewrites blocks that are mostly empty, and drops from them tombstones that it believes to be of no use. It is
wrong about those of the first messages of another block: killed after that, it reads that block again, and the
messages are there. It also writes none for the last message of a block. `forget_removals` drops every tombstone, while
the server is down: the same, and each time.
"""

from pathlib import Path

from streams.embedded.server import EmbeddedServer

_TOMBSTONE, _HAS_HEADERS = 1 << 62, 1 << 31
_STATES = ("index.db", "sched.db", "thw.db")
"""What the server writes every two minutes, and reads at a start instead of the blocks if nothing came after it."""


def forget_removals(server: EmbeddedServer, stream: str) -> int:
    """Drop all tombstones of a stream whose server is killed; return how many they were."""
    (folder,) = server.store.glob(f"**/streams/{stream}/msgs")
    for name in _STATES:
        (folder / name).unlink(missing_ok=True)
    return sum(_without_tombstones(block) for block in sorted(folder.glob("*.blk")))


def _without_tombstones(block: Path) -> int:
    """A record: its length (4 bytes, the highest bit says that there are headers), its sequence (8 bytes, with a bit
    for tombstones), its time and the rest."""
    data, kept, dropped, at = block.read_bytes(), bytearray(), 0, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little") & ~_HAS_HEADERS
        if int.from_bytes(data[at + 4 : at + 12], "little") & _TOMBSTONE:
            dropped += 1
        else:
            kept += data[at : at + length]
        at += length
    block.write_bytes(kept)
    return dropped
