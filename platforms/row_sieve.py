"""What of the rows of an answer is handed out: those that belong to the window, can be written, and are new."""

from __future__ import annotations

from platforms.adapter import LONGEST_KEY, BadRow, Declaration, Page, Row
from platforms.bounds import Window, is_asked, until_ms, window_text
from platforms.errors import BrokenContract, Unreadable, WindowIgnored
from platforms.odd_rows import oddity

_MOST_BAD = 100  # of one window: with more, the declaration is wrong
_SHOWN = 4096  # bytes of a bad row
_FEW_ROWS = 20  # from here on, a page mostly from outside the window is no accident
_FEW_BAD = 3  # so many bad rows, and most of an answer, are no accident either


class RowSieve:
    """The rows of one window. `is_trusted`: rows of this platform could be read before. `versions`: of the orders that
    were handed out. Other readings may share them."""

    def __init__(self, declaration: Declaration, window: Window, *, is_trusted: bool, versions: dict[str, int]) -> None:
        self._bounds = declaration.window.bounds
        self._is_ordered = declaration.is_version_ordered
        self._largest = declaration.largest_row
        self._is_trusted = is_trusted
        self._window = window
        self._odd = self._listed = 0
        self.versions = versions
        self.bad: dict[tuple[str | None, bytes], BadRow] = {}
        """Rows that cannot be read, or not be written."""
        self._late: dict[str | None, BadRow] = {}
        self.cut = self.strays = 0
        """How many rows belong to the neighbours, and how many lie outside the requested bounds."""

    @property
    def lacking(self) -> list[BadRow]:
        """Listed orders whose details did not exist yet. A later answer may have had them."""
        had = self.versions.keys() | {key for key, _ in self.bad}
        return [row for row in self._late.values() if row.key not in had]

    @property
    def lacks_many(self) -> bool:
        """Return whether so many lack their details that the platform or the file is at fault, and not the moment."""
        count = len(self.lacking)
        return count > _MOST_BAD or (count >= _FEW_BAD and 2 * count > count + len(self.bad) + len(self.versions))

    def inside(self, page: Page, asked: Window) -> list[Row]:
        """Return the rows that belong to the window. Drop the neighbours'. Keep strays, since the platform may list
        them nowhere else."""
        rows = self._set_aside(page)
        start, end = self._window.start_ms, self._window.end_ms
        inside = [
            row
            for row in rows
            for at_ms in (row.modified_ms,)
            if at_ms is None or (at_ms < end and (start <= at_ms or start < until_ms(at_ms)))
        ]
        self._listed += len(rows)
        if len(inside) == len(rows) and asked == self._window:
            return rows
        bounds = self._bounds.request(asked)
        odd = [row for row in rows if not is_asked(bounds, row.modified_ms)]
        kept = set(map(id, inside))
        strays = [row for row in odd if id(row) not in kept]
        self._odd += len(odd)
        is_page = len(strays) >= _FEW_ROWS and 2 * len(strays) > len(rows)
        if is_page or (odd and self._odd >= 3 * _FEW_ROWS and 2 * self._odd > self._listed):
            raise WindowIgnored(
                f"{len(odd)} of {len(rows)} rows are not {window_text(asked)}: the platform ignores the "
                "window; check the names of its parameters",
                odd[0].body[:_SHOWN],
            )
        self.strays += len(strays)
        self.cut += len(rows) - len(inside) - len(strays)
        return inside + strays

    def fresh(self, rows: list[Row]) -> list[Row]:
        """Return the rows to publish now: each key once, and again when a higher version turns up."""
        versions, fresh, is_repeated = self.versions, [], False
        for row in rows:
            known = versions.get(row.key)
            if known is None or row.version > known or (row.version != known and not self._is_ordered):
                versions[row.key] = row.version
                fresh.append(row)
                is_repeated = is_repeated or known is not None
        # a page may list an order in two versions: the later one was appended later
        return list({row.key: row for row in fresh}.values()) if is_repeated else fresh

    def _set_aside(self, page: Page) -> list[Row]:
        """Return the rows that can be written and read again, and keep the others as bad."""
        rows, most = page.rows, self._largest
        odd = [(row, fault) for row in rows if (fault := oddity(row, most))]
        if not odd and not page.bad:
            return rows
        bad = [*page.bad, *(BadRow(row.key[:LONGEST_KEY], fault, row.body[:_SHOWN]) for row, fault in odd)]
        listed, unread = len(rows) + len(page.bad), [each for each in bad if each.listed is None]
        faults = unread if self._is_trusted else bad
        few = _FEW_BAD if self._is_trusted or not unread else 1  # details may come later than their list
        if len(faults) >= few and 2 * len(faults) > listed:
            raise Unreadable(
                f"{len(faults)} of {listed} rows of an answer cannot be read; {_told(faults[0])}", faults[0].body
            )
        for each in bad:
            if each.listed is None:
                self.bad.setdefault((each.key, each.body), each)
            elif self._is_inside(each.listed):
                self._late[each.key] = each
        if len(self.bad) + (0 if self._is_trusted else len(self.lacking)) > _MOST_BAD:
            raise self.too_many_bad()
        aside = {id(row) for row, _ in odd}
        return [row for row in rows if id(row) not in aside] if odd else rows

    def _is_inside(self, row: Row) -> bool:
        at_ms, start_ms = row.modified_ms, self._window.start_ms
        return at_ms is None or (at_ms < self._window.end_ms and (start_ms <= at_ms or start_ms < until_ms(at_ms)))

    def too_many_bad(self) -> BrokenContract:
        """Return the error of a window with bad rows that nobody sets aside."""
        bad = [*self.bad.values(), *self.lacking]
        return BrokenContract(f"{len(bad)} rows cannot be read; {_told(bad[0])}")


def _told(row: BadRow) -> str:
    return f"the first, key {row.key if row.key is None else row.key[:64]!r}: {row.reason}"
