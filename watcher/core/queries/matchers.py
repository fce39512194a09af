"""Matchers of labels: which series of a Prometheus are ours, where several clusters share it.

Written as PromQL has them, `cluster="prod-1"`, and put into selectors. A value may hold whatever a label may: quotes,
backslashes, braces; so nothing is put into a query but by `Matcher.__str__`.

Pure: strings in, strings out.
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
    """`label` compared with `value` by one of =, !=, =~ and !~. Raises ValueError for a label that cannot be asked
    for."""

    label: str
    operator: str
    value: str

    def __post_init__(self) -> None:
        if not LABEL.fullmatch(self.label):
            raise ValueError(f"{json.dumps(self.label)} is no name of a label")
        if self.label == "__name__":
            raise ValueError("__name__ is what the queries themselves choose by")
        if any("\ud800" <= letter <= "\udfff" for letter in self.value):
            raise ValueError(f"the value of {self.label} is no UTF-8")

    def __str__(self) -> str:
        """As it stands in a selector. `<` is escaped because it marks places in the built-in expressions."""
        # The escapes of JSON are a part of PromQL's.
        return self.label + self.operator + json.dumps(self.value, ensure_ascii=False).replace("<", r"\u003c")


def parse_matchers(text: str) -> tuple[Matcher, ...]:
    """The matchers of `cluster="a",env=~"b|c"`, with or without braces around them. Raises ValueError in words."""
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1]
    return tuple(_parsed(inner.strip().removesuffix(",")))


def _parsed(text: str) -> Iterator[Matcher]:
    place = 0
    while place < len(text):
        found = _MATCHER.match(text, place)
        if found is None or text[found.end() :][:1] not in ("", ","):
            raise ValueError(f'{json.dumps(text[place:].strip(), ensure_ascii=False)} is not of the form label="value"')
        yield Matcher(found["label"], found["operator"], _unquoted(found["value"]))
        place = found.end() + 1


def _unquoted(text: str) -> str:
    """What a string of PromQL says; of its escapes, those that JSON has too."""
    if text.startswith("`"):
        return text[1:-1]
    inner = re.sub(r"""\\.|\"""", _as_json if text.startswith("'") else lambda found: found[0], text[1:-1])
    try:
        value: str = json.loads(f'"{inner}"')
    except ValueError:
        raise ValueError(f"{text} has an escape that PromQL does not know; a backslash is written twice") from None
    return value


def _as_json(found: re.Match[str]) -> str:
    return {r"\'": "'", '"': r"\""}.get(found[0], found[0])


def narrowed(selector: str, *matchers: Matcher) -> str:
    """A metric name or selector with these further conditions."""
    if not matchers:
        return selector
    name, brace, rest = selector.partition("{")
    others = rest.removesuffix("}").strip().removesuffix(",") if brace else ""
    return f"{name}{{{', '.join([others, *map(str, matchers)] if others else map(str, matchers))}}}"
