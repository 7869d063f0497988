"""No message that is lost, late or doubled, and no change of governor or rate, takes a key above its rate."""

import pytest
from msgspec.structs import replace

from actors.flow.rules.governing import Governing, Holding
from actors.runtime.rules.leased import LeasedShares
from streams.messages.rates import KeyAsk, SharesDealt
from tests.unit.flow.governor_search import GovernorRules, search, walk

FATES: tuple[tuple[bool, int | None], ...] = ((False, 0), (False, None), (True, 0), (False, 1), (False, 4))
"""Of a request: whether it hands back, and by how many steps it is late. `None`: it is lost."""
WORST = GovernorRules(fates=FATES, replies=(0, 1, None), is_lazy=True, steps=99)


def test_whatever_happens_in_a_second_and_a_half_nothing_goes_above_the_rate() -> None:
    """All 10,173 worlds. Four steps are 28,288."""
    found = search(GovernorRules(is_lazy=True, steps=3))
    assert found.violation == []
    assert found.states > 10_000


@pytest.mark.parametrize(
    "rules",
    [
        WORST,
        WORST._replace(has_successor=True),
        WORST._replace(rates=(2.0, 3.0, 2.0)),
        WORST._replace(rates=(2.9, 3.5, 2.2)),
    ],
    ids=["one governor", "a successor", "the rate changes", "the rate is no whole number"],
)
def test_no_way_through_half_a_minute_goes_above_the_rate(rules: GovernorRules) -> None:
    for seed in range(15):
        assert walk(rules, seed, moves=120) == []


class SpentAfterItsEnd(LeasedShares):
    """Goes on spending a share that was not renewed."""

    def share(self, key: str, now_s: float) -> float:
        lease = self._keys.get(key)
        return lease.share if lease is not None else 0.0


class WithoutFence(LeasedShares):
    """Takes the reply to any request."""

    def hear(self, reply: SharesDealt, sent_s: float, now_s: float) -> float | None:
        self._number, number = reply.number, self._number
        again_s = super().hear(reply, now_s, now_s)
        self._number = number
        return again_s


class ForgetsTheLastSecond(LeasedShares):
    """Reports its share, and not what it spent before."""

    def _ask(self, key: str, *rest: object) -> KeyAsk:
        asked = super()._ask(key, *rest)  # type: ignore[arg-type] # passed on as it came
        return replace(asked, held=asked.share)


class WithoutWaiting(Governing):
    """Deals at once after its election."""

    def __init__(self, token: int, since_s: float) -> None:
        super().__init__(token, since_s - 60)


class RaisesTooEarly(Governing):
    """Gives a node its part before the others have given way."""

    def _most(self, key: KeyAsk, target: float, free: float, before: Holding, now_s: float) -> float:
        return target


class TrustsItsReply(Governing):
    """Takes a lower share for accepted once it has sent it."""

    def _deal(self, ask, key, rate, now_s):  # type: ignore[no-untyped-def] # as it is
        dealt = super()._deal(ask, key, rate, now_s)
        book = self._books[key.key]
        book.hold(ask.run, book.holdings[ask.run]._replace(bound=dealt[0].most))
        return dealt


@pytest.mark.parametrize(
    ("rules", "first"),
    [
        (WORST._replace(leased=SpentAfterItsEnd), 35),
        (WORST._replace(leased=WithoutFence), 39),
        (WORST._replace(leased=ForgetsTheLastSecond), 20),
        (WORST._replace(governing=WithoutWaiting, has_successor=True), 12),
        (WORST._replace(governing=RaisesTooEarly), 0),
        (WORST._replace(governing=TrustsItsReply), 11),
    ],
    ids=[
        "spent after its end",
        "no fence",
        "no last second",
        "a hasty successor",
        "raised too early",
        "not confirmed",
    ],
)
def test_each_known_mistake_is_found(rules: GovernorRules, first: int) -> None:
    """`first`: the seed that finds it at present. When the code changes, another one does."""
    assert any(walk(rules, seed % 100, moves=200) for seed in range(first, first + 100))
