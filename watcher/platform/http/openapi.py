"""Generates the OpenAPI 3.1 document of the service.

The document is generated from two sources, so that it cannot become outdated: the route table that requests are matched
against, and the msgspec types that bodies are encoded from. A test checks real responses against it.

Pure: no I/O.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from watcher.core.publishing.wire import ErrorDocument
from watcher.model import MetricType, Operator
from watcher.platform.http.parameters import MISSING_RESPONSES

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A path or query parameter. `schema` is a JSON schema; a `repeatable` parameter may be given several times, its
    values combine by OR."""

    name: str
    description: str
    schema: Mapping[str, object] = field(default_factory=lambda: {"type": "string"})
    place: str = "query"
    repeatable: bool = False
    required: bool = False  # path parameters always are


@dataclass(frozen=True, slots=True)
class ResponseSpec:
    """The response of one HTTP status. `body` is a msgspec type, a tuple of types (any of them), or None for a body
    that is not JSON; then `media_type` is its media type, or "" without a body."""

    description: str
    body: Any = None
    media_type: str = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """The OpenAPI description of a route. `request` is the msgspec type of the request body, or None."""

    summary: str
    answers: Mapping[int, ResponseSpec]
    parameters: tuple[Parameter, ...] = ()
    description: str = ""
    request: Any = None

    @property
    def query_names(self) -> tuple[str, ...]:
        """The names of the query parameters."""
        return tuple(parameter.name for parameter in self.parameters if parameter.place == "query")


class Described(Protocol):
    """The attributes of a route that the OpenAPI document uses."""

    @property
    def path(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def operation(self) -> Operation: ...


TYPE = Parameter(
    "type", "only these metric types", {"type": "string", "enum": [kind.value for kind in MetricType]}, repeatable=True
)
OPERATOR = Parameter(
    "operator",
    "only these operators; AVG and STD by default. FORECAST: the upper bound of the next hours, for CPU and Memory",
    {"type": "string", "enum": [operator.value for operator in Operator]},
    repeatable=True,
)


MISSING = Parameter(
    "missing",
    "the response if nothing matches: an error (404), or an empty document (200) with the reason",
    {"type": "string", "enum": list(MISSING_RESPONSES), "default": MISSING_RESPONSES[0]},
)


def failure(description: str) -> ResponseSpec:
    """An error response; all errors share one body type."""
    return ResponseSpec(description, ErrorDocument)


_ANY_OTHER = failure("any other error: invalid token, no acceptable content coding, or an internal error")


def document(
    routes: Iterable[Described],
    *,
    version: str,
    protected: bool,
    closed: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, object]:
    """The complete OpenAPI document. `protected`: reads need the token too. `closed` are the values of parameters that
    depend on the settings, by name."""
    routes = list(routes)
    types = list(dict.fromkeys([ErrorDocument, *(kind for route in routes for kind in _types(route.operation))]))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    for component in components.values():
        if "description" in component:  # a docstring, whose indentation Python 3.11 keeps and 3.13 removes
            component["description"] = inspect.cleandoc(component["description"])
    schema_of = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        methods = [route.method, "HEAD"] if route.method == "GET" else [route.method]
        for method in methods:
            paths.setdefault(route.path, {})[method.lower()] = _operation(route, method, schema_of, closed or {})
    described: dict[str, object] = {
        "openapi": "3.1.0",
        "info": {
            "title": "load-watcher",
            "version": version,
            "summary": "Windows of real node load for schedulers and their operators",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if protected else [{}, {"token": []}],
    }
    return described


def _types(operation: Operation) -> list[Any]:
    found = [kind for answer in operation.answers.values() for kind in _bodies(answer)]
    return [*found, operation.request] if operation.request is not None else found


def _bodies(answer: ResponseSpec) -> tuple[Any, ...]:
    if answer.body is None:
        return ()
    return answer.body if isinstance(answer.body, tuple) else (answer.body,)


def _operation(
    route: Described, method: str, schema_of: Mapping[Any, object], closed: Mapping[str, Sequence[str]]
) -> dict[str, object]:
    operation = route.operation
    described: dict[str, object] = {
        "operationId": route.name if method != "HEAD" else f"{route.name}_head",
        "summary": operation.summary,
        "parameters": [_parameter(parameter, closed) for parameter in operation.parameters],
        "responses": {
            **{
                str(status): _answer(answer, schema_of, bodiless=method == "HEAD" or status == HTTPStatus.NOT_MODIFIED)
                for status, answer in sorted(operation.answers.items())
            },
            "default": _answer(_ANY_OTHER, schema_of, bodiless=method == "HEAD"),
        },
    }
    if operation.description:
        described["description"] = operation.description
    if operation.request is not None:
        content = {JSON: {"schema": schema_of[operation.request]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameter(parameter: Parameter, closed: Mapping[str, Sequence[str]]) -> dict[str, object]:
    schema: Mapping[str, object] = parameter.schema
    if parameter.name in closed:
        schema = {**schema, "enum": list(closed[parameter.name])}
    described: dict[str, object] = {
        "name": parameter.name,
        "in": parameter.place,
        "description": parameter.description,
        "required": parameter.required or parameter.place == "path",
    }
    if parameter.repeatable:
        schema = {"type": "array", "items": schema}
        described.update(style="form", explode=True)
    return {**described, "schema": schema}


def _answer(answer: ResponseSpec, schema_of: Mapping[Any, object], *, bodiless: bool) -> dict[str, object]:
    described: dict[str, object] = {"description": answer.description}
    if bodiless or not answer.media_type:
        return described
    bodies = [schema_of[kind] for kind in _bodies(answer)]
    if not bodies:
        schema: object = {"type": "string"}
    else:
        schema = bodies[0] if len(bodies) == 1 else {"anyOf": bodies}
    return {**described, "content": {answer.media_type: {"schema": schema}}}
