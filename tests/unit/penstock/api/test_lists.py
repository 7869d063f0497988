"""Every list at every door goes on where a page ended."""

from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

from penstock.api.operations import OPERATIONS, Operation
from penstock.cli.root import COMMANDS, command_named

LISTS = [one for one in OPERATIONS if one.name.startswith(("list", "export"))]
ASKED, TOLD = {"after", "cursor"}, {"next", "after", "cursor"}
LENGTH = {"limit", "most"}
WORDS = {"list", "topics", "tasks", "items", "nodes", "slices", "history", "count"}
"""Commands with these names list what there is."""
FIXED = {"settings list", "settings history", "adapter list"}
"""What these list does not grow with the work: the settings of one level, its last changes, the adapters that are
installed."""


def test_the_lists_are_known() -> None:
    assert {one.name for one in LISTS} >= {"listJobs", "listTopics", "listFlows", "listRates", "listZones", "listTasks"}
    assert all(one.method == "GET" for one in LISTS)


@pytest.mark.parametrize("one", LISTS, ids=lambda one: one.name)
def test_a_list_over_http_has_a_cursor(one: Operation) -> None:
    asked = set(one.query.__struct_fields__)  # type: ignore[attr-defined]  # it is a struct
    assert asked & ASKED
    assert "limit" in asked
    assert set(one.gives[200].__struct_fields__) & TOLD


@pytest.mark.parametrize("one", LISTS, ids=lambda one: one.name)
def test_a_list_over_nats_has_a_cursor(one: Operation) -> None:
    assert one.endpoint is not None
    assert one.endpoint.form is not None
    asked = set(one.endpoint.form.__struct_fields__)
    assert asked & ASKED
    assert asked & LENGTH
    told = get_type_hints(one.endpoint.answer)["return"]
    assert set(told.__struct_fields__) & TOLD


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield each command of a group, by its whole name."""
    for inner, found in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {inner}", found)
    if not hasattr(command, "commands"):
        yield name, command


FOUND = {
    name: command
    for entries in COMMANDS.values()
    for entry in entries
    for name, command in _commands(entry.name, command_named(entry.name))
}


@pytest.mark.parametrize("name", sorted(name for name in FOUND if name.split()[-1] in WORDS and name not in FIXED))
def test_a_command_that_lists_has_a_cursor(name: str) -> None:
    asked = {option for parameter in FOUND[name].params for option in parameter.opts}
    assert asked & {"--after", "--cursor"}
    assert asked & {"--limit", "--most"}
