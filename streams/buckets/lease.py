"""One holder at a time: a key with a time to live, renewed by revision, and a fence that outlives mistakes.

A create makes the key, so one contender wins. The key expires when its holder stops renewing. Each renewal raises the
key's revision, so the revision is no fence. The **token** is: the revision of the write that acquired the lease.
Renewals keep it, and each new holder has a higher one. Put it into what the holder writes, and refuse lower ones.

A holder knows by its own monotonic clock when it may no longer act. If the last successful renewal began at t, the
server keeps the key until at least t + ttl, and `is_held` ends a margin earlier. That is true while the process hangs
or is stopped, but not while the whole machine sleeps, since that clock sleeps too. The fence covers this case.

Times to live are whole seconds, at least 1 (the server's grain). The server frees an expired key up to 0.3 s late.
"""

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Never

import anyio
import msgspec

from streams.buckets.bucket import Bucket
from streams.clock import monotonic_s, now_ms, until_turn_s
from streams.errors import Disconnected, LeaseLost, OutcomeUnknown, Refused, RevisionConflict, StreamError

log = logging.getLogger(__name__)

RENEW_S = 1.0
"""Seconds of one try of a renewal. Shorter if less of the lease is left."""
RELEASE_S = 2.0
MARKER_TTL_S = 1
LOOKS = 3
"""How often one renewal reads the current revision again. A replica may answer a moment late."""
TURN_S = 0.5
"""Leases that last long enough are renewed, and those of others are looked at, at turns that are multiples of this."""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The value under the key. `mark` tells one acquisition from every other, also of the same holder."""

    holder: str
    mark: str
    since_ms: int


class Lease:
    """A lease that was acquired. `token` is the fence. `ttl_s` may be set: it counts from the next renewal on. For one
    task."""

    def __init__(
        self, bucket: Bucket[bytes], key: str, record: LeaseRecord, *, revision: int, ttl_s: int, begun_s: float
    ) -> None:
        self.key = key
        self.holder = record.holder
        self.token = revision
        self.ttl_s = ttl_s
        self._bucket = bucket
        self._record = record
        self._revision = revision
        self._until_s = begun_s + ttl_s - self._margin_s

    @property
    def _margin_s(self) -> float:
        return max(0.2, self.ttl_s / 10)

    @property
    def left_s(self) -> float:
        """Seconds for which the lease is certainly held without another renewal. 0 when it is over."""
        return max(0.0, self._until_s - monotonic_s())

    def is_held(self) -> bool:
        """Return whether no other node can hold it now, by our own clock. Call it right before acting."""
        return self.left_s > 0

    async def renew(self) -> None:
        """Hold it for another `ttl_s`. Raises LeaseLost when it is over. Raises OutcomeUnknown or Disconnected when the
        outcome is not known: then `is_held` is still right, and another try may succeed."""
        for _ in range(LOOKS):
            begun_s = monotonic_s()
            if not self.is_held():
                raise LeaseLost(f"lease {self.key}: {self.holder} did not renew it in time")
            try:
                self._revision = await self._bucket.compare_and_set(
                    self.key,
                    msgspec.json.encode(self._record),
                    self._revision,
                    ttl_s=self.ttl_s,
                    timeout_s=min(RENEW_S, self.left_s),
                )
            except RevisionConflict:
                await self._adopt_own()
            else:
                self._until_s = begun_s + self.ttl_s - self._margin_s
                return
        raise OutcomeUnknown("the revision moves under the renewal", subject=self.key)

    async def release(self) -> None:
        """Give it up at once, so that another node can take it without waiting. Raises nothing of ours. If it cannot be
        done, the time to live ends it."""
        self._until_s = 0.0
        try:
            await self._bucket.delete(self.key, revision=self._revision, ttl_s=MARKER_TTL_S, timeout_s=RELEASE_S)
        except StreamError as error:
            log.debug("lease.not_released", extra={"fields": {"key": self.key, "reason": str(error)}})

    async def _adopt_own(self) -> None:
        """Take over the revision of an own renewal of unknown outcome. Raises LeaseLost if the value there is not
        ours."""
        entry = await self._bucket.get(self.key, timeout_s=min(RENEW_S, max(self.left_s, 0.05)))
        record = read_record(entry.raw) if entry else None
        if entry is None or record is None or record.mark != self._record.mark:
            self._until_s = 0.0
            now = f"held by {record.holder}" if record else "free" if entry is None else "something that is no lease"
            raise LeaseLost(f"lease {self.key}: {self.holder} lost it; it is {now}")
        self._revision = entry.revision


async def acquire(bucket: Bucket[bytes], key: str, holder: str, *, ttl_s: int) -> Lease | None:
    """Return the lease if no other node holds it, else None. Raises Disconnected, OutcomeUnknown, Refused.

    After OutcomeUnknown the key may be ours without our knowledge. It expires after `ttl_s`.
    """
    if ttl_s < 1:
        raise ValueError(f"lease {key}: ttl_s {ttl_s!r}: whole seconds, at least 1; the server knows no shorter ones")
    record = LeaseRecord(holder=holder, mark=secrets.token_hex(8), since_ms=now_ms())
    begun_s = monotonic_s()
    try:
        revision = await bucket.create(key, msgspec.json.encode(record), ttl_s=ttl_s, timeout_s=ttl_s / 2)
    except RevisionConflict:
        return None
    return Lease(bucket, key, record, revision=revision, ttl_s=ttl_s, begun_s=begun_s)


async def lead(
    bucket: Bucket[bytes], key: str, holder: str, *, ttl_s: int, body: Callable[[Lease], Awaitable[None]]
) -> Never:
    """Campaign for ever. Run `body` whenever elected. A lost lease cancels it.

    A dead leader is followed within `ttl_s` + 0.3 s + `ttl_s` / 3, one that leaves within `ttl_s` / 3. When `body`
    returns, the lease is released and the campaign goes on. An error of `body` is raised (in an exception group).
    """
    is_taken = False
    while True:
        lease = await _try_to_acquire(bucket, key, holder, ttl_s, is_taken=is_taken)
        if lease is not None:
            await hold(lease, body)
        is_taken = lease is None
        await anyio.sleep(until_turn_s(turn_s(ttl_s)))


async def _try_to_acquire(bucket: Bucket[bytes], key: str, holder: str, ttl_s: int, *, is_taken: bool) -> Lease | None:
    """Acquire the lease. `is_taken`: another one had it a moment ago, so look first, which costs half as much."""
    try:
        if is_taken and await bucket.get(key, timeout_s=ttl_s / 2) is not None:
            return None
        return await acquire(bucket, key, holder, ttl_s=ttl_s)
    except (Disconnected, OutcomeUnknown, Refused) as error:
        log.debug("lease.no_campaign", extra={"fields": {"key": key, "reason": str(error)}})
        return None


async def hold(lease: Lease, body: Callable[[Lease], Awaitable[None]]) -> None:
    """Run `body` while the lease is renewed. A lost lease cancels it, and the end releases the lease. An error of
    `body` is raised (in an exception group)."""
    log.info("lease.acquired", extra={"fields": {"key": lease.key, "token": lease.token}})
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_renew_until_lost, lease, tasks.cancel_scope)
            await body(lease)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(RELEASE_S, shield=True):
            await lease.release()


def turn_s(ttl_s: int) -> float:
    """Return how often a lease is renewed: in a third of its time, at the turns of other leases if it lasts so long."""
    third_s = ttl_s / 3
    return third_s - third_s % TURN_S if third_s > TURN_S else third_s


async def _renew_until_lost(lease: Lease, scope: anyio.CancelScope) -> None:
    pause_s = until_turn_s(turn_s(lease.ttl_s))
    while lease.is_held():
        await anyio.sleep(min(pause_s, lease.left_s))
        try:
            with anyio.move_on_after(lease.left_s):  # a server that does not answer must not keep us past the end
                await lease.renew()
                pause_s = until_turn_s(turn_s(lease.ttl_s))
        except LeaseLost:
            break
        except (Disconnected, OutcomeUnknown, Refused) as error:
            pause_s = lease.ttl_s / 10
            log.info("lease.not_renewed", extra={"fields": {"key": lease.key, "reason": str(error)}})
    log.warning("lease.lost", extra={"fields": {"key": lease.key, "token": lease.token}})
    scope.cancel()


def read_record(raw: bytes) -> LeaseRecord | None:
    """Return the holder of a lease, from the bytes under its key. None: the bytes are no such record."""
    try:
        return msgspec.json.decode(raw, type=LeaseRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
