"""Those who watch for standstills of a process share one look at the clock."""

import pytest

from streams.link import standstill
from streams.link.standstill import Standstill

pytestmark = pytest.mark.anyio


async def test_who_begins_to_watch_beside_another_does_not_hide_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(standstill, "monotonic_s", lambda: now_s)
    both = Standstill()
    with both.watching():
        now_s = 2.5
        with both.watching():
            assert both.lasted_s() == 2.5
        now_s = 6.0
        assert both.lasted_s() == 3.5


async def test_the_time_in_which_nobody_watched_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(standstill, "monotonic_s", lambda: now_s)
    both = Standstill()
    with both.watching():
        pass
    now_s = 100.0
    with both.watching():
        assert both.lasted_s() == 0.0
