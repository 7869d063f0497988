"""The forms of sources, the same for HTTP, NATS and the Python client."""

from penstock.api.forms.reading import RequestForm

__all__ = ["SourceWhyAsk", "SourceWhyQuery"]


class SourceWhyQuery(RequestForm, frozen=True, kw_only=True):
    """`slice`: the slice that is meant, such as `t1-60000-90000`. Empty: the source itself."""

    slice: str = ""


class SourceWhyAsk(RequestForm, frozen=True, kw_only=True):
    """A request why a source, or a slice of it, is not read. `slice`: such as `t1-60000-90000`. Empty: the source."""

    platform: str
    source: str
    slice: str = ""
