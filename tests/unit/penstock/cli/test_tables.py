"""Every table of the command line fits 80 columns with ordinary cells, in a pipe as well, where nothing is folded."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from io import StringIO

import pytest

from penstock import cli
from penstock.cli.terminal.output import Output

WIDTH = 80
MOMENT, NAME, NUMBER, WORD = "2026-11-25 01:00:00Z", "prizes-eu", "123,456", "running"
CELLS = {
    "schedule": "mail/nightly",
    "when": "30 2 * * * Europe/Berlin",
    "next": "11-25T01:00:00Z",
    "name": "source/mall/s1",
    "source": "mall/shop-0001",
    "since": MOMENT,
    "created": MOMENT,
    "watermark": MOMENT,
    "due": f"{MOMENT} (in 5m)",
    "loaded": "1200 of 1200",
    "last\nround": "01:00:00Z",
    "round": "01:00:00Z",
    "rate": "8,000/s",
    "application": "shop.flows",
    "every": "1s",
    "slots of": "flow/prizes",
    "key": "merchant-17",
    "by": "n1 1, n2 1",
    "state": WORD,
    "what it is": 20 * "words ",
    "why that default": 20 * "words ",
    "why": 20 * "words ",
    "body": 20 * "words ",
    **dict.fromkeys(("ms", "shards", "short", "failed", "silent"), "1,000"),
    **dict.fromkeys(("id", "task", "flow", "topic", "node", "zone", "job", "setting", "platform"), NAME),
}
"""Ordinary cells, by their heading. All others are numbers."""
PIPED = (
    "schedules._list",
    "flows._list",
    "flows._show",
    "batch._tasks",
    "rates._list",
    "rates._show",
    "job_list._topics",
)
"""Tables that fit in a pipe as well. The others have columns of text, or too many of them: `--json` is for programs."""


class Tables(ast.NodeVisitor):
    """The headings of the tables that a module prints."""

    def __init__(self, module: str) -> None:
        self.found: list[tuple[str, list[str]]] = []
        self._module = importlib.import_module(module)
        self._known: dict[str, ast.expr] = {}
        self._function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._function, self._known = self._function, node.name, {}
        self.generic_visit(node)
        self._function = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # the library's name

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Name):
            self._known[node.targets[0].id] = node.value
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "table"
            and ast.unparse(node.func).endswith("out.table")
        ):
            self.found.append((f"{self._module.__name__}.{self._function}", list(self._headings(node.args[0]))))
        self.generic_visit(node)

    def _headings(self, node: ast.expr) -> Iterator[str]:
        match node:
            case ast.List(elts=elements):
                for each in elements:
                    yield from self._headings(each)
            case ast.Constant(value=str(text)):
                yield text
            case ast.Starred(value=ast.Name(id=name)):
                yield from getattr(self._module, name)
            case ast.Name(id=name):
                yield from self._headings(self._known[name])
            case _:
                yield f"?{ast.unparse(node)}"


def tables() -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for module in sorted(pkgutil.walk_packages(cli.__path__, "penstock.cli."), key=lambda module: module.name):
        visitor = Tables(module.name)
        visitor.visit(ast.parse(inspect.getsource(importlib.import_module(module.name))))
        found += visitor.found
    return found


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def printed(columns: list[str], file: StringIO) -> list[str]:
    cells = [CELLS.get(column, NUMBER) for column in columns]
    Output(is_json=False, file=file).table(columns, [cells, cells])
    return file.getvalue().splitlines()


KNOWN = [(name, columns) for name, columns in tables() if not columns[0].startswith("?")]
"""The others print a mapping whose keys come from elsewhere."""


@pytest.mark.parametrize(("name", "columns"), KNOWN, ids=[name for name, _ in KNOWN])
def test_a_table_fits_a_terminal_of_80_columns(name: str, columns: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.setenv("TERM", "dumb")
    lines = printed(columns, Terminal())
    texts = [line for line in lines if 20 * "words " not in line]  # a terminal folds those itself
    assert max(map(len, texts)) <= WIDTH, "\n".join(lines)
    if name.endswith(PIPED):
        lines = printed(columns, StringIO())
        assert max(map(len, lines)) <= WIDTH, "\n".join(lines)


def test_the_tables_are_found() -> None:
    names = [name for name, _ in KNOWN]
    assert len(names) >= 30
    assert len(tables()) - len(KNOWN) == 2
    assert all(any(name.endswith(piped) for name in names) for piped in PIPED)
