"""Waits of milliseconds where production waits tenths of a second and more."""

import pytest

from actors.fetch.fetcher import decisions, session
from actors.fetch.settings import watch
from streams.backoff import Backoff


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "AGAIN", Backoff(growth="exponential", base_ms=10))
    monkeypatch.setattr(decisions, "UNKNOWN_AGAIN_S", 0.1)
    monkeypatch.setattr(watch, "GAP_S", 0.02)
