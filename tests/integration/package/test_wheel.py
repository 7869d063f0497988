"""The wheel, built from the sdist alone, holds all that runs. `just package` also runs the demo from it."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.docs import ROOT

PACKAGES = ("penstock", "actors", "streams", "platforms")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
SHARED = ".data/data/share/penstock/"


def build(kind: str, source: Path, out: Path) -> None:
    subprocess.run([sys.executable, "-c", BUILD, kind, str(out)], cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the names of the wheel's files."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"  # a copy: building writes beside the sources
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    build("build_sdist", source, folder)
    [sdist] = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build("build_wheel", folder / sdist.name.removesuffix(".tar.gz"), folder)
    [built] = folder.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_every_file_of_the_packages_is_in_the_wheel(wheel: set[str]) -> None:
    there = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - wheel == set()
    assert {f"{package}/py.typed" for package in PACKAGES} <= wheel
    assert "platforms/plain.toml" in wheel


def test_the_servers_files_are_in_the_wheel_and_no_test_is(wheel: set[str]) -> None:
    shared = {name.partition(SHARED)[2] for name in wheel if SHARED in name}
    assert shared == {str(path.relative_to(ROOT)) for path in (ROOT / "nats").rglob("*.conf")}
    assert {name.partition("/")[0] for name in wheel if name.endswith(".py")} == set(PACKAGES)
