"""The forms of flows, the same for HTTP, NATS and the Python client."""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from actors.flow.desk import FlowView
from penstock.api.forms.reading import RequestForm
from streams.messages.slots import MOST_SLOTS, WhenFull

__all__ = ["FlowAsk", "FlowChanges", "FlowSetAsk", "FlowsShown", "RowAsk", "RowQuery"]


class FlowAsk(RequestForm, frozen=True, kw_only=True):
    """A request about one flow."""

    flow: str


class RowAsk(RequestForm, frozen=True, kw_only=True):
    """A request about one row of a flow."""

    flow: str
    shard: str
    key: str


class RowQuery(RequestForm, frozen=True, kw_only=True):
    """Names a row of a flow."""

    shard: str
    key: str


class FlowSetAsk(RequestForm, frozen=True, kw_only=True):
    """Change some settings of a flow. null resets one to the value in its code."""

    flow: str
    set: dict[str, object]


class FlowChanges(RequestForm, frozen=True, kw_only=True):
    """Settings of a flow. null resets one to the value in its code. `every` (the shortest interval between two rounds),
    `longest`, `lead` and `load_timeout` are spans, as 5s. `rate`: rows a second over the whole cluster, 0: no limit.
    `groups`: labels of nodes, each with a weight or ALL, ODD, EVEN. `slots`: calls of `execute` at once under each key,
    0: no limit. `slot_key`: where the key is in a row, as a dotted path. `zone`: where it runs, as east or shard:7."""

    every: str | UnsetType | None = UNSET
    longest: str | UnsetType | None = UNSET
    lead: str | UnsetType | None = UNSET
    load_timeout: str | UnsetType | None = UNSET
    rate: float | UnsetType | None = UNSET
    most_in_flight: int | UnsetType | None = UNSET
    groups: dict[str, float | str] | UnsetType | None = UNSET
    slots: Annotated[int, Meta(ge=0, le=MOST_SLOTS)] | UnsetType | None = UNSET
    slot_key: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET
    when_full: WhenFull | UnsetType | None = UNSET
    zone: Annotated[str, Meta(max_length=70)] | UnsetType | None = UNSET
    region_key: Annotated[str, Meta(max_length=200)] | UnsetType | None = UNSET


class FlowsShown(Struct, frozen=True, omit_defaults=True):
    """A page of flows by name, each with its last round. `next` is the `after` of the following page. The last page has
    none."""

    flows: list[FlowView]
    next: str = ""
