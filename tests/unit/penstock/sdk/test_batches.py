"""The options of a task are those of its record, whoever serves it."""

from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

import penstock
from actors.batch.tasks import TaskLimits, TaskRecord
from actors.runtime.rules.setting_values import Duration
from penstock.errors import UsageError
from penstock.sdk.batches import SPANS, BatchOptions, _handlers, task_handlers


def test_the_options_of_a_task_are_those_of_its_record() -> None:
    """Lengths of time are whole milliseconds in the record."""
    fields = get_type_hints(TaskRecord) | get_type_hints(TaskLimits)
    options = {name: type_ for name, type_ in get_type_hints(BatchOptions).items() if not name.endswith("_s")}
    options |= {f"{name}_ms": int for name in SPANS if options.pop(name) == Duration}
    options["is_streaming"] = options.pop("streaming")
    assert options.pop("slots") == penstock.Slots | None  # one option for three limits
    own = ("task", "app", "limits", "declared", "has_check", "is_sheet", "executor", "slots", "slot_key", "when_full")
    assert options == {name: fields[name] for name in fields if name not in own}


@pytest.mark.parametrize("option", ["item_rat", "retry_base_ms", "executor"])
def test_an_option_that_no_task_has_is_refused(option: str) -> None:
    unknown: Any = {option: 5}
    with pytest.raises(TypeError, match=option):
        penstock.batch("mail", **unknown)
    with pytest.raises(TypeError, match=option):
        penstock.external_batch("mail", "nats:place", **unknown)


def test_a_length_of_time_of_a_task_has_its_unit_and_other_spellings_hear_so() -> None:
    for stated in ({"item_timeout": "90s"}, {"item_timeout": 90}, {"item_timeout_s": 90}, {"item_timeout_s": "90s"}):
        options: Any = {**stated, "retry_cap": "5m"}

        @penstock.batch("spelled", **options)
        class Spelled:
            def map(self, item: int) -> int:
                return item

        record = task_handlers()["spelled"].record
        assert (record.item_timeout_ms, record.retry_cap_ms) == (90_000, 300_000)
        del _handlers["spelled"]
    wrong: Any = {"retry_cap": "5 min"}
    with pytest.raises(UsageError, match="retry_cap: '5 min' is not a duration; write a text with its unit"):
        penstock.external_batch("spelled", "nats:penstock.ask.app.spelled", **wrong)
    twice: Any = {"retry_cap": 5, "retry_cap_s": 5}
    with pytest.raises(UsageError, match="retry_cap and retry_cap_s: give one of them"):
        penstock.external_batch("spelled", "nats:penstock.ask.app.spelled", **twice)


@pytest.mark.parametrize("step", ["split", "map", "reduce"])
def test_a_step_that_yields_is_refused(step: str) -> None:
    """Its items would never be committed, and the batch be done with none."""

    def yields(_self: object, given: object) -> Iterator[object]:
        yield given

    cls = type("Yielding", (), {"map": lambda _self, item: item, step: yields})
    with pytest.raises(UsageError, match=f"task yields: Yielding.{step} yields, and nobody takes what it yields"):
        penstock.batch("yields")(cls)


def test_a_function_is_no_task() -> None:
    def label(item: object) -> object:
        return item

    serve: Any = penstock.batch("label")
    with pytest.raises(UsageError, match=r"task label: .*label is no class; write a class with `map\(self, item\)`"):
        serve(label)


@pytest.mark.parametrize("decorator", [penstock.batch, penstock.flow, penstock.zoned, penstock.job])
def test_a_decorator_without_a_name_is_refused(decorator: Any) -> None:
    """It would take the code for the name, and nothing would be declared."""
    with pytest.raises(UsageError, match=r"name its \w+: @penstock"):

        @decorator
        class Nameless:
            pass
