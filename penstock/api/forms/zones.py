"""The forms of zones and of the shard map, the same for HTTP, NATS and the Python client."""

from typing import Annotated

from msgspec import Meta, Struct

from actors.zone.desk import LONGEST_WAIT_MS
from actors.zone.rules.changes import RoutingChange
from actors.zone.views import MapView, ZoneView
from penstock.api.forms.pages import PageQuery
from penstock.api.forms.reading import RequestForm

__all__ = [
    "MapsQuery",
    "MapsShown",
    "ReportAsk",
    "RoutingApplyAsk",
    "ShardsAsk",
    "ShardsQuery",
    "ZoneAsk",
    "ZoneChangeAsk",
    "ZoneSteer",
    "ZonesShown",
]


class ZoneAsk(RequestForm, frozen=True, kw_only=True):
    """A request about one zone."""

    zone: str


class ShardsQuery(RequestForm, frozen=True, kw_only=True):
    """With `after`, wait up to `wait_ms` for a shard map of a later epoch than that."""

    after: Annotated[int, Meta(ge=0)] | None = None
    wait_ms: Annotated[int, Meta(ge=0, le=LONGEST_WAIT_MS)] = 0


class ShardsAsk(ShardsQuery, frozen=True, kw_only=True):
    """The same for one zone."""

    zone: str


class ZoneSteer(RequestForm, frozen=True, kw_only=True):
    """How to drain or restore a zone. `dry_run`: only say what it would do."""

    dry_run: bool = False


class ZoneChangeAsk(ZoneSteer, frozen=True, kw_only=True):
    """Drain or restore a zone. `by`: who asks for it, for the history."""

    zone: str
    by: str = ""


class RoutingApplyAsk(RequestForm, frozen=True, kw_only=True):
    """Change the shard map. `by`: who asks for it, for the history."""

    change: RoutingChange
    by: str = ""


class ReportAsk(RequestForm, frozen=True, kw_only=True):
    """A request for the report of a change. `epoch`: of the map that it made, by default the last one."""

    epoch: int | None = None


class MapsQuery(PageQuery, frozen=True, kw_only=True):
    """A page of the kept shard maps. `after`: the `next` of the page before, which is an epoch."""

    after: Annotated[str, Meta(pattern=r"^[0-9]{0,15}$")] = ""

    @property
    def before(self) -> int | None:
        """The epoch before which the page begins. `None`: with the newest."""
        return int(self.after) if self.after else None


class ZonesShown(Struct, frozen=True, omit_defaults=True):
    """A page of zones by name. `next` is the `after` of the following page. The last page has none."""

    zones: list[ZoneView]
    next: str = ""


class MapsShown(Struct, frozen=True, omit_defaults=True):
    """A page of the kept shard maps, the newest first. `next` as in ZonesShown."""

    maps: list[MapView]
    next: str = ""
