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

from watcher.decoding.json_text import decode_json

STRING = r"""(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)"""
BARE_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*"
_BARE_LABEL = re.compile(BARE_LABEL, re.ASCII)
_MATCHER = re.compile(rf"\s*(?P<label>{STRING}|[^\s=!~,{{}}\"'`]+)\s*(?P<operator>=~|!~|!=|=)\s*(?P<value>{STRING})\s*")


def is_label_name(text: str) -> bool:
    """Whether the text can name a label: printable UTF-8 without spaces at its ends, as in Prometheus 3."""
    return bool(text) and text == text.strip() and text.isprintable()


def label_text(label: str) -> str:
    """PromQL text of a label name: in quotes, which Prometheus 3 supports, if it has other characters than letters of
    ASCII, digits and underscores."""
    return label if _BARE_LABEL.fullmatch(label) else _quoted(label)


def _quoted(text: str) -> str:
    """A PromQL string. `<` is escaped, because it marks placeholders in the built-in expressions."""
    # JSON escapes are a subset of PromQL escapes.
    return json.dumps(text, ensure_ascii=False).replace("<", r"\u003c")


@dataclass(frozen=True, slots=True)
class Matcher:
    """Compares `label` with `value` by one of the operators =, !=, =~ and !~. Raises ValueError for an invalid label
    or value."""

    label: str
    operator: str
    value: str

    def __post_init__(self) -> None:
        if not is_label_name(self.label):
            raise ValueError(f"{json.dumps(self.label)} is not a label name")
        if self.label == "__name__":
            raise ValueError("__name__ is not allowed: the queries select series by it")
        if any("\ud800" <= letter <= "\udfff" for letter in self.value):
            raise ValueError(f"the value of {self.label} is not valid UTF-8")

    def __str__(self) -> str:
        """PromQL text of the matcher."""
        return label_text(self.label) + self.operator + _quoted(self.value)


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
        label = found["label"]
        yield Matcher(_unquoted(label) if label[0] in "\"'`" else label, found["operator"], _unquoted(found["value"]))
        place = found.end() + 1


def _unquoted(text: str) -> str:
    """Value of a PromQL string literal. Supports the escapes that JSON also has."""
    if text.startswith("`"):
        return text[1:-1]
    inner = re.sub(r"""\\.|\"""", _as_json if text.startswith("'") else lambda found: found[0], text[1:-1])
    try:
        value: str = decode_json(f'"{inner}"', type=str)
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
