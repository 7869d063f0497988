"""Files in the server's own object store (ADR-20 of NATS), so that `nats object` puts, gets and lists the same ones.

A file is chunks on a subject of its own, and then one message with its name, size and digest. That message comes last,
so a file is complete or not there. A second file under the name replaces it at that moment, and the first one's chunks
are deleted afterwards. A client that reads the first one meanwhile gets the error that it is damaged, and reads again.

The subject of the chunks of a file `owner/rest` names the owner and the file, so that all files of an owner are found
without a look at any other. A file without chunks, or one that another program put, is not found so.

Memory: a few chunks in either direction, whatever the size of the file.
"""

import base64
import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import suppress
from datetime import UTC, datetime

import anyio
import msgspec

from streams.errors import StoreFailed, StreamError
from streams.link.connection import Connection
from streams.link.write_errors import write_error
from streams.publish.publisher import Outgoing, Publisher, Receipt
from streams.reads.direct_get import get_batch
from streams.reads.log import entry_of, last_entry, next_entry, purge_subject, read_log, subjects_of
from streams.subjects import TOKEN

CHUNK = 128 * 1024
"""The object store's usual size, far below the server's limit of a message."""
AT_ONCE = 8
SILENT_S = 2.5
"""Seconds without a confirmation after which a file's sender asks whether the stream has failed."""
CLEAN_UP_S = 5.0
GONE_S = 3_600
"""Seconds for which the record of a deleted file stays: longer than any client reads one list."""
_DIGEST = "SHA-256="


class DamagedFile(StreamError):
    """The bytes are not those of the file's record: the file was replaced during the read, or chunks are missing."""


class FileTooLarge(StreamError):
    """The data is longer than the caller allows. Nothing of it stays."""


class _Options(msgspec.Struct, frozen=True):
    max_chunk_size: int = CHUNK


class FileInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file's record, in the object store's own form. `size` is in bytes, `mtime` a moment as RFC 3339 text."""

    name: str
    bucket: str = ""
    nuid: str = ""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    mtime: str = ""
    description: str = ""
    deleted: bool = False
    options: _Options = _Options()


def files_stream(bucket: str) -> str:
    """Return the name of the stream behind an object store, as the `nats object` command expects it."""
    return f"OBJ_{bucket}"


class Files:
    """One object store. Names are any text of 1 to 255 characters."""

    def __init__(self, connection: Connection, publisher: Publisher, bucket: str) -> None:
        self._connection = connection
        self._publisher = publisher
        self._bucket = bucket
        self._stream = files_stream(bucket)

    async def put(
        self, name: str, data: AsyncIterable[bytes], *, most_bytes: int | None = None, description: str = ""
    ) -> FileInfo:
        """Store a file, in the place of one of the same name, and return its record. Raises FileTooLarge beyond
        `most_bytes`, StoreFull, StoreFailed, OutcomeUnknown, Disconnected. Then nothing of it stays, or
        `remove_unfinished` finds it."""
        subject = self._record_subject(name)
        before = await self.info(name)
        nuid = _fresh_nuid(name)
        try:
            size, chunks, digest = await self._put_chunks(nuid, data, most_bytes)
            info = FileInfo(
                name=name,
                bucket=self._bucket,
                nuid=nuid,
                size=size,
                chunks=chunks,
                digest=digest,
                mtime=datetime.now(UTC).isoformat(),
                description=description,
            )
            record = msgspec.json.encode(info)
            await self._publish([Outgoing(subject, record, nuid, {"Nats-Rollup": "sub"})])
        except BaseException:
            with anyio.move_on_after(CLEAN_UP_S, shield=True), suppress(StreamError):  # the first error is the reason
                await purge_subject(self._connection, self._stream, self._chunk_subject(nuid))
            raise
        if before is not None:
            await purge_subject(self._connection, self._stream, self._chunk_subject(before.nuid))
        return info

    async def info(self, name: str) -> FileInfo | None:
        """Return the file's record, None if there is no such file."""
        entry = await last_entry(self._connection, self._stream, self._record_subject(name))
        if entry is None:
            return None
        info = msgspec.json.decode(entry.payload, type=FileInfo)
        return None if info.deleted else info

    async def read(self, info: FileInfo) -> AsyncIterator[bytes]:
        """Yield the file's bytes, a chunk at a time. Raises DamagedFile at its end, if it was not that file."""
        digest, size, seq = hashlib.sha256(), 0, 1
        while size < info.size:
            request = {"seq": seq, "next_by_subj": self._chunk_subject(info.nuid), "batch": AT_ONCE}
            messages, _ = await get_batch(self._connection, self._stream, request, timeout_s=15.0)
            chunks = [entry_of(message) for message in messages]
            if not chunks:  # that replica may be behind
                late = await next_entry(self._connection, self._stream, self._chunk_subject(info.nuid), start_seq=seq)
                if late is None:
                    break
                chunks = [late]
            for chunk in chunks:
                digest.update(chunk.payload)
                size += len(chunk.payload)
                yield chunk.payload
            seq = chunks[-1].seq + 1
        if size != info.size or _shown(digest.digest()).rstrip("=") != info.digest.rstrip("="):
            raise DamagedFile(f"file {info.name!a}: {size} bytes of {info.size} are there, or others; read it again")

    async def delete(self, name: str) -> bool:
        """Remove the file. Return whether there was one."""
        info = await self.info(name)
        if info is None:
            return False
        gone = msgspec.structs.replace(info, deleted=True, size=0, chunks=0, digest="")
        await self._publisher.publish(
            self._record_subject(name),
            msgspec.json.encode(gone),
            message_id=f"{info.nuid}.gone",
            headers={"Nats-Rollup": "sub"},
            ttl_s=GONE_S,
        )
        await purge_subject(self._connection, self._stream, self._chunk_subject(info.nuid))
        return True

    async def ids_of(self, owner: str) -> dict[str, str]:
        """Return the files `owner/…` that have chunks, also unfinished ones: their names by their ids. It costs these
        files, however many there are."""
        chunks = await subjects_of(self._connection, self._stream, self._chunk_subject(f"{owner}.>"))
        return {subject.removeprefix(self._chunk_subject("")): _decoded(subject.split(".")[-2]) for subject in chunks}

    async def delete_ids(self, ids: Iterable[str]) -> None:
        """Remove files by their ids. One that was replaced since has another id, and stays."""
        for nuid in ids:
            info = await self.info(_decoded(nuid.split(".")[-2]))
            if info is None or info.nuid != nuid or not await self.delete(info.name):
                await purge_subject(self._connection, self._stream, self._chunk_subject(nuid))

    async def all(self) -> AsyncIterator[FileInfo]:
        """Yield the records of all files, oldest first."""
        async for entry in read_log(self._connection, self._stream, f"$O.{self._bucket}.M.>"):
            info = msgspec.json.decode(entry.payload, type=FileInfo)
            if not info.deleted:
                yield info

    async def stored_ms(self, name: str) -> int | None:
        """Return when the file was stored, by the server's clock. None if there is no such file."""
        entry = await last_entry(self._connection, self._stream, self._record_subject(name))
        if entry is None or msgspec.json.decode(entry.payload, type=FileInfo).deleted:
            return None
        return entry.stored_ms

    async def remove_unfinished(self, before_ms: int) -> int:
        """Remove the chunks of files whose sender died before the end, if no chunk was added after `before_ms` by the
        server's clock. Return the number of those files. Complete files are left alone."""
        pattern = self._chunk_subject(">")
        subjects = await subjects_of(self._connection, self._stream, pattern)
        whole = {self._chunk_subject(info.nuid) async for info in self.all()}  # after the chunks: it may end meanwhile
        removed = 0
        for subject in subjects:
            if subject not in whole:
                last = await last_entry(self._connection, self._stream, subject)
                if last is not None and last.stored_ms < before_ms:
                    await purge_subject(self._connection, self._stream, subject)
                    removed += 1
        return removed

    async def _put_chunks(self, nuid: str, data: AsyncIterable[bytes], most_bytes: int | None) -> tuple[int, int, str]:
        subject, digest = self._chunk_subject(nuid), hashlib.sha256()
        size = chunks = 0
        waiting: list[Outgoing] = []
        async for chunk in _cut(data):
            size += len(chunk)
            if most_bytes is not None and size > most_bytes:
                raise FileTooLarge(f"longer than {most_bytes} bytes; send less, or in parts")
            digest.update(chunk)
            waiting.append(Outgoing(subject, chunk, f"{nuid}.{chunks}"))
            chunks += 1
            if len(waiting) == AT_ONCE:
                await self._publish(waiting)
                waiting = []
        if waiting:
            await self._publish(waiting)
        return size, chunks, _shown(digest.digest())

    async def _publish(self, messages: list[Outgoing]) -> None:
        """Store messages. Raises StoreFailed soon if the stream has failed: it would leave them unanswered."""
        outcomes: list[Receipt | StreamError] = []
        why = ""

        async def ask() -> None:
            nonlocal why
            while not why:
                await anyio.sleep(SILENT_S)
                why = await write_error(self._connection, self._stream)
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            try:
                outcomes = await self._publisher.try_many(messages)
            except StreamError as error:
                outcomes = [error]
            tasks.cancel_scope.cancel()
        if why:
            raise StoreFailed(f"the server's store has failed: {self._stream}: {why}", subject=messages[0].subject)
        for outcome in outcomes:
            if isinstance(outcome, StreamError):
                raise outcome

    def _record_subject(self, name: str) -> str:
        if not isinstance(name, str) or not 1 <= len(name) <= 255:
            raise ValueError(f"file name {ascii(name)[:80]}: use 1 to 255 characters")
        return f"$O.{self._bucket}.M.{_encoded(name)}"

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._bucket}.C.{nuid}"


def _fresh_nuid(name: str) -> str:
    """Return the id of a file to put. `owner/rest` becomes three tokens: the owner, the name and chance."""
    owner, slash, _ = name.partition("/")
    chance = secrets.token_hex(11)
    return f"{owner}.{_encoded(name)}.{chance}" if slash and TOKEN.fullmatch(owner) else chance


def _encoded(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decoded(token: str) -> str:
    return base64.urlsafe_b64decode(token).decode()


async def _cut(data: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the same bytes in chunks of CHUNK, the last one shorter."""
    held = bytearray()
    async for part in data:
        held += part
        while len(held) >= CHUNK:
            yield bytes(held[:CHUNK])
            del held[:CHUNK]
    if held:
        yield bytes(held)


def _shown(digest: bytes) -> str:
    return _DIGEST + base64.urlsafe_b64encode(digest).decode()
