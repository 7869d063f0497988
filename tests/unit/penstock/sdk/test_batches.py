"""The options of a task are those of its record, whoever serves it."""

from typing import Any, get_type_hints

import pytest

import penstock
from actors.batch.tasks import TaskLimits, TaskRecord
from penstock.sdk.batches import BatchOptions


def test_the_options_of_a_task_are_those_of_its_record() -> None:
    """Seconds are whole milliseconds in the record."""
    fields = get_type_hints(TaskRecord) | get_type_hints(TaskLimits)
    options = {
        f"{name[:-1]}ms" if name.endswith("_s") else name: int if name.endswith("_s") else type_
        for name, type_ in get_type_hints(BatchOptions).items()
    }
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
