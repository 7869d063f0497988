"""The credit of a client that has reservations pushed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.jobs.rules.job_answers import Reserved
from penstock.api.http.calls import GatewayState
from penstock.api.http.routes.push import Credit


async def test_what_is_settled_while_it_is_looked_at_gives_its_credit_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.api.http.routes.push.LOOK_S", 0.0)
    jobs = [cast(Reserved, SimpleNamespace(receipt=f"r{at}", topic="mail", id=f"{at}", attempt=1)) for at in range(2)]
    credit = Credit(2)

    async def peek(_topic: str, job_id: str) -> Any:
        """The client finishes the first one while the desk reads it."""
        if job_id == "0":
            credit.settled("r0")
        return SimpleNamespace(state="reserved", attempts=1)

    credit.hold(jobs)
    await credit.wait(cast(GatewayState, SimpleNamespace(desk=SimpleNamespace(peek=peek))))
    assert credit.left == 1
