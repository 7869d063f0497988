"""The forms of rates, the same for HTTP, NATS and the Python client."""

from typing import Annotated

from msgspec import Meta

from actors.flow.rates_desk import SECONDS
from penstock.api.forms.pages import PageQuery
from penstock.api.forms.reading import RequestForm
from streams.messages.begun import MOST_SECONDS

__all__ = ["RateAsk", "RateChange", "RateQuery", "RateSetAsk", "RatesQuery"]

Seconds = Annotated[int, Meta(ge=1, le=MOST_SECONDS)]


class RateQuery(RequestForm, frozen=True, kw_only=True):
    """`seconds`: how many of the last full seconds are told."""

    seconds: Seconds = SECONDS


class RatesQuery(PageQuery, frozen=True, kw_only=True):
    """A page of rates. `after`: the `next` of the page before. `seconds`: how many of the last full seconds are
    told."""

    seconds: Seconds = SECONDS


class RateAsk(RequestForm, frozen=True, kw_only=True):
    """A request about one rate. `kind`: topic, flow, task, platform or source. Empty: whichever has the name."""

    name: str
    kind: str = ""
    seconds: Seconds = SECONDS


class RateSetAsk(RequestForm, frozen=True, kw_only=True):
    """Change a rate. `rate`: per second over the whole cluster. 0: no limit. null: as the code has it."""

    name: str
    rate: float | None
    kind: str = ""


class RateChange(RequestForm, frozen=True, kw_only=True):
    """`rate`: per second over the whole cluster. 0: no limit. null: as the code, or the default of topics, has it."""

    rate: float | None
