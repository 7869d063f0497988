"""The forms of batches: the options of Python callers are those of the message."""

from datetime import datetime
from typing import get_type_hints

from msgspec import Raw

from actors.runtime.rules.setting_values import Duration
from penstock.api.forms.batch import SubmitOptions
from streams.messages.batch import NewBatch


def test_the_options_of_python_callers_are_those_of_a_new_batch() -> None:
    fields = get_type_hints(NewBatch)
    assert fields["input"] is Raw
    given = ("task", "input", "file", "name", "traceparent", "nonce", "delay_ms", "due_ms")
    times = {"delay": Duration, "due": datetime | None}
    assert get_type_hints(SubmitOptions) == times | {name: fields[name] for name in fields if name not in given}
