"""Importing penstock is light, and fails clearly when its packages are hidden by somebody else's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(code: str, *flags: str, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if first is not None:
        environment["PYTHONPATH"] = str(first)
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        env=environment,
        cwd=first,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", ["actors", "streams", "platforms"])
@pytest.mark.parametrize("is_package", [True, False])
def test_a_foreign_package_in_front_is_named_in_one_sentence(tmp_path: Path, name: str, is_package: bool) -> None:
    (tmp_path / name).mkdir()
    if is_package:
        (tmp_path / name / "__init__.py").touch()
    child = run("import penstock", first=tmp_path)
    assert child.returncode == 1
    last = child.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: penstock needs its own package '{name}'")
    assert f"finds {tmp_path / name} first; rename that folder" in last


def test_a_foreign_module_that_is_already_imported_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "streams.py").write_text("x = 1")
    child = run("import streams, penstock", first=tmp_path)
    assert "needs its own package 'streams'" in child.stderr


def test_import_from_elsewhere_works(tmp_path: Path) -> None:
    assert run("import penstock; print(penstock.__version__)", first=tmp_path).stdout.strip()


def test_import_takes_few_modules_and_little_time() -> None:
    code = "import sys, penstock; print([m for m in ('nats', 'aiohttp', 'typer', 'anyio') if m in sys.modules])"
    took_us = []
    for _ in range(3):  # one of them at least shall not have been held up
        child = run(code, "-X", "importtime")
        assert child.stdout.strip() == "[]"
        took = re.search(r"\|\s+(\d+) \| penstock\n", child.stderr)
        assert took is not None
        took_us.append(int(took[1]))
    assert min(took_us) < 150_000


def test_every_public_name_is_there_and_what_it_needs_is_loaded_only_then() -> None:
    code = (
        "import sys, penstock; assert 'sqlalchemy' not in sys.modules\n"
        "print([name for name in penstock.__all__ if getattr(penstock, name, None) is None], penstock.Outbox.__name__)"
    )
    child = run(code)
    assert child.stdout.strip() == "[] Outbox", child.stderr


def test_the_process_that_reads_a_sheet_loads_no_more_than_it_needs() -> None:
    """One starts for each sheet. With these it takes three times as long to start, and twice the memory."""
    child = run("import sys, penstock.rows.sheets.child; print({'asyncio', 'nats', 'pyarrow'} & set(sys.modules))")
    assert child.stdout.strip() == "set()", child.stderr
