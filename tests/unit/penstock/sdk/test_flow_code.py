"""Flows as an application declares them."""

from typing import Any

import pytest

import penstock
from actors.flow.flows import FlowLimits, checked_limits
from penstock.sdk import flows


@pytest.fixture(autouse=True)
def own_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows, "_flows", {})


class Sound:
    def split(self, ctx: Any) -> list[str]:
        return []

    def load(self, ctx: Any, shard: str, limit: int) -> list[Any]:
        return []

    def execute(self, ctx: Any, row: dict[str, int]) -> None: ...


def test_a_flow_is_known_with_its_settings() -> None:
    penstock.flow("pay", rate=10, every=("2s", "1m"), groups={"a": "odd"})(Sound)
    code = flows.flow_handlers()["pay"]
    assert code.flow.rate == 10.0
    wanted = {"every_ms": 2_000, "longest_ms": 60_000, "lead_ms": 3_000, "groups": {"a": "ODD"}}
    assert code.flow.limits == checked_limits(wanted, FlowLimits())
    assert (code.rows.topic, code.rows.most, code.rows.is_async) == ("flow-rows-pay", 1, False)


def test_the_same_key_is_served_once() -> None:
    penstock.flow("pay")(Sound)
    penstock.flow("pay")(Sound)
    with pytest.raises(penstock.UsageError, match="both serve it"):
        penstock.flow("pay")(type("Other", (Sound,), {}))


@pytest.mark.parametrize(
    ("key", "options", "why"),
    [
        ("a b", {}, "name it with"),
        ("x" * 51, {}, "name it with"),
        ("pay", {"rate": -1}, "rate: '-1': use 0.001 to"),
        ("pay", {"rate": True}, "rate: 'True'"),
        ("pay", {"rate": None}, "rate: None"),
        ("pay", {"rate": 1e-5}, "rate: '1e-05'"),
        ("pay", {"load_timeout": "31s"}, "load_timeout: 31000 ms"),
        ("pay", {"every": "10ms"}, "every_ms"),
        ("pay", {"every": "often"}, "every"),
        ("pay", {"every": ("1m", "2s")}, "longest"),
        ("pay", {"groups": {"a": "some"}}, "use ALL, ODD, EVEN"),
        ("pay", {"groups": {"any": 1}}, "is no label"),
        ("pay", {"loads": 0}, "loads: 0"),
        ("pay", {"rate": "1/m"}, "rate: '1/m': is text; write a number a second, as 1/60 for one a minute"),
        ("pay", {"concurrency": 0}, "concurrency: 0"),
        ("pay", {"attempts": 0}, "attempts: 0"),
        ("pay", {"most_in_flight": 0}, "most_in_flight"),
    ],
)
def test_bad_values_are_refused(key: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(penstock.UsageError, match=why):
        penstock.flow(key, **options)(type("Mine", (Sound,), {}))


def _without(name: str) -> type:
    return type("Mine", (), {each: getattr(Sound, each) for each in ("split", "load", "execute") if each != name})


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (_without("split"), "has no `split`"),
        (_without("load"), "has no `load`"),
        (_without("execute"), "needs either `execute"),
        (type("Both", (Sound,), {"execute_many": lambda self, contexts, rows: None}), "needs either `execute"),
        (type("Few", (Sound,), {"load": lambda self, ctx: []}), "load\\(ctx, shard, limit\\)"),
        (type("Made", (Sound,), {"__init__": lambda self, dsn: None}), "made without arguments"),
        (_without, "flow pay: _without is no class; write a class with `split`"),
    ],
)
def test_a_class_that_cannot_serve_is_refused(cls: Any, why: str) -> None:
    with pytest.raises(penstock.UsageError, match=why):
        penstock.flow("pay")(cls)
