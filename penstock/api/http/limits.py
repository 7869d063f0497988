"""How much of the gateway one client, one token and all of them may use. Pure: time is an argument.

Every number here bounds memory or the waiting time of other clients. So none is unlimited, and none is a setting: an
installation that needs more runs another node.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from penstock.api.http.problems import refused

LARGEST_BODY = 1 << 20
"""Bytes of a request's body."""
LARGEST_UPLOAD = 200 << 20
"""Bytes of a file. The gateway streams them to the object store."""
UPLOAD_STEP = 64 * 1024
"""Bytes of an upload that must arrive within READ_S."""
UPLOADS, UPLOADS_PER_TOKEN = 32, 8
"""Files that are uploaded or downloaded at a time. Each takes up to a megabyte of memory."""
LOOKS = 4
"""Files that are looked at before they become batches, at a time. Each has a process that reads it."""
LARGEST_HEAD = 16 * 1024
MOST_HEADERS = 100
LONGEST_URL = 4 * 1024
READ_S = 10.0
"""The time for a request's head from its first byte on, and again for its body."""
WRITE_S = 30.0
"""How long a client may take to read READ_STEP bytes of an answer, or the rest of it."""
READ_STEP = 64 * 1024
MOST_UNREAD, MOST_UNREAD_PER_TOKEN = 256 << 20, 64 << 20
"""Bytes of answers that clients have yet to read. Above these a large answer to a GET is refused: nothing was changed,
and it can be had again. Jobs that were reserved are given back, and their answer is a 503 too. Other answers say what
was done, and are small."""
UNREAD = "clients have yet to read too many answers; ask for fewer at a time"
IDLE_S = 60
MOST_CONNECTIONS = 4_096
MOST_PER_ADDRESS = 2_048
MOST_LINGERING = 256
"""Connections above these that a node still listens to for a moment, so that their clients read the refusal."""
MOST_PIPELINED = 16
MOST_BODY_BYTES = 64 << 20
"""Bytes of all bodies that the gateway is reading."""
ADDRESS_RATE, ADDRESS_BURST = 2_000.0, 4_000.0
"""Requests a second from one address that is not this machine's, before the token is checked."""
FAILED_RATE, FAILED_BURST = 1.0, 20.0
"""Tries with a wrong token a second, from one address."""
MOST_KNOWN = 10_000
"""Addresses that are remembered. The one unseen for longest is forgotten first."""

Kind = Literal["reserve", "add", "settle", "other"]
AT_ONCE = 1_024
"""Operations that run at once, in all."""
AT_ONCE_PER_TOKEN = 512
PARTS: dict[Kind, float] = {"reserve": 0.6, "add": 0.8, "other": 0.8, "settle": 1.0}
"""The part of AT_ONCE up to which each kind is admitted. New work is shed before calls that end work,
or nothing would end."""
POLLS, POLLS_PER_TOKEN = 2_000, 1_000
"""Long polls and pushes that wait."""


class TokenBucket:
    """Tokens that come back at `rate` a second, up to `burst`. One large call may put the bucket into debt. It is then
    empty until the debt is paid: a batch is admitted whole, and the next one waits."""

    __slots__ = ("_at_s", "_left", "burst", "rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self.rate = rate
        self.burst = burst
        self._left = burst
        self._at_s = now_s

    def take(self, count: float, now_s: float) -> float:
        """Take `count` and return 0 if a token is left, else return the seconds until one is."""
        self._left = min(self.burst, self._left + (now_s - self._at_s) * self.rate)
        self._at_s = now_s
        if self._left < 1:
            return (1 - self._left) / self.rate
        self._left -= count
        return 0.0

    def owe(self, count: float) -> None:
        """Take more for a call that was admitted."""
        self._left -= count


class Rates:
    """A bucket for each key (an address, a token's name). The one unseen for longest is forgotten first."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def bucket(self, key: str, rate: float, burst: float, now_s: float) -> TokenBucket:
        """Return the key's bucket, or a new one if its rate was changed."""
        found = self._buckets.get(key)
        if found is None or found.rate != rate or found.burst != burst:
            found = self._buckets[key] = TokenBucket(rate, burst, now_s)
            while len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return found


class Load:
    """Counts running operations, waiting polls, files on their way and bytes of bodies."""

    def __init__(self) -> None:
        self.working = 0
        self.polling = 0
        self.moving = 0
        self.looking = 0
        self.body_bytes = 0
        self._working_of: Counter[str] = Counter()
        self._polling_of: Counter[str] = Counter()
        self._moving_of: Counter[str] = Counter()

    def work(self, kind: Kind, name: str) -> "_Work":
        """Count one operation of a token while the block runs. Raises RefusedRequest when there are too many."""
        if self.working >= AT_ONCE * PARTS[kind]:
            raise refused(503, "busy", f"the node has {self.working} operations at work", retry_after_s=1)
        if self._working_of[name] >= AT_ONCE_PER_TOKEN * PARTS[kind]:
            raise refused(429, "too_many", f"{self._working_of[name]} operations are at work already", retry_after_s=1)
        return _Work(self, name)

    @contextmanager
    def poll(self, name: str) -> Iterator[None]:
        """Count one long poll or push of a token while the block runs. Raises RefusedRequest for one too many."""
        if self.polling >= POLLS or self.working >= AT_ONCE * PARTS["reserve"]:
            said = f"the node has {self.polling} clients waiting for jobs, and {self.working} operations at work"
            raise refused(503, "busy", said, retry_after_s=2)
        if self._polling_of[name] >= POLLS_PER_TOKEN:
            raise refused(429, "too_many", f"{self._polling_of[name]} clients wait for jobs already", retry_after_s=2)
        self.polling += 1
        self._polling_of[name] += 1
        try:
            yield
        finally:
            self.polling -= 1
            _less(self._polling_of, name)

    @contextmanager
    def move(self, name: str) -> Iterator[None]:
        """Count one upload or download of a token while the block runs. Raises RefusedRequest for one too many."""
        if self.moving >= UPLOADS:
            raise refused(503, "busy", f"{self.moving} files are on their way", retry_after_s=5)
        if self._moving_of[name] >= UPLOADS_PER_TOKEN:
            raise refused(429, "too_many", f"{self._moving_of[name]} files are on their way already", retry_after_s=5)
        self.moving += 1
        self._moving_of[name] += 1
        try:
            yield
        finally:
            self.moving -= 1
            _less(self._moving_of, name)

    @contextmanager
    def look(self) -> Iterator[None]:
        """Count one first look at a file while the block runs. Raises RefusedRequest for one too many."""
        if self.looking >= LOOKS:
            raise refused(503, "busy", f"{self.looking} files are being looked at", retry_after_s=2)
        self.looking += 1
        try:
            yield
        finally:
            self.looking -= 1


class _Work:
    """One operation at work. Each request has one, and a generator in its place would cost four times as much."""

    __slots__ = ("_load", "_name")

    def __init__(self, load: Load, name: str) -> None:
        self._load = load
        self._name = name

    def __enter__(self) -> None:
        self._load.working += 1
        self._load._working_of[self._name] += 1

    def __exit__(self, *_: object) -> None:
        self._load.working -= 1
        _less(self._load._working_of, self._name)


class Census:
    """The open connections by address."""

    def __init__(self, most: int, most_per_address: int) -> None:
        self.most = most
        self.most_per_address = most_per_address
        self.count = 0
        self.lingering = 0
        self._of: Counter[str] = Counter()
        self._unread_of: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a connection, if there is room for it."""
        if self.count >= self.most or self._of[address] >= self.most_per_address:
            return False
        self.count += 1
        self._of[address] += 1
        return True

    def leave(self, address: str) -> None:
        self.count -= 1
        _less(self._of, address)

    def linger(self) -> bool:
        """Count a connection that was refused, if there is room for it too."""
        if self.lingering >= MOST_LINGERING:
            return False
        self.lingering += 1
        return True

    def end_linger(self) -> None:
        self.lingering -= 1

    def has_room(self, name: str, size: int) -> bool:
        """Return whether so many bytes of an answer may wait for the client of a token."""
        unread = self._unread_of.total() + size
        return unread <= MOST_UNREAD and self._unread_of[name] + size <= MOST_UNREAD_PER_TOKEN

    def hold(self, name: str, more: int) -> None:
        """Count bytes that the client of a token has yet to read, or fewer than before."""
        self._unread_of[name] += more
        if not self._unread_of[name]:
            del self._unread_of[name]


def _less(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
