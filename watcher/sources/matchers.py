"""Parsing and formatting of PromQL label matchers: `provider.matchers`."""

from __future__ import annotations

import re
from typing import Any

from watcher.core.config import values
from watcher.core.config.values import ValueKind
from watcher.core.queries.matchers import Matcher, parse_matchers

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def _read_matchers(value: Any) -> tuple[Matcher, ...]:
    try:
        if isinstance(value, dict):
            return tuple(_equal(label, text) for label, text in value.items())
        if isinstance(value, list):
            return _distinct_matchers([_one_matcher(text) for text in value])
    except ValueError as error:  # includes Unfit, a subclass
        raise values.InvalidValue(str(error)) from None
    raise values.InvalidValue


def _read_matchers_text(text: str) -> tuple[Matcher, ...]:
    try:
        return _distinct_matchers(list(parse_matchers(text)))
    except ValueError as error:
        raise values.InvalidValue(str(error)) from None


def _equal(label: str, text: object) -> Matcher:
    if not isinstance(text, str):
        raise values.InvalidValue(f"the value of {label} must be text; given {values.describe(text)}")
    return Matcher(label, "=", text)


def _one_matcher(text: object) -> Matcher:
    matchers = parse_matchers(text) if isinstance(text, str) else ()
    if len(matchers) != 1:
        raise values.InvalidValue(f"each item of the list must be text with one matcher; given {values.describe(text)}")
    return matchers[0]


def _distinct_matchers(matchers: list[Matcher]) -> tuple[Matcher, ...]:
    if twice := next((each for each in matchers if matchers.count(each) > 1), None):
        raise values.InvalidValue(f"{twice} is listed twice")
    return tuple(matchers)


def _write_matchers(matchers: tuple[Matcher, ...]) -> str:
    if len({each.label for each in matchers if each.operator == "="}) < len(matchers):
        return "[" + ", ".join(values.write_text(str(each)) for each in matchers) + "]"
    pairs = ", ".join(f"{_toml_key(each.label)} = {values.write_text(each.value)}" for each in matchers)
    return f"{{ {pairs} }}" if pairs else "{}"


def _toml_key(label: str) -> str:
    return label if _BARE_KEY.fullmatch(label) else values.write_text(label)


MATCHERS = ValueKind(
    'a table of label values, like { cluster = "prod-1" }, or a list of PromQL matchers, like '
    """['cluster="prod-1"', 'env=~"live|test"'] (environment: cluster="prod-1",env=~"live|test")""",
    _read_matchers,
    text=_read_matchers_text,
    write=_write_matchers,
    brief="table of label values, or list of PromQL matchers; environment: comma-separated matchers",
    schema={"type": ["object", "array"], "additionalProperties": {"type": "string"}, "items": {"type": "string"}},
)
