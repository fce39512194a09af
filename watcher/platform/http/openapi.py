"""Descriptions of routes for the OpenAPI document: operations, their parameters and responses.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
