"""Requests that the OpenAPI document allows, and such that it forbids, made by schemathesis.

Schemathesis takes three seconds to import and ten to make the requests of all operations, in each process that collects
tests. So it is imported by the tests that use it while they run, and makes the requests of one operation at a time.
"""

from functools import cache
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test  # its plugin does so while it collects
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.api.http.openapi import document
from penstock.api.http.uploads import SHEETS

SESSION = requests.Session()
"""Keeps its connections: to open one takes a fifth of the CPU of a request."""
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
REPEATABLE = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@schemathesis.serializer(*SHEETS)
def _file(_context: object, value: object) -> bytes:
    """Return what is sent as a file: generated text, mostly no sheet at all."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@cache
def _schema(*, is_covered: bool) -> Any:
    schema = schemathesis.openapi.from_dict(document())
    schema.config.phases.coverage.enabled = is_covered
    return schema


def ask(url: str, method: str, path: str, *, by_chance: int, is_covered: bool) -> None:
    """Send requests of an operation, so many of them by chance, and check the answers. `is_covered`: also some 55 that
    cover each rule of the document."""
    schema = _schema(is_covered=is_covered)

    @settings(REPEATABLE, max_examples=by_chance)
    def one(case: schemathesis.Case[Any]) -> None:
        _hurry(case.body)
        _hurry(case.query)
        case.validate_response(case.call(base_url=url, session=SESSION), checks=CHECKS)

    build_operation_test(
        config=schema.config,
        operation=schema[path][method],
        test_func=one,
        given_kwargs={},
        feedback=FeedbackSources(),
    )()


def _hurry(options: Any) -> None:
    """Long polls are waited for elsewhere."""
    if isinstance(options, dict):
        for name in ("wait_ms", "timeout"):
            value = options.get(name)
            if isinstance(value, str) and value.isdecimal() and 0 < int(value) <= 30_000:
                options[name] = "1"  # of a query
            elif isinstance(value, int | float) and 0 < value <= 30_000:
                options[name] = 1
