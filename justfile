# Each chore, by one name. `just` lists them.

bin := ".venv/bin"
compile := "uv pip compile -q --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate --no-header pyproject.toml"

default:
    @just --list --unsorted

# make the environment for developing
setup:
    python3 -m venv .venv
    {{bin}}/pip install -q --require-hashes -r requirements-dev.lock
    {{bin}}/pip install -q --no-deps --no-build-isolation -e .

# all that CI asks of a change
check: lint types test

fmt:
    {{bin}}/ruff format .
    {{bin}}/ruff check --fix .

lint:
    {{bin}}/ruff format --check .
    {{bin}}/ruff check .
    {{bin}}/lint-imports

types:
    {{bin}}/mypy

# the quick loop: no socket, no server
unit:
    {{bin}}/pytest tests/unit

integration:
    {{bin}}/pytest tests/integration tests/contract

# everything, the way the README's second line runs it: six side by side, since most of it waits, the slowest files first; then the attacks, three at a time, since they judge by the clock; what fails beside others must pass five times alone (ADR 77)
test:
    {{bin}}/python -m tests.support.steady tests/unit tests/contract tests/integration -n 6 --dist loadfile --no-loadscope-reorder
    {{bin}}/python -m tests.support.steady tests/chaos -n 3 --dist loadfile

# the same without the attacks on another Python, in an environment of its own: `just test-on python3.13`
test-on python:
    {{python}} -m venv build/{{file_name(python)}}
    build/{{file_name(python)}}/bin/pip install -q --require-hashes -r requirements-dev.lock
    build/{{file_name(python)}}/bin/pip install -q --no-deps --no-build-isolation -e .
    build/{{file_name(python)}}/bin/python -m tests.support.steady tests/unit tests/contract tests/integration -n 6 --dist loadfile --no-loadscope-reorder

# the long kills; the short form of each runs in `test`
chaos seed="1":
    {{bin}}/pytest tests/chaos --long --seed {{seed}} --timeout 1800

# every search in its full size, some minutes of one core; `test` has a smaller one that finds each known bad rule
deep:
    {{bin}}/pytest tests/unit -m long --long --timeout 3600

# build the sdist, the wheel from it, and run the demo from the wheel in a fresh environment
package:
    rm -rf dist build
    {{bin}}/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" > /dev/null
    {{bin}}/python -m pip wheel -q --no-deps --no-build-isolation -w dist dist/*.tar.gz
    python3 -m venv build/fresh
    build/fresh/bin/python -m pip install -q --require-hashes -r requirements.lock
    build/fresh/bin/python -m pip install -q --no-deps dist/*.whl
    cd build/fresh && bin/penstock demo --kill --orders 2000 --data data

# renew docs/settings.md from the table of settings, and check all pages
docs:
    {{bin}}/python -m penstock.admin.settings_page > docs/settings.md
    {{bin}}/pytest tests/unit/docs tests/integration/docs

# every measured claim: ratio, target, verdict
bench:
    {{bin}}/python -m bench all

# a development server with the settings of nats/dev.conf
nats:
    {{bin}}/nats-server -c nats/dev.conf

# renew both locks (needs uv), the one for running with the versions of the one for developing; no addresses in them
lock:
    {{compile}} --extra dev -o requirements-dev.lock
    {{compile}} --extra build -c requirements-dev.lock -o requirements.lock
