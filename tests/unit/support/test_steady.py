"""A test that fails beside others counts as passed if it passes five times alone, and as failed otherwise."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.steady import IN_MEMORY, has_room

ROOT = Path(__file__).parents[3]
NO_OTHER_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin"}
COUNTING = """
from pathlib import Path

def counted():
    runs = Path("runs")
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    return len(runs.read_text())
"""


@pytest.mark.parametrize(
    ("tests", "code", "runs"),
    [
        pytest.param("def test_one():\n    assert counted() > 1", 0, 6, id="the first time only"),
        pytest.param("def test_one():\n    assert counted() not in (1, 4)", 1, 4, id="now and then"),
        pytest.param("def test_one():\n    assert counted() < 1", 1, 2, id="each time"),
        pytest.param("def test_one():\n    assert counted()", 0, 1, id="never"),
        pytest.param(
            "import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_one(n):\n    assert counted() > 6",
            1,
            6,
            id="too many at once",
        ),
        pytest.param("counted()\nimport no_such_module", 2, 1, id="no test at all"),
    ],
)
def test_what_failed_runs_again_alone(tmp_path: Path, tests: str, code: int, runs: int) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(f"{COUNTING}\n{tests}\n")
    ended = steady(tmp_path)
    assert (ended.returncode, len((tmp_path / "runs").read_text())) == (code, runs), ended.stdout
    is_unsteady = runs > 1 and code == 0
    assert ("Not steady" in ended.stdout) == is_unsteady
    assert ended.stdout.endswith("test_it.py::test_one\n") == is_unsteady


def test_a_module_is_compiled_once_though_nothing_may_be_written_beside_it(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import module\n\ndef test_one():\n    pass\n")
    (tmp_path / "module.py").write_text("")
    assert steady(tmp_path, PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX="").returncode == 0
    assert [path.parent.name for path in tmp_path.rglob("module.*.pyc")] == [tmp_path.name]
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.parametrize("given", ["", "here"])
def test_files_are_in_memory_where_it_has_room_and_nobody_names_another_place(
    tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    if not given and not has_room(IN_MEMORY):
        pytest.skip(f"{IN_MEMORY} has no room for a run")
    wanted = tmp_path / given if given else IN_MEMORY
    wanted.mkdir(exist_ok=True)
    (tmp_path / "test_it.py").write_text(
        f"import tempfile\n\ndef test_one():\n    assert tempfile.gettempdir() == {str(wanted)!r}\n"
    )
    ended = steady(tmp_path, **({"TMPDIR": str(wanted)} if given else {}))
    assert ended.returncode == 0, ended.stdout


def steady(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.support.steady", "-q"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **NO_OTHER_PLUGINS, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
