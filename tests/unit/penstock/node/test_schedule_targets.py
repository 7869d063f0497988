"""Which tasks and sources a refused schedule names."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from actors.batch.tasks import UnknownTask
from actors.fetch.sources import SourceKey
from actors.jobs.rules.cron import BadRecurrence
from actors.jobs.rules.schedule_record import Schedule
from penstock.node.jobs.schedule_targets import accepts


def _check(new: Any, *, has_file: bool) -> None:
    raise UnknownTask(new.task)


class _Known:
    def known(self) -> list[SourceKey]:
        return [SourceKey("mall", "shop1")]

    def __contains__(self, _: object) -> bool:
        return False


@pytest.mark.parametrize("name", ["shop1-count", "mall/shop1"])
def test_a_caller_is_told_of_the_nearest_one_only_if_it_may_see_it(name: str) -> None:
    batches: Any = SimpleNamespace(new=SimpleNamespace(check=_check))
    tasks: Any = SimpleNamespace(known=lambda: ["shop1-count"])
    sources: Any = _Known()
    accept = accepts(batches, tasks, sources)
    if "/" in name:
        wanted = Schedule(source=name + "x", every_ms=60_000, body=Raw(b'{"last":"2h"}'))
    else:
        wanted = Schedule(batch=name + "x", every_ms=60_000, body=Raw(b'{"input":1}'))
    with pytest.raises(BadRecurrence, match=f"did you mean {name}?"):
        accept(wanted, lambda _: True)
    with pytest.raises(BadRecurrence) as refused:
        accept(wanted, lambda each: each != name)
    assert f"{name}?" not in str(refused.value)
