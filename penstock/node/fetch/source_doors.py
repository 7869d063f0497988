"""The desk of sources, as a node and a command open it."""

from __future__ import annotations

from actors.fetch.look_desk import LookDesk
from actors.fetch.settings.watch import LiveSettings
from actors.fetch.source_desk import SourceDesk
from actors.zone.routing import Routing
from actors.zone.rules.binding import zone_of
from penstock.node.session import Session
from streams.clock import SYSTEM, Clock

__all__ = ["open_source_desk"]


def open_source_desk(
    session: Session, clock: Clock = SYSTEM, looks: LookDesk | None = None, live: LiveSettings | None = None
) -> SourceDesk:
    """Return the desk of one connection. `looks`, `live`: those of a node."""

    async def zone_now(bound: str) -> str | None:
        return zone_of(await Routing(session.bucket("ROUTING")).fresh(), bound)

    return SourceDesk(
        session.connection,
        session.settings_desk(),
        ledgers=session.bucket("LEDGERS"),
        nodes=session.bucket("NODES"),
        zone_of=zone_now,
        clock=clock,
        looks=looks,
        live=live,
    )
