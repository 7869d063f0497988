"""Sends notices of troubles that stand until somebody acts: one for all that are new at a look, and one at the end.

In: what was found at each look, by kind. Out: notices. State: memory only. A leader that begins anew sends the notice
of what it finds once more.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from actors.runtime.notices.alerts import Alerts
from actors.runtime.rules.notices import Notice
from actors.runtime.rules.standing import Reported, Trouble, judge


class StandingKind(NamedTuple):
    """How troubles of a kind are reported. `again_ms`: how soon at most, while they only grow."""

    name: str
    source: str
    describe: Callable[[Sequence[Trouble]], str]
    what_to_do: str
    over: str
    again_ms: int = 0


class StandingNotices:
    """The notices of one leader. `webhook()`: where they go."""

    def __init__(self, alerts: Alerts, webhook: Callable[[], str]) -> None:
        self._alerts = alerts
        self._webhook = webhook
        self._reported: defaultdict[str, Reported] = defaultdict(Reported)
        self._on_the_way: set[Hashable] = set()
        self._count = 0

    def forget(self) -> None:
        """Begin anew: another node may have led, and reported, meanwhile."""
        self._reported.clear()
        self._on_the_way.clear()

    def see(self, kind: StandingKind, found: Mapping[str, Trouble], now_ms: int) -> None:
        """Take what was found of a kind at this look."""
        reported, report = judge(self._reported[kind.name], found, now_ms=now_ms, again_ms=kind.again_ms)
        self._reported[kind.name] = reported
        if report.is_over:
            self._submit(Notice(kind=f"{kind.name}_over", source=kind.source, text=kind.over, what_to_do=""))
        elif report.new:
            text, facts = kind.describe([found[key] for key in report.new]), {"count": len(report.new)}
            self._submit(
                Notice(kind=kind.name, source=kind.source, text=text, what_to_do=kind.what_to_do, facts={**facts})
            )

    def on_the_way(self) -> set[Hashable]:
        """Return the keys of the notices that were not sent yet."""
        self._on_the_way = {key for key in self._on_the_way if not self._alerts.is_sent(key)}
        return self._on_the_way

    def _submit(self, notice: Notice) -> None:
        self._count += 1
        key = ("standing", self._count)
        self._on_the_way.add(key)
        self._alerts.submit(key, notice, self._webhook)
