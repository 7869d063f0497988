"""The rows of a reading, as they are stored: which are new, how they fit into messages, dead letters for the bad ones,
and whether the platform is known to list more than it returned."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from actors.fetch.digests import Content, content_hash, key_hash, row_hash
from actors.fetch.fetcher.decisions import ReadSlice, Short
from actors.fetch.rules.ledger import Shortfall
from actors.fetch.sources import SourceKey, SourceRecord
from actors.runtime.secrets import without_secrets
from platforms.adapter import DAY_MS, BadRow, Row
from platforms.bounds import window_text
from platforms.reading import ReadingResult
from streams.messages.fetch import DeadLetter, dead_body
from streams.subjects import token_of

PAGE_BYTES = 256 * 1024
"""Bodies in one message: a quarter of the server's default limit, and still hundreds of orders."""

Life = tuple[SourceRecord | None, int]
"""A source as it was added or changed last, and its epoch. What an earlier life has published does not count in it."""

MOST_RECENT = 100_000
"""Contents of one source in memory, of some 200 bytes each."""
MOST_RECENT_OF_ALL = 500_000
"""Contents of all sources in memory: some 100 MB."""


def pages_of(rows: Sequence[Row], most_bytes: int = PAGE_BYTES) -> list[Sequence[Row]]:
    """Cut rows into what fits into one message. A single row may exceed `most_bytes`."""
    if sum([len(row.body) for row in rows]) <= most_bytes:
        return [rows]
    cut, start, size = [], 0, 0
    for at, row in enumerate(rows):
        if size + len(row.body) > most_bytes and at > start:
            cut.append(rows[start:at])
            start, size = at, 0
        size += len(row.body)
    return [*cut, rows[start:]]


def unsettled(rows: list[Row], after_ms: int) -> list[Row]:
    """Return rows that were read before all changes of their second had settled. A version that is a time in whole
    seconds, after `after_ms`, counts as a millisecond earlier, a number of seconds as a second earlier: the order may
    change again in that second, and a later window lists that under the same version."""
    return [row._replace(version=row.version - 1) if _may_come_again(row.version, after_ms) else row for row in rows]


def _may_come_again(version: int, after_ms: int) -> bool:
    is_second = version > after_ms and version % 1_000 == 0
    return is_second or after_ms < version * 1_000 < after_ms + DAY_MS


class NewVersions:
    """Tells which rows of a reading are new by their key and version. `known`: the hashes of those that are not.
    `is_kept`: whether later readings want the hashes of these rows."""

    def __init__(self, known: set[bytes], *, is_kept: bool = True) -> None:
        self._known = known
        self._is_kept = is_kept
        self.fresh: set[bytes] = set()
        self.seen: set[bytes] = set()

    def take(self, rows: list[Row], _read_ms: int) -> list[Row]:
        """Return the rows that are new."""
        if not self._known:
            if self._is_kept:
                self.seen.update(map(row_hash, rows))
                self.fresh = self.seen
            return rows
        new = []
        for row in rows:
            mark = row_hash(row)
            self.seen.add(mark)
            if mark not in self._known:
                self.fresh.add(mark)
                new.append(row)
        return new


class RecentContents:
    """The latest contents of a source that this node has stored. Neighbouring windows, read at the same time, both list
    what lies between them."""

    def __init__(self) -> None:
        self._contents: dict[bytes, Content] = {}

    def __len__(self) -> int:
        return len(self._contents)

    def get(self, key: bytes) -> Content | None:
        return self._contents.get(key)

    def add(self, key: bytes, content: Content) -> None:
        self._contents[key] = max(content, self._contents.pop(key, content))
        if len(self._contents) > MOST_RECENT:
            del self._contents[next(iter(self._contents))]


class RecentSources:
    """The recent contents of all sources of this node. The sources that were read longest ago make room."""

    def __init__(self) -> None:
        self._of: dict[SourceKey, tuple[Life, RecentContents]] = {}

    def of(self, source: SourceKey, life: Life) -> RecentContents:
        """Return the source's recent contents, for a reading of it. In another life of the source there are none."""
        known, recent = self._of.pop(source, (life, RecentContents()))
        recent = recent if known == life else RecentContents()
        self._of[source] = life, recent
        while len(self._of) > 1 and sum(len(each) for _, each in self._of.values()) > MOST_RECENT_OF_ALL:
            del self._of[next(iter(self._of))]
        return recent


class NewContents:
    """Tells which rows of a reading are new by their content: those that differ from the latest content of their key.
    `stored`: the contents that the reading found and that are stored. `has_more`: more of them than were kept."""

    def __init__(self, latest: dict[bytes, Content], recent: RecentContents) -> None:
        self._latest = latest
        self._recent = recent
        self.stored: dict[bytes, Content] = {}
        self.has_more = False

    def take(self, rows: list[Row], read_ms: int) -> list[Row]:
        """Return the rows that are new."""
        new = []
        for row in rows:
            key, content = key_hash(row), Content(read_ms, content_hash(row))
            known = max((found for found in (self._latest.get(key), self._recent.get(key)) if found), default=None)
            self._latest[key] = content
            if known is not None and known.hash == content.hash:
                self._take_for_stored(key, content)
            else:
                new.append(row)
        return new

    def confirm(self, rows: list[Row], read_ms: int) -> None:
        """Take new rows for stored."""
        for row in rows:
            key, content = key_hash(row), Content(read_ms, content_hash(row))
            self._take_for_stored(key, content)
            self._recent.add(key, content)

    def _take_for_stored(self, key: bytes, content: Content) -> None:
        known = self.stored.get(key)
        self.has_more = self.has_more or known is None or known.hash != content.hash
        self.stored[key] = content


def row_dead_letter(work: ReadSlice, row: BadRow, now_ms: int) -> DeadLetter:
    """Return the dead letter of an unreadable row. It holds the row's beginning. Its id has the row's key and a hash of
    its body, so the same row has one dead letter however often it is listed."""
    body, is_base64 = dead_body(row.body)
    body_hash = blake2b(row.body, digest_size=6).hexdigest()
    key = body_hash if row.key is None else f"{row.key}_{body_hash}"
    return DeadLetter(
        engine="fetch",
        name=work.source.platform,
        id=token_of(f"{work.source.source}_{key}"),
        reason=f"{work.slice.slice_id} of {work.source}: {without_secrets(row.reason)}",
        attempts=work.slice.attempt,
        first_ms=now_ms,
        body=body,
        is_base64=is_base64,
    )


def shortness(result: ReadingResult, before: Shortfall | None) -> Short | None:
    """Return by how much a window is known to be short. `None`: it is not. `before`: the shortfall of the last reading.
    If the platform named no count this time, that does not show that the window is complete by now."""
    if result.short:
        short = Shortfall(result.missing, sum(part.listed for part in result.short if part.missing))
        return Short(f"{short}: {_shortness_text(result)}", short)
    if before is not None and before.missing and not result.is_counted:
        return Short(f"{before} when it was last counted; this time the platform named no total", before)
    return None


def _shortness_text(result: ReadingResult) -> str:
    first = max(result.short, key=lambda part: part.missing)
    when = window_text(first.window)
    if first.missing:
        had = first.listed - first.missing
        what = f"the platform counts {first.listed} orders {when} and hands out {had}"
    else:
        what = f"the platform's list of orders {when} breaks off"
    more = f", and so in {len(result.short) - 1} more places" if len(result.short) > 1 else ""
    where = f"list {first.list_name!r}: " if first.list_name else ""
    return f"{where}{what}{more}; nothing smaller can be asked for"
