"""Log lines: one a record, nothing forged, nothing secret, and no trouble when the log cannot be written."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.runtime.logs import acting_as, fields
from actors.runtime.secrets import Secret
from penstock.node.logs import DescriptorHandler, Form, json_line, set_up_logs, text_line


def record(name: str = "slice.taken", /, **facts: object) -> logging.LogRecord:
    made = logging.LogRecord("actors.fetch.fetcher", logging.INFO, __file__, 1, name, None, None)
    for key, value in fields(**facts).items():
        setattr(made, key, value)
    return made


def line(made: logging.LogRecord) -> dict[str, Any]:
    found = json.loads(json_line(made))
    assert isinstance(found, dict)
    return found


def test_a_record_is_one_json_object_with_its_facts_beside_the_event() -> None:
    found = line(record(slice_id="t1-0-60", rows=3, windows=(1, 2)))
    assert found["event"] == "slice.taken"
    assert found["level"] == "info"
    assert found["at"].endswith("Z")
    assert (found["slice_id"], found["rows"], found["windows"]) == ("t1-0-60", 3, [1, 2])


def test_who_acts_is_added_from_context() -> None:
    with acting_as("fetcher"):
        assert line(record())["actor"] == "fetcher"
    assert "actor" not in line(record())


def test_a_fact_cannot_pose_as_the_event() -> None:
    found = line(record(event="other", level="debug"))
    assert (found["event"], found["level"]) == ("slice.taken", "info")
    assert (found["_event"], found["_level"]) == ("other", "debug")


@given(st.text(st.characters(exclude_categories=[])))
def test_no_text_can_forge_a_line(text: str) -> None:
    for form in (json_line, text_line):
        assert form(record(reason=text)).isprintable()
        assert form(record(f"event {text}")).isprintable()


def test_text_from_outside_is_kept_as_it_was() -> None:
    assert line(record(reason='a\nb\x1b[31m"c"\x85'))["reason"] == 'a\nb\x1b[31m"c"\x85'


def test_secrets_are_hidden_by_value_and_by_name() -> None:
    secret = Secret("canary-in-the-mine")
    made = record(
        "platform.failed", reason="401 for canary-in-the-mine", api_key="abc", nested={"password": "x", "n": 1}
    )
    try:
        raise RuntimeError(f"key {secret.reveal()} refused")
    except RuntimeError:
        made.exc_info = sys.exc_info()
    for shown in (json_line(made), text_line(made)):
        assert "canary" not in shown
        assert "abc" not in shown
        assert "RuntimeError: key *** refused" in shown
    assert line(made)["nested"] == {"password": "***", "n": 1}


def test_a_long_text_is_cut() -> None:
    assert len(line(record(body="x" * 1_000_000))["body"]) < 10_000


def test_a_trace_stands_indented_under_its_line() -> None:
    made = record()
    try:
        raise ValueError("odd")
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *rest = text_line(made).split("\n")
    assert "slice.taken" in first
    assert rest
    assert all(part.startswith("    ") for part in rest)


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_value_that_cannot_be_shown_costs_its_line_only(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+b", buffering=0) as file:
        handler = DescriptorHandler(file.fileno(), json_line)
        handler.emit(record(odd=Unshowable()))
        handler.emit(record())
        file.seek(0)
        assert [json.loads(part)["event"] for part in file] == ["log.unformed", "slice.taken"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        handler = DescriptorHandler(descriptor, json_line)
        handler.emit(record())
        assert handler.lost == 1
    finally:
        os.close(descriptor)


SERVICE = """
import logging, sys
from penstock.cli.root import guard_descriptors
from penstock.node.logs import set_up_logs
guard_descriptors()
set_up_logs()
for n in range(3):
    logging.getLogger("service").warning("still.here")
open(sys.argv[1], "w").write("went on")
"""


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2>&1 | head -c 1"])
def test_a_service_goes_on_when_its_log_cannot_be_written(tmp_path: Path, stderr: str) -> None:
    done = tmp_path / "done"
    (tmp_path / "service.py").write_text(SERVICE)
    command = f'"{sys.executable}" "{tmp_path}/service.py" "{done}" {stderr}'
    assert subprocess.run(["sh", "-c", command], timeout=30, check=False).returncode == 0
    assert done.read_text() == "went on"


@pytest.mark.parametrize(("form", "shown"), [("text", {"warned"}), ("json", {"warned", "happened"})])
def test_people_get_warnings_and_machines_what_happened_too(tmp_path: Path, form: Form, shown: set[str]) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with (tmp_path / "log").open("w+b", buffering=0) as file:
            set_up_logs("auto", form, descriptor=file.fileno())
            logging.getLogger("any").info("happened")
            logging.getLogger("any").warning("warned")
    finally:
        root.handlers[:], root.level = handlers, level
    told = (tmp_path / "log").read_text()
    assert {event for event in ("warned", "happened") if event in told} == shown


def test_set_up_replaces_what_was_there(tmp_path: Path) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        with (tmp_path / "log").open("w+b", buffering=0) as file:
            set_up_logs("warning", descriptor=file.fileno())
            set_up_logs("warning", descriptor=file.fileno())
            logging.getLogger("any").info("not.this")
            logging.getLogger("any").warning("once", extra=fields(n=1))
            file.seek(0)
            assert [json.loads(part)["event"] for part in file] == ["once"]
    finally:
        logging.captureWarnings(False)
        logging.raiseExceptions = True
        root.handlers[:] = handlers
        root.setLevel(level)
