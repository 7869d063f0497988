"""Lists of the service, page after page."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from actors.runtime.rules.pages import MOST_LINES
from penstock.sdk.calls import ServiceClient

__all__ = ["all_lines", "all_pages"]


class ServicePage(Protocol):
    """An answer of the service that may not be the last of its list."""

    @property
    def next(self) -> str: ...


_P = TypeVar("_P", bound=ServicePage)
_L = TypeVar("_L")


async def all_pages(
    service: ServiceClient,
    endpoint: str,
    form: type[_P],
    lines: Callable[[_P], Sequence[object]],
    *,
    after: str = "",
    limit: int | None = None,
    length: str = "limit",
    **asked: object,
) -> list[_P]:
    """Return all pages of a list behind `after`, or those with the first `limit` lines. `length`: what the service
    calls the length of a page. What is not needed is not asked for, so that a node of an earlier version understands
    the request. A limit below 1 is refused by the service."""
    pages: list[_P] = []
    left = limit
    while True:
        ask = {**asked, **({"after": after} if after else {})}
        if left is not None:
            ask[length] = min(MOST_LINES, left)
        page = await service.ask(endpoint, ask, form)
        pages.append(page)
        left = None if left is None else left - len(lines(page))
        after = page.next
        if not after or (left is not None and left <= 0):
            return pages


async def all_lines(
    service: ServiceClient,
    endpoint: str,
    form: type[_P],
    lines: Callable[[_P], Sequence[_L]],
    *,
    after: str = "",
    limit: int | None = None,
    length: str = "limit",
    **asked: object,
) -> list[_L]:
    """Return the lines of these pages, as `all_pages` has them."""
    pages = await all_pages(service, endpoint, form, lines, after=after, limit=limit, length=length, **asked)
    return [line for page in pages for line in lines(page)]
