"""Label matchers that select the series of one cluster in a Prometheus shared by several clusters.

Matchers are written as in PromQL, `cluster="prod-1"`, and inserted into selectors. Values may contain quotes,
backslashes and braces, so only `Matcher.__str__` writes them into a query.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

STRING = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)"""
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_MATCHER = re.compile(rf"\s*(?P<label>[^\s=!~,{{}}\"'`]+)\s*(?P<operator>=~|!~|!=|=)\s*(?P<value>{STRING})\s*")


@dataclass(frozen=True, slots=True)
class Matcher:
    """Compares `label` with `value` by one of the operators =, !=, =~ and !~. Raises ValueError for an invalid label
    or value."""

    label: str
    operator: str
    value: str

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.label):
            raise ValueError(f"{json.dumps(self.label)} is not a label name")
        if self.label == "__name__":
            raise ValueError("__name__ is not allowed: the queries select series by it")
        if any("\ud800" <= letter <= "\udfff" for letter in self.value):
            raise ValueError(f"the value of {self.label} is not valid UTF-8")

    def __str__(self) -> str:
        """PromQL text of the matcher. `<` is escaped, because it marks placeholders in the built-in expressions."""
        # JSON escapes are a subset of PromQL escapes.
        return self.label + self.operator + json.dumps(self.value, ensure_ascii=False).replace("<", r"\u003c")


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """Parse matchers such as `cluster="a",env=~"b|c"`, with or without enclosing braces. Raises ValueError with the
    invalid part."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    return tuple(_parsed(inner.strip().removesuffix(",")))


def _parsed(text: str) -> Iterator[Matcher]:
    place = 0
    while place < len(text):
        found = _MATCHER.match(text, place)
        if found is None or text[found.end() :][:1] not in ("", ","):
            raise ValueError(
                f'{json.dumps(text[place:].strip(), ensure_ascii=False)} does not have the form label="value"'
            )
        yield Matcher(found["label"], found["operator"], _unquoted(found["value"]))
        place = found.end() + 1


def _unquoted(text: str) -> str:
    """Value of a PromQL string literal. Supports the escapes that JSON also has."""
    if text.startswith("`"):
        return text[1:-1]
    inner = re.sub(r"""\\.|\"""", _as_json if text.startswith("'") else lambda found: found[0], text[1:-1])
    try:
        value: str = json.loads(f'"{inner}"')
    except ValueError:
        raise ValueError(
            f"{text} has an escape that PromQL does not support; write a backslash as two backslashes"
        ) from None
    return value


def _as_json(found: re.Match[str]) -> str:
    return {r"\'": "'", '"': r"\""}.get(found[0], found[0])


def narrowed(selector: str, *matchers: Matcher) -> str:
    """A metric name or selector with additional matchers."""
    if not matchers:
        return selector
    name, brace, rest = selector.partition("{")
    others = rest.removesuffix("}").strip().removesuffix(",") if brace else ""
    return f"{name}{{{', '.join([others, *map(str, matchers)] if others else map(str, matchers))}}}"
