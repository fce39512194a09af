"""The route of /openapi.json, which describes the routes of a process and itself.

The OpenAPI 3.1 document is generated from two sources, so that it cannot become outdated: the route table that requests
are matched against, and the msgspec types that bodies are encoded from. A test checks real responses against it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.core.publishing.wire import ErrorDocument
from watcher.platform.http.openapi import Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.responses import StaticBody, static_response
from watcher.platform.http.routing import JSON, Route


def description_route(
    routes: Iterable[Route], *, version: str, protected: bool, closed: Mapping[str, Sequence[str]] | None = None
) -> Route:
    """Describe `routes`; the other arguments are those of `document`."""
    everything = [*routes, _route(b"")]
    described = document(everything, version=version, protected=protected, closed=closed)
    return _route(msgspec.json.encode(described))


def _route(body: bytes) -> Route:
    return Route("/openapi.json", "openapi", partial(_constant, body=StaticBody.of(body, JSON)), operations.OPENAPI)


async def _constant(request: web.Request, captured: Sequence[str], *, body: StaticBody) -> web.Response:
    """Return a body that does not change while the process runs."""
    return static_response(request, body)


# --- the document ----------------------------------------------------------------------------------------------------

_ANY_OTHER = failure("any other error: invalid token, no acceptable content coding, or an internal error")


def document(
    routes: Iterable[Route],
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
        for method in route.methods:
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
    route: Route, method: str, schema_of: Mapping[Any, object], closed: Mapping[str, Sequence[str]]
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
