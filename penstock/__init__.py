"""Penstock: what users import. See README.md."""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.errors import NotAccepted, PenstockError, Stale, StartFailed, Timeout, Unavailable, UsageError

__all__ = [
    "Bury",
    "Client",
    "Credentials",
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
    "ReduceContext",
    "Reject",
    "Retry",
    "Skip",
    "SourceFailed",
    "SplitContext",
    "Stale",
    "StartFailed",
    "StoreDown",
    "Timeout",
    "Unavailable",
    "UsageError",
    "__version__",
    "batch",
    "connect",
    "external_batch",
    "job",
    "new_job",
    "opensearch_rows",
    "sink",
    "sql_rows",
    "write_sheet",
]

_LATER = {
    "connect": "penstock.client",
    "Client": "penstock.client",
    "Credentials": "streams.credentials",
    "HeldJob": "penstock.held_jobs",
    "new_job": "penstock.client_jobs",
    "Outbox": "penstock.outbox",
    "batch": "penstock.batches",
    "external_batch": "penstock.batches",
    "Reject": "actors.batch_worker.handler",
    "Skip": "actors.batch_worker.handler",
    "ItemContext": "actors.batch_worker.contexts",
    "ItemResult": "actors.batch_worker.contexts",
    "ReduceContext": "actors.batch_worker.contexts",
    "SplitContext": "actors.batch_worker.contexts",
    "write_sheet": "penstock.batch_sheets",
    "opensearch_rows": "penstock.batch_sources",
    "sql_rows": "penstock.batch_sources",
    "SourceFailed": "penstock.batch_sources",
    "sink": "penstock.sinks",
    "job": "penstock.jobs",
    "Job": "actors.job_worker.job",
    "JobLost": "actors.job_worker.job",
    "Bury": "actors.job_worker.job",
    "Retry": "actors.job_worker.job",
    "Order": "streams.messages",
    "OrderRefused": "actors.stores.store",
    "StoreDown": "actors.stores.store",
}
"""Public names by the module that has them, imported when they are asked for: `import penstock` stays quick."""


def _folder_of(name: str) -> Path | None:
    """Return where Python finds a top-level package, without importing it; None if it finds none."""
    loaded: ModuleType | None = sys.modules.get(name)
    spec = loaded.__spec__ if loaded is not None else find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).resolve().parent
    return next((Path(folder).resolve() for folder in spec.submodule_search_locations or ()), None)


def _check_packages() -> None:
    """Fail if one of our plainly named packages is hidden by somebody else's."""
    home = Path(__file__).resolve().parent.parent
    for name in ("actors", "streams", "platforms"):
        found = _folder_of(name)
        if found != home / name:
            where = f"finds {found} first; rename that folder or start Python elsewhere" if found else "finds none"
            raise ImportError(f"penstock needs its own package {name!r} in {home}, but Python {where}.", name=name)


_check_packages()


if TYPE_CHECKING:
    from actors.batch_worker.contexts import ItemContext, ItemResult, ReduceContext, SplitContext
    from actors.batch_worker.handler import Reject, Skip
    from actors.job_worker.job import Bury, Job, JobLost, Retry
    from actors.stores.store import OrderRefused, StoreDown
    from penstock.batch_sheets import write_sheet
    from penstock.batch_sources import SourceFailed, opensearch_rows, sql_rows
    from penstock.batches import batch, external_batch
    from penstock.client import Client, connect
    from penstock.client_jobs import new_job
    from penstock.held_jobs import HeldJob
    from penstock.jobs import job
    from penstock.outbox import Outbox
    from penstock.sinks import sink
    from streams.credentials import Credentials
    from streams.messages import Order


def __getattr__(name: str) -> object:
    """Public names that are not imported yet, and the version: finding it takes longer than the whole import."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("penstock")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
