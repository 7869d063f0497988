"""The OpenAPI document against the gateway that serves it: generated requests, right and wrong ones, are answered as
the document says, and none is answered by a fault."""

from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from penstock.api.http.openapi import document
from penstock.api.http.uploads import SHEETS
from tests.support.gateway import SharedGateway


@schemathesis.serializer(*SHEETS)
def _file(_context: object, value: object) -> bytes:
    """Return what is sent as a file: generated text, mostly no sheet at all."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


SESSION = requests.Session()
"""Keeps its connections: to open one takes a fifth of the CPU of a request."""
schema = schemathesis.openapi.from_dict(document()).exclude(path_regex="reservations$")  # a stream has no end
few = schemathesis.openapi.from_dict(document()).exclude(path_regex="reservations$")
few.config.phases.coverage.enabled = False
settings.register_profile(
    "of the document", derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
REPEATABLE = settings.get_profile("of the document")


@schema.parametrize()
@settings(REPEATABLE, max_examples=15, phases=[Phase.explicit, Phase.generate])
def test_every_operation_answers_as_the_document_says(
    open_gateway: SharedGateway, case: schemathesis.Case[Any]
) -> None:
    """By some 55 requests that cover each rule of the document, right and wrong ones, and 15 by chance."""
    _ask(open_gateway, case)


@few.parametrize()
@settings(REPEATABLE, max_examples=5, phases=[Phase.explicit, Phase.generate])
@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
def test_a_gateway_on_three_servers_answers_as_the_document_says(
    open_gateway: SharedGateway, case: schemathesis.Case[Any]
) -> None:
    """What is checked before a server is asked has its test above."""
    _ask(open_gateway, case)


def _ask(open_gateway: SharedGateway, case: schemathesis.Case[Any]) -> None:
    _hurry(case.body)
    _hurry(case.query)
    response = case.call(base_url=open_gateway.url, session=SESSION)
    case.validate_response(
        response,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )


def _hurry(options: Any) -> None:
    """Long polls are waited for elsewhere."""
    if isinstance(options, dict):
        for name in ("wait_ms", "timeout"):
            value = options.get(name)
            if isinstance(value, str) and value.isdecimal() and 0 < int(value) <= 30_000:
                options[name] = "1"  # of a query
            elif isinstance(value, int | float) and 0 < value <= 30_000:
                options[name] = 1
