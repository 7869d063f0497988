"""What is shown of a source's account and ledger: pure, from its records to plain values."""

from collections.abc import Mapping

import msgspec

from actors.fetch.rules.ledger import Ledger
from actors.runtime.secrets import HIDDEN, looks_secret
from penstock.times import time_text

__all__ = ["account_shown", "ledger_document"]


def account_shown(account: Mapping[str, str]) -> dict[str, str]:
    """Return account values for eyes. A value that looks like a secret written down by hand is hidden."""
    return {name: HIDDEN if looks_secret(name, value) else value for name, value in account.items()}


def ledger_document(ledger: Ledger) -> dict[str, object]:
    """Return a ledger in plain values with nothing left out, and its two marks readable beside their numbers."""
    return {
        **msgspec.structs.asdict(ledger),
        "frontier": time_text(ledger.frontier_ms),
        "watermark": time_text(ledger.watermark_ms),
        "open": [{"slice_id": held.slice_id, **msgspec.structs.asdict(held)} for held in ledger.open],
        "holes": [{"slice_id": hole.slice_id, **msgspec.structs.asdict(hole)} for hole in ledger.holes],
        "outage": None if ledger.outage is None else msgspec.structs.asdict(ledger.outage),
        "limit": None if ledger.limit is None else msgspec.structs.asdict(ledger.limit),
        "tuning": None if ledger.tuning is None else msgspec.structs.asdict(ledger.tuning),
        "passes": [msgspec.structs.asdict(each) for each in ledger.passes],
    }
