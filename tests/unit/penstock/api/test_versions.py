"""Nodes and callers of two versions side by side, as while a cluster is upgraded."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from msgspec import Struct
from msgspec import inspect as types
from msgspec.structs import replace

from actors.batch.tasks import TaskLimits, TaskRecord
from actors.fetch.source_import import SourceRow
from actors.fetch.sources import SourceRecord
from actors.flow.flows import FlowLimits, FlowRecord
from actors.jobs.rules.due_crowds import MOST_LATER_MS
from actors.jobs.rules.job_rules import FORGOTTEN_MS
from penstock.api.operations import OPERATIONS
from streams.messages.batch import NewBatch
from streams.messages.flow import LoadShard
from streams.messages.jobs import JobRecord, NewJob, decode_job, encode_job

FORMS = {SourceRow}
"""What a file and an import have too. There an unknown field is a mistake."""


def structs(kind: Any, seen: set[type]) -> Iterator[type[Struct]]:
    """Return the structs that a value of this type may hold."""
    if isinstance(kind, types.StructType) and kind.cls not in seen:
        seen.add(kind.cls)
        yield kind.cls
        for field in kind.fields:
            yield from structs(field.type, seen)
    parts = [getattr(kind, name) for name in ("item_type", "key_type", "value_type") if hasattr(kind, name)]
    for part in [*parts, *getattr(kind, "types", ()), *getattr(kind, "item_types", ())]:
        yield from structs(part, seen)


def is_strict(struct: type[Struct]) -> bool:
    return struct.__struct_config__.forbid_unknown_fields


def test_a_caller_reads_an_answer_that_has_a_field_more() -> None:
    over_nats = [get_type_hints(one.endpoint.answer).get("return") for one in OPERATIONS if one.endpoint is not None]
    over_http = [answer for one in OPERATIONS for answer in one.gives.values()]
    kinds = [kind for answer in [*over_nats, *over_http] for kind in _each(answer)]
    found = {struct for kind in kinds for struct in structs(types.type_info(kind), set())}
    assert TaskLimits in found
    assert {struct for struct in found if is_strict(struct)} == FORMS


def _each(answer: Any) -> Sequence[Any]:
    """Return the types of an answer. A text is a media type."""
    if isinstance(answer, tuple):
        return answer
    if isinstance(answer, UnionType):
        return get_args(answer)
    return [] if isinstance(answer, str) else [answer]


@pytest.mark.parametrize(
    "record",
    [
        TaskRecord(task="t", limits=TaskLimits(item_rate=2.0), declared=TaskLimits(slots=3)),
        FlowRecord(flow="f", limits=FlowLimits(every_ms=1_000)),
        SourceRecord("mall", {"shop": "s1"}),
        LoadShard(flow="f", shard="1", limit=5),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_node_reads_what_a_later_version_wrote(record: Struct) -> None:
    assert (
        msgspec.json.decode(msgspec.json.encode(_with_more(msgspec.to_builtins(record))), type=type(record)) == record
    )


def test_a_node_of_the_version_before_reads_a_job_that_fires_with_a_crowd() -> None:
    fields = [(name, kind) for name, kind in get_type_hints(JobRecord).items() if name != "spread_ms"]
    known = {field.name: field for field in msgspec.structs.fields(JobRecord)}
    before = msgspec.defstruct(
        "JobBefore",
        [(n, k) if known[n].required else (n, k, known[n].default) for n, k in fields],
        kw_only=True,
        frozen=True,
        omit_defaults=True,
    )
    job = JobRecord(
        topic="t", id="1", due_ms=9, body=msgspec.Raw(b"1"), added_ms=1, ttr_ms=5, most_attempts=3, spread_ms=40_000
    )
    read = msgspec.json.decode(encode_job(job), type=before)
    assert {name: getattr(read, name) for name, _ in fields} == {name: getattr(job, name) for name, _ in fields}
    assert decode_job(msgspec.json.encode(read)) == replace(job, spread_ms=0), "its own writes are those of a plain job"


def test_an_earlier_node_ends_a_job_that_fires_with_a_crowd_for_long_enough() -> None:
    """It takes the schedule for one that fires up to `MOST_LATER_MS` sooner. What it writes of the end outlives that
    moment by three minutes."""
    assert MOST_LATER_MS < FORGOTTEN_MS


def _with_more(value: Any) -> Any:
    if not isinstance(value, dict) or not value or "shop" in value:
        return value
    return {**{name: _with_more(each) for name, each in value.items()}, "later": {"x": 1}}


def test_a_caller_sends_to_an_earlier_node_only_what_it_uses() -> None:
    assert msgspec.json.encode(NewJob(topic="t", delay_ms=5)) == b'{"topic":"t","delay_ms":5}'
    assert msgspec.json.encode(NewBatch(task="t")) == b'{"task":"t"}'
