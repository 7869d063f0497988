"""`python -m bench NAME [--json]` measures one claim, `python -m bench all` each in turn.

A claim is a module of this package with a `NAME` and `async def run() -> Result`. To add one, add its module. It starts
and stops what it needs and ends within a minute, or within its own `LIMIT_S`. The last line is the result: with
`--json` as one JSON object (for `all`, an object of them by name), else for people. The exit code is 1 if a target was
missed.
"""

import argparse
import asyncio
import pkgutil
import sys
from importlib import import_module
from pathlib import Path

import msgspec
import uvloop

import bench
from bench.harness import Result

LIMIT_S = 58
NO_CLAIMS = {"harness"}


def names() -> list[str]:
    """Return the claims that can be measured. A module is imported only when it is run."""
    found = {module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_")}
    return sorted(found - NO_CLAIMS)


async def measure(name: str) -> Result:
    """Run one claim. Raises TimeoutError if it does not end in time."""
    claim = import_module(f"bench.{name}")
    async with asyncio.timeout(getattr(claim, "LIMIT_S", LIMIT_S)):
        result = await claim.run()
    assert isinstance(result, Result)
    return result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m bench", description="Measure what is claimed.")
    parser.add_argument("name", choices=["all", *names()], help="which claim")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on the last line")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the chart of a claim that has one")
    given = parser.parse_args(arguments)
    results: dict[str, Result] = {}
    for name in names() if given.name == "all" else [given.name]:
        results[name] = uvloop.run(measure(name))
        if not given.json or given.name == "all":
            print(results[name].as_row(), flush=True)
    if given.svg is not None:
        import_module(f"bench.{given.name}").draw(results[given.name], given.svg)
    if given.json:
        print(_as_json(results) if given.name == "all" else results[given.name].as_json())
    return 0 if all(result.ok for result in results.values()) else 1


def _as_json(results: dict[str, Result]) -> str:
    return msgspec.json.encode(
        {name: msgspec.Raw(result.as_json().encode()) for name, result in results.items()}
    ).decode()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
