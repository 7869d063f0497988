"""Until when a node counts on what it holds, by the last confirmation."""

import math
from functools import partial
from types import SimpleNamespace
from typing import cast

import anyio
import pytest

from actors.jobs.worker import hold as module
from actors.jobs.worker.hold import SAID_AGAIN_S, Hold
from streams.errors import OutcomeUnknown
from streams.link.connection import Connection


class Told:
    """A hold that was confirmed at `confirmed_s`, and what it called since."""

    def __init__(self, ack_wait_s: float, confirmed_s: float, *, is_clustered: bool = True) -> None:
        self.calls: list[str] = []
        self.is_heard = True
        self.client = SimpleNamespace(heard_s=math.inf)
        connection = SimpleNamespace(
            client=self.client, flush=self._flush, is_clustered=is_clustered, on_reconnect=lambda _: lambda: None
        )
        self.hold = Hold(
            cast(Connection, connection),
            ack_wait_s=ack_wait_s,
            pullers=list,
            doubt=lambda: self.calls.append("doubt"),
            lose=lambda: self.calls.append("lose") or 1,  # type: ignore[func-returns-value] # the number of jobs
            resume=lambda: None,
            confirm=lambda _timeout_s: pytest.fail("no turn is made"),
            is_heard=lambda: self.is_heard,
            confirmed=lambda: None,
            reconnected=lambda: None,
        )
        self.turns, self.has_failed = 0, anyio.Event()
        self.hold.confirmed_s = confirmed_s
        self.hold.is_cut = self.hold.is_in_doubt = False

    async def _flush(self, _timeout_s: float) -> None:
        self.turns += 1
        if self.turns == 2:
            self.has_failed.set()
        raise OutcomeUnknown("nobody replies", subject="")


def test_on_three_servers_what_is_not_begun_is_in_doubt_first_and_everything_lost_later() -> None:
    told = Told(15.0, 100.0)
    hold = told.hold
    assert (hold.may_begin(102.6), hold.is_sure(102.6), told.calls) == (True, True, [])
    assert (hold.may_begin(102.8), hold.is_sure(102.8), told.calls) == (False, True, ["doubt"])
    assert (hold.may_begin(113.4), hold.is_sure(113.4), told.calls) == (False, True, ["doubt"])
    assert (hold.is_sure(113.6), hold.is_sure(113.7), told.calls) == (False, False, ["doubt", "lose"])


def test_on_one_server_everything_is_lost_at_once() -> None:
    told = Told(3.0, 100.0)
    assert (told.hold.is_sure(102.6), told.hold.is_sure(102.8), told.calls) == (True, False, ["doubt", "lose"])


def test_what_is_not_begun_is_in_doubt_while_the_others_do_not_hear_us() -> None:
    """Two servers do not reach each other. The third one confirms what we hold, and our record is over."""
    told = Told(15.0, 100.0)
    assert told.hold.may_begin(100.5)
    told.is_heard = False
    assert (told.hold.may_begin(100.6), told.hold.is_sure(100.6), told.calls) == (False, True, ["doubt"])


def test_nothing_begins_while_the_server_was_not_heard_lately() -> None:
    told = Told(3.0, 100.0)
    told.client.heard_s = 100.4
    assert told.hold.may_begin(100.6)
    assert (told.hold.may_begin(100.7), told.hold.is_sure(100.7), told.calls) == (False, True, [])
    told.client.heard_s = 100.7
    assert told.hold.may_begin(100.8)


@pytest.mark.parametrize(("is_clustered", "waits_s"), [(True, SAID_AGAIN_S), (False, 0.0)], ids=["three", "one"])
async def test_what_comes_while_the_leaders_were_silent_lately_waits_for_who_may_have_it(
    is_clustered: bool, waits_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, now_s = Told(15.0, 100.0, is_clustered=is_clustered), 100.0
    monkeypatch.setattr(module, "monotonic_s", lambda: now_s)
    assert told.hold.until_acknowledged_s() == 0.0
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(told.hold.keep, task_status=anyio.TASK_STATUS_IGNORED))
        await told.has_failed.wait()
        tasks.cancel_scope.cancel()
    assert told.hold.until_acknowledged_s() == waits_s
    now_s += SAID_AGAIN_S
    assert told.hold.until_acknowledged_s() == 0.0
