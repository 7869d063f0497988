"""Until when a node counts on what it holds, by the last confirmation."""

import math
from types import SimpleNamespace
from typing import cast

import pytest

from actors.jobs.worker.hold import Hold
from streams.connection import Connection


class Told:
    """A hold that was confirmed at `confirmed_s`, and what it called since."""

    def __init__(self, ack_wait_s: float, confirmed_s: float) -> None:
        self.calls: list[str] = []
        self.is_heard = True
        self.client = SimpleNamespace(heard_s=math.inf)
        self.hold = Hold(
            cast(Connection, SimpleNamespace(client=self.client)),
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
        self.hold.confirmed_s = confirmed_s
        self.hold.is_cut = self.hold.is_in_doubt = False


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
