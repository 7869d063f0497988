"""The OpenAPI document against the gateway that serves it: generated requests, right and wrong ones, are answered as
the document says, and none is answered by a fault."""

import pytest

from penstock.api.http.openapi import document
from tests.support.gateway import SharedGateway

OPERATIONS = [
    f"{method.upper()} {path}"
    for path, operations in document()["paths"].items()
    for method in operations
    if not path.endswith("reservations")  # a stream has no end
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_answers_as_the_document_says(open_gateway: SharedGateway, operation: str) -> None:
    """By some 55 requests that cover each rule of the document, right and wrong ones, and 15 by chance."""
    _ask(open_gateway, operation, by_chance=15, is_covered=True)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("server", ["three"], indirect=True, scope="session")
def test_a_gateway_on_three_servers_answers_as_the_document_says(open_gateway: SharedGateway, operation: str) -> None:
    """What is checked before a server is asked has its test above."""
    _ask(open_gateway, operation, by_chance=5, is_covered=False)


def _ask(gateway: SharedGateway, operation: str, *, by_chance: int, is_covered: bool) -> None:
    from tests.support.document_cases import ask  # it says why it is imported here

    method, path = operation.split(" ", 1)
    ask(gateway.url, method, path, by_chance=by_chance, is_covered=is_covered)
