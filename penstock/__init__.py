"""Penstock: the public names. See README.md."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.errors import NotAccepted, PenstockError, Stale, StartFailed, Timeout, Unavailable, UsageError

__all__ = [
    "BadKey",
    "BadOffset",
    "Bury",
    "Client",
    "Credentials",
    "FlowContext",
    "HeldJob",
    "ItemContext",
    "ItemResult",
    "Job",
    "JobLost",
    "NotAccepted",
    "Order",
    "OrderRefused",
    "Outbox",
    "PenstockError",
    "PlainZoneContext",
    "ReduceContext",
    "Reject",
    "Retry",
    "RunEnded",
    "ShardElsewhere",
    "Skip",
    "Slots",
    "SourceFailed",
    "SplitContext",
    "Stale",
    "StartFailed",
    "StoreDown",
    "Timeout",
    "Unavailable",
    "UsageError",
    "ZoneContext",
    "__version__",
    "batch",
    "connect",
    "external_batch",
    "flow",
    "job",
    "new_job",
    "opensearch_rows",
    "read_sheet",
    "sink",
    "sql",
    "sql_rows",
    "write_sheet",
    "zoned",
]

_LATER = {
    "connect": "penstock.sdk.client",
    "Client": "penstock.sdk.client",
    "Credentials": "streams.link.credentials",
    "HeldJob": "penstock.sdk.held_jobs",
    "new_job": "penstock.sdk.client_adds",
    "Outbox": "penstock.sdk.outbox",
    "batch": "penstock.sdk.batches",
    "external_batch": "penstock.sdk.batches",
    "Reject": "actors.batch.executor.handler",
    "Skip": "actors.batch.executor.handler",
    "ItemContext": "actors.batch.executor.contexts",
    "ItemResult": "actors.batch.executor.contexts",
    "ReduceContext": "actors.batch.executor.contexts",
    "SplitContext": "actors.batch.executor.contexts",
    "read_sheet": "penstock.sdk.batch_sheets",
    "write_sheet": "penstock.sdk.batch_sheets",
    "opensearch_rows": "penstock.rows.batch_sources",
    "sql_rows": "penstock.rows.batch_sources",
    "SourceFailed": "penstock.rows.batch_sources",
    "sink": "penstock.node.fetch.sinks",
    "flow": "penstock.sdk.flows",
    "zoned": "penstock.sdk.zones",
    "ZoneContext": "actors.zone.contexts",
    "PlainZoneContext": "actors.zone.contexts",
    "RunEnded": "actors.zone.run",
    "ShardElsewhere": "actors.zone.run",
    "BadOffset": "actors.zone.run",
    "BadKey": "actors.zone.rules.shards",
    "FlowContext": "actors.flow.handler",
    "job": "penstock.sdk.jobs",
    "Slots": "actors.runtime.rules.slot_keys",
    "Job": "actors.jobs.worker.job",
    "JobLost": "actors.jobs.worker.job",
    "Bury": "actors.jobs.worker.job",
    "Retry": "actors.jobs.worker.job",
    "Order": "streams.messages.fetch",
    "OrderRefused": "actors.fetch.stores.store",
    "StoreDown": "actors.fetch.stores.store",
}
"""The module of each public name. A name is imported at its first use, so `import penstock` stays fast."""


def _folder_of(name: str) -> Path | None:
    """Return the folder where Python finds a top-level package, without importing it. None: Python finds none."""
    loaded: ModuleType | None = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).resolve().parent
    return next((Path(folder).resolve() for folder in spec.submodule_search_locations or ()), None)


def _check_packages() -> None:
    """Raise ImportError if another package hides one of our plainly named packages."""
    home = Path(__file__).resolve().parent.parent
    for name in ("actors", "streams", "platforms"):
        found = _folder_of(name)
        if found != home / name:
            where = f"finds {found} first; rename that folder or start Python elsewhere" if found else "finds none"
            raise ImportError(f"penstock needs its own package {name!r} in {home}, but Python {where}.", name=name)


_check_packages()


if TYPE_CHECKING:
    from actors.batch.executor.contexts import ItemContext, ItemResult, ReduceContext, SplitContext
    from actors.batch.executor.handler import Reject, Skip
    from actors.fetch.stores.store import OrderRefused, StoreDown
    from actors.flow.handler import FlowContext
    from actors.jobs.worker.job import Bury, Job, JobLost, Retry
    from actors.runtime.rules.slot_keys import Slots
    from actors.zone.contexts import PlainZoneContext, ZoneContext
    from actors.zone.rules.shards import BadKey
    from actors.zone.run import BadOffset, RunEnded, ShardElsewhere
    from penstock import sql
    from penstock.node.fetch.sinks import sink
    from penstock.rows.batch_sources import SourceFailed, opensearch_rows, sql_rows
    from penstock.sdk.batch_sheets import read_sheet, write_sheet
    from penstock.sdk.batches import batch, external_batch
    from penstock.sdk.client import Client, connect
    from penstock.sdk.client_adds import new_job
    from penstock.sdk.flows import flow
    from penstock.sdk.held_jobs import HeldJob
    from penstock.sdk.jobs import job
    from penstock.sdk.outbox import Outbox
    from penstock.sdk.zones import zoned
    from streams.link.credentials import Credentials
    from streams.messages.fetch import Order


def __getattr__(name: str) -> object:
    """Import a public name at its first use. The version is computed here too, since that takes longer than the whole
    import."""
    if name in _LATER:
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
        return found
    if name == "sql":
        return import_module("penstock.sql")
    if name == "__version__":
        from importlib.metadata import version

        return version("penstock")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
