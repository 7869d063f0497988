"""The credentials that a login brought, kept for all nodes: one renewal for the whole cluster.

A grant is one record a source, `login.<platform>.<source>` in DIGESTS. It is sealed with a key that follows from the
account's own values, so only a process that can resolve the account's references reads it. A changed account makes
the old grant unreadable, as it should: the account's new values count.

A node claims the record before it renews. The others wait until the record changes. A claim that does not change for
longer than a login may take belongs to a node that has died, and the next one takes it over.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from hashlib import blake2b, scrypt
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from actors.fetch.sources import SourceKey
from actors.runtime.logs import fields
from platforms.adapter import Account
from streams.buckets.bucket import Bucket
from streams.errors import RevisionConflict

log = logging.getLogger(__name__)

LOOK_S = 0.2
"""Between two looks at a record that another node has claimed."""
SPARE_S = 5.0
"""Beside the time of one login, before a claim counts as left behind."""

Values = Mapping[str, str]
Ask = Callable[[bool, Values], Awaitable[Values]]
"""Logs in with stored values. It also gets whether a claim was left behind: what that login brought is lost."""


class SealedGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record: sealed credentials, and whether a node is renewing them now."""

    sealed: bytes = b""
    is_claimed: bool = False


class _Found(NamedTuple):
    revision: int
    record: SealedGrant
    values: Values | None


class Grants:
    """The stored credentials of all sources."""

    def __init__(self, bucket: Bucket[bytes]) -> None:
        self._bucket = bucket

    async def renewed(
        self,
        source: SourceKey,
        account: Account,
        is_other: Callable[[Values], bool],
        ask: Ask,
        *,
        timeout_s: float,
    ) -> Values:
        """Return credentials for an account: stored ones if they are other ones than those that were refused
        (`is_other`), else what `ask` brings with the stored ones. Raises as `ask` does, and StreamError."""
        found, waited_s = await self._read(source, account), 0.0
        while True:
            if found.values is not None and is_other(found.values):
                return found.values
            if not found.record.is_claimed or waited_s > timeout_s + SPARE_S:
                claimed = await self._claim(source, found)
                if claimed is not None:
                    return await self._ask(source, account, claimed, partial(ask, found.record.is_claimed))
            await anyio.sleep(LOOK_S)
            last, found = found, await self._read(source, account)
            waited_s = waited_s + LOOK_S if found.revision == last.revision else 0.0

    async def _ask(
        self, source: SourceKey, account: Account, claimed: _Found, ask: Callable[[Values], Awaitable[Values]]
    ) -> Values:
        """Ask, and store the answer. A refresh key may be void once it is sent: whatever ends this attempt, the answer
        is awaited, and kept. `ask` has a limit of its own."""
        try:
            with anyio.CancelScope(shield=True):
                values = {**(claimed.values or {}), **await ask(claimed.values or {})}
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(SPARE_S):
                await self._store(source, claimed, SealedGrant(claimed.record.sealed))
            raise
        with anyio.CancelScope(shield=True):
            await self._store(source, claimed, SealedGrant(await anyio.to_thread.run_sync(_seal, account, values)))
        return values

    async def _read(self, source: SourceKey, account: Account) -> _Found:
        entry = await self._bucket.get(_key(source))
        if entry is None:
            return _Found(0, SealedGrant(), None)
        try:
            record = msgspec.json.decode(entry.value, type=SealedGrant)
        except msgspec.DecodeError:
            record = SealedGrant()
        values = await anyio.to_thread.run_sync(_open, account, record.sealed)
        return _Found(entry.revision, record, values)

    async def _claim(self, source: SourceKey, found: _Found) -> _Found | None:
        """Claim the record. None: another node was first."""
        record = msgspec.structs.replace(found.record, is_claimed=True)
        try:
            revision = await self._bucket.compare_and_set(_key(source), msgspec.json.encode(record), found.revision)
        except RevisionConflict:
            return None
        return _Found(revision, record, found.values)

    async def _store(self, source: SourceKey, claimed: _Found, record: SealedGrant) -> None:
        try:
            await self._bucket.compare_and_set(_key(source), msgspec.json.encode(record), claimed.revision)
        except RevisionConflict:  # our claim looked left behind, and another node has renewed too
            log.warning("login.overtaken", extra=fields(source=str(source)))


def _key(source: SourceKey) -> str:
    return f"login.{source.key}"


def _seal(account: Account, values: Values) -> bytes:
    return bytes(SecretBox(_secret(_text(account))).encrypt(msgspec.json.encode(values)))


def _open(account: Account, sealed: bytes) -> Values | None:
    """Return the credentials, None for those of another account."""
    if not sealed:
        return None
    try:
        opened = SecretBox(_secret(_text(account))).decrypt(sealed)
        return msgspec.json.decode(opened, type=dict[str, str])
    except (CryptoError, ValueError, msgspec.DecodeError):
        return None


def _text(account: Account) -> bytes:
    return blake2b(msgspec.json.encode(sorted(account.values.items()))).digest()


@lru_cache(maxsize=256)
def _secret(text: bytes) -> bytes:
    """Return the key. It is slow on purpose, since an account's password may be short: a thread makes it."""
    return scrypt(text, salt=b"penstock login", n=1 << 14, r=8, p=1, dklen=SecretBox.KEY_SIZE)
