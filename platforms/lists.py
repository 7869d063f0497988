"""Several lists of one source, such as new orders by their creation and changed ones by their change.

Each window is read from every list. An order that stands in two of them is handed out once, by its key and version. The
window is proven only if each list of it is, and what is short says in which list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from msgspec.structs import replace

from platforms.adapter import Adapter, BadRow, Declaration, ManyLists, Page, Row
from platforms.bounds import Window
from platforms.errors import BadDeclaration
from platforms.page_check import PageSize
from platforms.reading import Ask, Reading, ReadingResult


def lists_of(adapter: Adapter) -> Mapping[str, Adapter]:
    """Return the adapter of each list by its name, the adapter itself under "" if there is one list."""
    return adapter.lists if _has_lists(adapter) else {"": adapter}


def _has_lists(adapter: Adapter) -> TypeGuard[ManyLists]:
    return hasattr(adapter, "lists")  # as `isinstance` finds it, in a hundredth of the time


def combined(declared: Sequence[Declaration]) -> Declaration:
    """Return what holds for all lists together: the narrowest limits, and the least that each of them proves.
    BadDeclaration if they cannot be lists of one source."""
    first = declared[0]
    _check_alike(declared)
    look_backs = [each.window.look_back_ms for each in declared if each.window.look_back_ms is not None]
    window = replace(
        first.window,
        bounds=max((each.window.bounds for each in declared), key=lambda bounds: bounds.step_ms),
        longest_ms=min(each.window.longest_ms for each in declared),
        look_back_ms=min(look_backs, default=None),
    )
    pages = replace(
        first.pages,
        style="one" if any(each.pages.style == "one" for each in declared) else first.pages.style,
        size=min(each.pages.size for each in declared),
        has_total=all(each.pages.has_total for each in declared),
        counts_rows=any(each.pages.counts_rows for each in declared),
    )
    return replace(
        first,
        window=window,
        pages=pages,
        account=tuple(sorted({name for each in declared for name in each.account})),
        granted=tuple(sorted({name for each in declared for name in each.granted})),
        for_login=tuple(sorted(set(first.for_login).intersection(*(each.for_login for each in declared)))),
        has_times=all(each.has_times for each in declared),
        lists=len(declared),
    )


def _check_alike(declared: Sequence[Declaration]) -> None:
    first = declared[0]
    for number, each in enumerate(declared):
        for bound in ("lower", "upper"):
            is_absent = getattr(each.window.bounds, bound) == "absent"
            if is_absent != (getattr(first.window.bounds, bound) == "absent"):
                raise BadDeclaration(f"list[{number}].window.{bound}", "is absent in all lists of a file, or in none")


class ListsReading:
    """One attempt at one window of several lists: a `Reading` of each, with the same methods. The list that is furthest
    behind is read first, so that the time up to which all are read moves on."""

    def __init__(
        self,
        lists: Mapping[str, Declaration],
        window: Window,
        *,
        sets_bad_aside: bool = False,
        is_trusted: bool = True,
        checks_window: bool = False,
        page_sizes: dict[str, PageSize] | None = None,
    ) -> None:
        versions: dict[str, int] = {}
        self._readings = {
            name: Reading(
                declared,
                window,
                sets_bad_aside=sets_bad_aside,
                is_trusted=is_trusted,
                checks_window=checks_window,
                page_sizes=page_sizes,
                list_name=name,
                versions=versions,
            )
            for name, declared in lists.items()
        }
        self._versions = versions

    @property
    def is_done(self) -> bool:
        return all(each.is_done for each in self._readings.values())

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self._readings.values())

    @property
    def done_until_ms(self) -> int:
        return min(each.done_until_ms for each in self._readings.values())

    @property
    def bad(self) -> tuple[BadRow, ...]:
        return self.result.bad

    @property
    def lacks_many(self) -> bool:
        return any(each.lacks_many for each in self._readings.values())

    @property
    def obeys(self) -> bool | None:
        """None without a check, and True if each list has shown it. A list without rows has not."""
        told = [each.obeys for each in self._readings.values()]
        return None if all(each is None for each in told) else all(told)

    @property
    def list_name(self) -> str:
        """The list that the next request is for."""
        left = [name for name, each in self._readings.items() if each.next() is not None]
        return min(left, key=lambda name: self._readings[name].done_until_ms, default="")

    def next(self) -> Ask | None:
        name = self.list_name
        return self._readings[name].next() if name else None

    def feed(self, page: Page) -> list[Row]:
        reading = self._readings[self.list_name]
        return reading.feed(page)

    def feed_late(self, page: Page) -> list[Row]:
        return next(iter(self._readings.values())).feed_late(page)

    def split(self, why: str = "") -> None:
        self._readings[self.list_name].split(why)

    @property
    def result(self) -> ReadingResult:
        found = {name: each.result for name, each in self._readings.items()}
        results = list(found.values())
        bad = {(row.key, row.body): row for each in results for row in each.bad}
        short = tuple(part._replace(list_name=name) for name, each in found.items() for part in each.short)
        return ReadingResult(
            distinct=len(self._versions),
            is_proven=all(each.is_proven for each in results),
            requests=sum(each.requests for each in results),
            cut=sum(each.cut for each in results),
            strays=sum(each.strays for each in results),
            missing=sum(each.missing for each in results),
            short=short,
            is_counted=all(each.is_counted for each in results),
            bad=tuple(bad.values()),
        )


WindowReading = Reading | ListsReading


def begin_reading(
    adapter: Adapter,
    window: Window,
    *,
    sets_bad_aside: bool = False,
    is_trusted: bool = True,
    checks_window: bool = False,
    page_sizes: dict[str, PageSize] | None = None,
) -> WindowReading:
    """Return a reading of a window, of all lists that the adapter has."""
    lists = {name: each.declaration for name, each in lists_of(adapter).items()}
    if len(lists) > 1:
        return ListsReading(
            lists,
            window,
            sets_bad_aside=sets_bad_aside,
            is_trusted=is_trusted,
            checks_window=checks_window,
            page_sizes=page_sizes,
        )
    return Reading(
        adapter.declaration,
        window,
        sets_bad_aside=sets_bad_aside,
        is_trusted=is_trusted,
        checks_window=checks_window,
        page_sizes=page_sizes,
    )
