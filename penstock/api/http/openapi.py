"""The OpenAPI document, built from the table of operations and their types."""

import re
from collections.abc import Iterable
from importlib.metadata import version
from inspect import cleandoc
from typing import Any

import msgspec

from actors.flow.rates_desk import KINDS
from penstock.api.forms.jobs import LONGEST_URL_ID, RATE_PATTERN, TOPIC_PATTERN
from penstock.api.http.heads import LONGEST_KEY
from penstock.api.http.problems import Problem
from penstock.api.http.replies import Reply, is_queue
from penstock.api.operations import OPERATIONS, Operation

__all__ = ["document"]

PUBLIC = (400, 403, 408, 414, 421, 429, 431, 500, 503, 504)
"""What any operation may answer."""
ALWAYS = (*PUBLIC, 401)
"""What any operation with a token may answer."""
ABOUT = "Delayed jobs, schedules and batches over HTTP. Times are milliseconds, moments are UTC by the server's clock."
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "a name for this call, the same in each repeat of it and in no other call: with it a repeat adds no "
    "second job, and does nothing to a later one",
    "schema": {"type": "string", "pattern": "^[!-~]+$", "maxLength": LONGEST_KEY},
}
REF = "#/components/schemas/{name}"
WHY = {
    400: "not HTTP or not JSON as it should be",
    401: "no valid token",
    403: "the token, or the page that sent it, may not do that",
    404: "no such job, schedule, batch, task or flow, or none of yours",
    408: "the request took too long to arrive",
    409: "one of this id is there, and another; or it cannot be done as things stand",
    413: "too large",
    414: "the URL is too long",
    415: "not JSON, or compressed",
    421: "another host is meant",
    422: "a value is wrong; `what` names it",
    429: "too many requests, or a quota is used up; Retry-After says when to come again",
    431: "too many or too large headers",
    500: "a fault of the gateway",
    503: "the broker is away or the node is busy; come again",
    504: "the broker did not answer: perhaps done; repeat it as it was",
    507: "the store is full",
}


def document() -> dict[str, Any]:
    """Return the document, version 3.1."""
    types = _types()
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    for schema in components.values():
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])  # before Python 3.13 it is indented
    schema_of = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock jobs and batches",
            "version": version("penstock"),
            "description": ABOUT,
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": cleandoc(operation.do.__doc__ or ""),
        "parameters": [
            *_path_parameters(operation.path),
            *_query_parameters(operation.query),
            *([KEY] if operation.takes_key else []),
        ],
        "responses": _responses(operation, schema_of),
        "security": [] if operation.is_public else [{"token": []}],
    }
    if operation.takes is not None or operation.files:
        taken = {} if operation.takes is None else {"application/json": {"schema": schema_of[_key(operation.takes)]}}
        described["requestBody"] = {
            "required": not operation.may_be_empty,
            "content": {
                **taken,
                **{kind: {"schema": {"type": "string", "format": "binary"}} for kind in operation.files},
            },
        }
    return described


def _responses(operation: Operation, schema_of: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, type_ in operation.gives.items():
        if isinstance(type_, str):
            content: dict[str, Any] = {type_: {"schema": {"type": "string"}}}
        else:
            schemas = [schema_of[_key(one)] for one in _each(type_)]
            content = {"application/json": {"schema": {"anyOf": schemas} if len(schemas) > 1 else schemas[0]}}
        found[str(status)] = {"description": "done", "content": content}
    problem = {"application/problem+json": {"schema": schema_of[_key(Problem)]}}
    if is_queue(operation.path):
        problem = {"application/json": {"schema": schema_of[_key(Reply)]}}
    for status in sorted({*operation.problems, *(PUBLIC if operation.is_public else ALWAYS)}):
        found[str(status)] = {"description": WHY[status], "content": problem}
    return found


def _path_parameters(path: str) -> Iterable[dict[str, Any]]:
    schemas = {
        "topic": {"type": "string", "pattern": TOPIC_PATTERN},
        "schedule": {"type": "string", "pattern": TOPIC_PATTERN},
        "task": {"type": "string", "pattern": TOPIC_PATTERN},
        "flow": {"type": "string", "pattern": TOPIC_PATTERN},
        "zone": {"type": "string", "pattern": TOPIC_PATTERN},
        "platform": {"type": "string", "pattern": TOPIC_PATTERN},
        "source": {"type": "string", "pattern": TOPIC_PATTERN},
        "kind": {"type": "string", "enum": list(KINDS)},
        "name": {"type": "string", "pattern": RATE_PATTERN},
        "batch_id": {"type": "string", "pattern": TOPIC_PATTERN},
        "job_id": {"type": "string", "minLength": 1, "maxLength": LONGEST_URL_ID},
    }
    for name in re.findall(r"\{(\w+)\}", path):
        yield {"name": name, "in": "path", "required": True, "schema": schemas[name]}


def _query_parameters(query: type) -> Iterable[dict[str, Any]]:
    properties = msgspec.json.schema_components([query])[1][query.__name__].get("properties", {})
    for name, schema in properties.items():
        plain = next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), schema)
        yield {"name": name, "in": "query", "schema": {key: plain[key] for key in plain if key != "default"}}


def _types() -> list[Any]:
    found: dict[str, Any] = {_key(Problem): Problem}
    for operation in OPERATIONS:
        for type_ in (operation.takes, *(one for given in operation.gives.values() for one in _each(given))):
            if type_ is not None and not isinstance(type_, str):
                found[_key(type_)] = type_
    return list(found.values())


def _each(given: Any) -> tuple[Any, ...]:
    """Return the types that one status may carry."""
    return given if isinstance(given, tuple) else (given,)


def _key(type_: Any) -> str:
    return str(type_)
