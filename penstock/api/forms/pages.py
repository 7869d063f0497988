"""What a page of a list is asked by, the same for HTTP, NATS and the Python client."""

from typing import Annotated

from msgspec import Meta

from actors.runtime.rules.pages import MOST_LINES
from penstock.api.forms.reading import RequestForm

__all__ = ["PageQuery"]

MostLines = Annotated[int, Meta(ge=1, le=MOST_LINES)]


class PageQuery(RequestForm, frozen=True, kw_only=True):
    """A page of a list. `after`: the `next` of the page before."""

    after: Annotated[str, Meta(max_length=200)] = ""
    limit: MostLines = MOST_LINES
