"""Validators of JSON Schema. Importing jsonschema parses grammars for a second, so the first use imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def draft7(schema: Mapping[str, Any], **options: Any) -> Any:
    """A `jsonschema.Draft7Validator`."""
    from jsonschema import Draft7Validator

    return Draft7Validator(schema, **options)


def draft202012(schema: Mapping[str, Any]) -> Any:
    """A `jsonschema.Draft202012Validator`."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema)


def check_openapi(document: Mapping[str, Any]) -> None:
    """Raise an error unless the document follows the schema and the rules of OpenAPI 3.1."""
    from openapi_spec_validator import OpenAPIV31SpecValidator

    OpenAPIV31SpecValidator(document).validate()
