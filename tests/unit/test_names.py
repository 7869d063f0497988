"""A public class name means one thing in the tree, and each name is imported from the module that defines it."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("actors", "streams", "penstock", "platforms")


def test_a_public_class_name_has_one_meaning() -> None:
    places = defaultdict(set)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_only_penstock_has_lists_of_public_names() -> None:
    """Users import from `penstock`. Anywhere else `__all__` would let a module pass on the names of another."""
    packages = ("actors", "streams", "platforms", "bench", "tests")
    assert [
        path.relative_to(ROOT).as_posix()
        for path in (path for package in packages for path in (ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == "__all__"
    ] == []
