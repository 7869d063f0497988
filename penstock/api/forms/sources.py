"""The forms of sources, the same for HTTP, NATS and the Python client."""

from typing import Annotated

from msgspec import Meta

from penstock.api.forms.reading import RequestForm

__all__ = ["LookAsk", "LookQuery", "SourceWhyAsk", "SourceWhyQuery"]

Moment = Annotated[int, Meta(ge=0, le=10**14)]


class SourceWhyQuery(RequestForm, frozen=True, kw_only=True):
    """`slice`: the slice that is meant, such as `t1-60000-90000`. Empty: the source itself."""

    slice: str = ""


class SourceWhyAsk(RequestForm, frozen=True, kw_only=True):
    """A request why a source, or a slice of it, is not read. `slice`: such as `t1-60000-90000`. Empty: the source."""

    platform: str
    source: str
    slice: str = ""


class LookQuery(RequestForm, frozen=True, kw_only=True):
    """The window to look at, in milliseconds UTC. Without a start: from where the source was read to. Without an end:
    up to the moment of the look."""

    start_ms: Moment | None = None
    end_ms: Moment | None = None


class LookAsk(RequestForm, frozen=True, kw_only=True):
    """Have a source looked at. The window as in LookQuery."""

    platform: str
    source: str
    start_ms: Moment | None = None
    end_ms: Moment | None = None
