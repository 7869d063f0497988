"""The two locks: one for running, one for developing, with the same versions, hashes, and no address."""

import re
import tomllib

from tests.support.docs import ROOT

PINNED = re.compile(r"^([a-z0-9.-]+)==(\S+)(?: ; .*)? \\$", re.MULTILINE)
NAME = re.compile(r"[A-Za-z0-9._-]+")


def pins(name: str) -> dict[str, str]:
    return dict(PINNED.findall((ROOT / name).read_text(encoding="utf-8")))


def names(requirements: list[str]) -> set[str]:
    return {found[0].lower().replace("_", "-") for each in requirements if (found := NAME.match(each))} - {"penstock"}


RUNNING, DEVELOPING = pins("requirements.lock"), pins("requirements-dev.lock")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_runs_is_what_was_tested() -> None:
    assert RUNNING.items() <= DEVELOPING.items()


def test_each_lock_has_what_the_project_asks_for_and_the_small_one_no_tools() -> None:
    needed, extras = names(PROJECT["dependencies"]), PROJECT["optional-dependencies"]
    assert needed | names(extras["build"]) <= RUNNING.keys()
    assert needed | names(extras["build"]) | names(extras["parquet"]) | names(extras["dev"]) <= DEVELOPING.keys()
    assert not RUNNING.keys() & (names(extras["dev"]) | names(extras["parquet"]))


def test_locks_hold_hashes_and_no_address() -> None:
    for name, found in (("requirements.lock", RUNNING), ("requirements-dev.lock", DEVELOPING)):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text
        assert not re.search(r"^--", text, re.MULTILINE), "no options such as --index-url"
        assert len(re.split(r"(?<!\\)\n", text.strip())) == len(found)
        assert all("--hash=sha256:" in entry for entry in re.split(r"(?<!\\)\n", text.strip()))
