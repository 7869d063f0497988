"""The table of operations: each is in the document, and what the document says of types is what is decoded."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock.api.forms.jobs import ItemAnswer, JobToAdd
from penstock.api.http.openapi import document
from penstock.api.http.problems import RefusedRequest
from penstock.api.http.routes.jobs import jobs_of
from penstock.api.operations import OPERATIONS
from penstock.api.service.service import SERVICES
from penstock.sdk.calls import READS
from streams.messages.jobs import LARGEST_BODY


def test_the_document_has_each_operation_once() -> None:
    paths = document()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert sorted(found) == sorted((one.method, one.path) for one in OPERATIONS)
    names = [one.name for one in OPERATIONS]
    assert len(names) == len(set(names))


def test_a_service_has_the_endpoints_of_its_engine() -> None:
    endpoints = [one.endpoint for one in OPERATIONS if one.endpoint is not None]
    for engine, facts in SERVICES.items():
        assert sorted(one.name for one in endpoints if one.engine == engine) == sorted(facts.order.split())


def test_a_client_knows_which_endpoints_only_read() -> None:
    """Of those that are no GET, these two compute something."""
    found = {one.endpoint.name: one.method for one in OPERATIONS if one.endpoint is not None}
    assert {name for name, method in found.items() if method == "GET"} | {"check", "plan"} == READS


def test_every_reference_in_the_document_leads_somewhere() -> None:
    made = document()
    text = msgspec.json.encode(made).decode()
    names = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert names
    assert names <= made["components"]["schemas"].keys()


def test_the_name_of_a_rate_may_be_a_source() -> None:
    for path, methods in document()["paths"].items():
        for one in methods.values() if path.startswith("/v1/rates/") else ():
            [pattern] = [each["schema"]["pattern"] for each in one["parameters"] if each["name"] == "name"]
            assert all(re.fullmatch(pattern, name) for name in ("mail", "mall/s1"))
            assert not any(re.fullmatch(pattern, name) for name in ("", "a/", "/a", "a/b/c", "a.b"))


def test_only_what_tells_nothing_needs_no_token() -> None:
    open_paths = {
        path for path, methods in document()["paths"].items() for one in methods.values() if not one["security"]
    }
    assert open_paths == {"/health", "/ready"}
    assert all(one.verb or one.is_public or one.path == "/queue" for one in OPERATIONS)


def test_what_heeds_an_idempotency_key_says_so_and_nothing_else_does() -> None:
    """A client that is made of the document has to be able to send it."""
    told = {
        described["operationId"]
        for methods in document()["paths"].values()
        for described in methods.values()
        if any((one["in"], one["name"]) == ("header", "Idempotency-Key") for one in described["parameters"])
    }
    schedules = {f"{what}Schedule" for what in ("add", "pause", "resume", "trigger", "backfill", "remove")}
    batches = {f"{what}Batch" for what in ("submit", "start", "pause", "resume", "cancel", "retry", "delete")}
    settings = {*(f"change{what}" for what in ("Topic", "Task", "Flow", "Rate", "Routing")), "pauseFlow", "resumeFlow"}
    zones = {"drainZone", "restoreZone"}
    assert told == {"addJobs", "deleteJob", "kickJob", "command", "submitForm", *schedules, *batches, *settings, *zones}


def test_one_bad_job_of_a_list_spoils_no_other() -> None:
    items: list[object] = [{"id": str(number)} for number in range(1000)]
    items[500] = {"id": "500", "delay_ms": -1}
    found = jobs_of(msgspec.json.encode(items))
    assert [type(one) for one in found].count(ItemAnswer) == 1
    bad = found[500]
    assert isinstance(bad, ItemAnswer)
    assert (bad.status, bad.code, bad.what) == (422, "bad", "delay_ms")
    first = found[0]
    assert isinstance(first, JobToAdd)
    assert first.id == "0"


@pytest.mark.parametrize(
    ("item", "status", "code"),
    [
        (b'{"body": NaN}', None, ""),
        (b'{"body": 1e400}', 422, "bad"),
        (b'{"body": "\\ud800"}', None, ""),
        (b'{"body": "\xff"}', 400, "malformed"),
        (b'{"delay_ms": "30"}', 422, "bad"),
        (b'{"delay_ms": true}', 422, "bad"),
        (b'{"delay_ms": 1e18}', 422, "bad"),
        (b'{"dealy_ms": 5}', 422, "bad"),
        (b'{"body": "%b"}' % (b"x" * LARGEST_BODY), 413, "too_large"),
        (b"7", 422, "bad"),
    ],
)
def test_what_is_wrong_with_one_is_told_in_its_place(item: bytes, status: int | None, code: str) -> None:
    text = b'[{"id": "a"}, %b]' % item
    if status is None:
        with pytest.raises(RefusedRequest) as told:  # the list itself is not JSON
            jobs_of(text)
        assert told.value.problem.status == 400
        return
    good, bad = jobs_of(text)
    assert isinstance(good, JobToAdd)
    assert isinstance(bad, ItemAnswer)
    assert (bad.status, bad.code) == (status, code)


@pytest.mark.parametrize("text", [b"[]", b"[" + b",".join([b"{}"] * 1001) + b"]", b"[", b"{}", b"null", b""])
def test_what_is_no_list_of_jobs_is_refused_whole(text: bytes) -> None:
    with pytest.raises(RefusedRequest) as told:
        jobs_of(text)
    assert told.value.problem.status in (400, 422)


@given(some.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(text: bytes) -> None:
    status = 200
    try:
        jobs_of(b"[" + text + b"]")
    except RefusedRequest as told:
        status = told.problem.status
    assert status in (200, 400, 422)
