"""A zoned job in a program of one's own, which is no node of Penstock (`client.zones.run`).

The program registers itself as a live member of its zone, and runs the job by the rules of managed jobs: one run of a
job in a zone at a time, its shards claimed before the first row, its saves fenced (ADR 47). So a job may run in
programs in one zone, and on nodes in another.
"""

from __future__ import annotations

import logging
import secrets
from importlib.metadata import version

import anyio

from actors.runtime.logs import fields
from actors.runtime.membership import Members, NodeRecord, Status
from actors.zone.hub_life import HubLife
from actors.zone.life import MemberLife
from actors.zone.offsets import Offsets
from actors.zone.routing import Routing
from actors.zone.rules.routing import LONGEST_ZONE, ZONE
from actors.zone.runner import ZoneHandler, ZoneLife, ZoneRunner
from penstock.errors import UsageError
from streams.buckets.bucket import Bucket
from streams.clock import SYSTEM
from streams.link.connection import Connection
from streams.publish.publisher import Publisher

__all__ = ["PROGRAM", "run_program"]

log = logging.getLogger(__name__)

PROGRAM = "program"
"""The role of such a program in its record. It has no other, so no work of nodes is placed on it."""


async def run_program(connection: Connection, handler: ZoneHandler, *, zone: str, name: str, hub: str) -> None:
    """Run the job until cancelled. Raises UsageError, NameTaken, and the broker's errors."""
    if not ZONE.fullmatch(zone) or len(zone) > LONGEST_ZONE:
        raise UsageError(f"zone {zone[:40]!a}: use 1 to {LONGEST_ZONE} of A-Z a-z 0-9 - and single _ inside")
    async with Publisher(connection) as publisher:

        def bucket(short: str, domain: str = "") -> Bucket[bytes]:
            return Bucket(connection, publisher, connection.namespace.bucket(short), bytes, domain=domain)

        routing, stop = Routing(bucket("ROUTING")), anyio.Event()
        record = NodeRecord(
            node=name or f"{zone}-{handler.job}-{secrets.token_hex(2)}",
            run=secrets.token_hex(8),
            zone=zone,
            roles=(PROGRAM,),
            started_ms=SYSTEM.now_ms(),
            version=version("penstock"),
        )

        def status() -> Status:
            shards = routing.current()  # nothing that is bound runs here, so each map is taken at once (ADR 52)
            return Status(taken=0 if shards is None else shards.epoch)

        members = Members(
            bucket("NODES"), record, clock=SYSTEM, is_connected=lambda: connection.is_connected, status=status
        )
        routing.on_change(members.beat_soon)
        at_hub = HubLife(zone=zone, node=record.node, zones=bucket("HUB_ZONES", hub)) if hub else None
        life: ZoneLife = at_hub or MemberLife(members, routing.current)
        runner = ZoneRunner(
            handler,
            zone=zone,
            node=record.node,
            routing=routing,
            offsets=Offsets(bucket("OFFSETS")),
            leases=bucket("LEASES"),
            life=life,
            clock=SYSTEM,
            stop=stop,
        )
        async with anyio.create_task_group() as tasks:
            await tasks.start(routing.run)
            await tasks.start(members.run)
            if at_hub is not None:
                await tasks.start(at_hub.run)
            log.info("zone.program_begins", extra=fields(job=handler.job, zone=zone, name=record.node))
            try:
                await runner.run(task_status=anyio.TASK_STATUS_IGNORED)
            finally:
                tasks.cancel_scope.cancel()
