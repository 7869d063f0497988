"""A public class name means one thing in the tree."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("actors", "streams", "penstock", "platforms")
KEPT = {
    "Job": {
        "actors/jobs/worker/job.py": "public as `penstock.Job`",
        "streams/job_messages.py": "the stored record of the same job",
    },
    "Reservation": {
        "penstock/api/forms/jobs.py": "a schema of the OpenAPI document",
        "actors/jobs/reservations.py": "the same, in the store",
    },
    "Reservations": {
        "penstock/api/forms/jobs.py": "a schema of the OpenAPI document",
        "actors/jobs/reservations.py": "the part of the store that makes them",
    },
    "Settled": {
        "penstock/api/forms/jobs.py": "a schema of the OpenAPI document",
        "actors/jobs/reservations.py": "the same, in the store",
    },
    "Stale": {
        "penstock/errors.py": "public as `penstock.Stale`",
        "actors/jobs/reservations.py": "the store's answer behind that error",
    },
}
"""Names with two meanings that are alike: where each stands, and why it keeps the name."""


def test_a_public_class_name_has_one_meaning() -> None:
    places = defaultdict(set)
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(path.relative_to(ROOT).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {
        name: set(reasons) for name, reasons in KEPT.items()
    }
