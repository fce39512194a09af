"""Parsing and formatting of single values.

A setting may be given as a TOML value (`interval = "60s"`, `interval = 60`) or as text from the environment or a flag
(`60s`), and is formatted as TOML by `config show`. A `ValueKind` combines these three functions with a description of
the accepted values, so that problems, documentation and parser agree. Invalid values raise `InvalidValue` and nothing
else. Values of private kinds are never quoted in messages.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from watcher.core.messages import nearest
from watcher.decoding.text import decode_toml

HIDDEN = "<hidden>"


class Secret:
    """A text that only `reveal()` returns. Not a dataclass, since `dataclasses.asdict` would expose the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, to send it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


def write_text(text: str) -> str:
    """Format a TOML basic string. Undecodable bytes (surrogates from the environment) are written as escapes."""
    printable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return json.dumps(printable, ensure_ascii=False).replace("\x7f", "\\u007f")


class InvalidValue(ValueError):
    """The value is not of the kind. The message has details, or is empty if `ValueKind.accepts` suffices."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """Parser and formatter of one kind of values.

    `accepts` completes "must be …"; `brief` is a shorter form for documentation tables. `read` parses a TOML value,
    `text` the text of the environment or a flag (by default `read` does); both raise InvalidValue and nothing else.
    `write` returns a TOML literal with secrets hidden. Values of a `private` kind are not quoted in problems. `schema`
    is the JSON schema of TOML values: it accepts each valid value, and refuses what a schema can. Its patterns are
    valid in Go and JavaScript too.
    """

    accepts: str
    read: Callable[[Any], Any]
    schema: Mapping[str, Any] = field(default_factory=dict, compare=False)
    text: Callable[[str], Any] | None = None
    write: Callable[[Any], str] = write_text
    private: bool = False
    brief: str = ""
    example: str = ""
    flag: str | None = None

    def read_text(self, text: str) -> Any:
        """Parse the text of the environment or a flag. Raises InvalidValue."""
        return (self.text or self.read)(text)

    def like(self, example: str) -> ValueKind:
        """Return the kind of a setting with this example, a TOML literal; required for settings without a default."""
        return replace(self, example=example)

    def flagged(self, flag: str) -> ValueKind:
        """Return the kind of a setting that this option of a command sets."""
        return replace(self, flag=flag)


def toml_or_text(text: str) -> Any:
    """Parse the text of a flag or variable as a TOML value; return the text if it is not one."""
    try:
        return decode_toml(f"value = {text}")["value"] if "\n" not in text else text
    except msgspec.DecodeError:
        return text


def read_argument(kind: ValueKind, text: str) -> Any:
    """Parse the text of a flag or variable: a TOML list, table or quoted string, or the text form of the kind. Raises
    InvalidValue."""
    value = toml_or_text(text)
    if value == text or not isinstance(value, (str, list, dict)):
        return kind.read_text(text)
    if isinstance(value, str) and kind.private:  # the quotes may belong to a password, but not to an address
        return _first(lambda: kind.read_text(text), lambda: kind.read(value))
    # A PromQL expression may look like a TOML table.
    return _first(lambda: kind.read(value), lambda: kind.read_text(text))


def _first(*parsers: Callable[[], Any]) -> Any:
    """Return the first value that can be parsed; raises the InvalidValue of the first parser."""
    problems = []
    for parse in parsers:
        try:
            return parse()
        except InvalidValue as invalid:
            problems.append(invalid)
    raise problems[0]


# --- description of invalid values in messages -----------------------------------------------------------------------


def hide_credentials(text: str) -> str:
    """Hide possible secrets in an address or database URL: everything before the last @, and after ? or #.

    It may hide too much: a password may contain @, / or ?, and the text may not be a URL.
    """
    before, at, after = text.rpartition("@")
    if at:
        scheme = re.match(r"(https?|postgres(ql)?(\+\w+)?|sqlite)://", before, re.ASCII | re.IGNORECASE)
        text = f"{scheme[0] if scheme else ''}{HIDDEN}@{after}"
    return re.sub(r"([?#]).+", rf"\1{HIDDEN}", text, flags=re.DOTALL)


def describe(value: object, *, private: bool = False) -> str:
    """Describe a value in terms of TOML, on one short line; for a private value only its type."""
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}
    if private or isinstance(value, (list, dict)):
        return kinds.get(type(value), "something else")
    if isinstance(value, (datetime.date, datetime.time)):
        return "a date or time"
    if isinstance(value, str):
        safe = hide_credentials(value) if "//" in value else value
        return write_text(safe if len(safe) <= 80 else safe[:77] + "…")
    return _number_in_words(value) if type(value) in (int, float) else str(value).lower()


def _number_in_words(value: Any) -> str:
    # str() of an integer with thousands of digits raises ValueError.
    return "a very large number" if isinstance(value, int) and value.bit_length() > 200 else str(value)


def one_of(names: Iterable[str]) -> str:
    """Format names for a sentence: "a", "b" or "c"."""
    quoted = [f'"{name}"' for name in names]
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted)


# --- text, yes and no, numbers ---------------------------------------------------------------------------------------


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidValue
    text = value.strip()
    if not text:
        raise InvalidValue("given empty text")
    if "\0" in text:
        raise InvalidValue("given text with a NUL character")
    return text


_NOT_BLANK = {"type": "string", "pattern": r"\S"}
TEXT = ValueKind("text", _read_text, _NOT_BLANK)


def _read_name(value: Any) -> str:
    text = _read_text(value)
    if not text.isprintable() or len(text) > 253:
        raise InvalidValue
    return text


NAME = ValueKind("a name of at most 253 printable characters", _read_name, _NOT_BLANK)


PATH = ValueKind(
    "the path of a file", lambda value: Path(_read_text(value)), _NOT_BLANK, write=lambda path: write_text(str(path))
)


def _read_secret(value: Any) -> Secret:
    if not isinstance(value, str):
        raise InvalidValue
    text = value.rstrip("\r\n")  # a common end of files and Kubernetes secrets
    if not text:
        raise InvalidValue("given empty text")
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise InvalidValue("it contains control characters")
    return Secret(text)


_NOT_EMPTY = {"type": "string", "minLength": 1}
SECRET = ValueKind("text", _read_secret, _NOT_EMPTY, write=lambda _: write_text(HIDDEN), private=True)

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _read_boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue
    return value


def _read_boolean_text(text: str) -> bool:
    try:
        return _WORDS[text.strip().lower()]
    except KeyError:
        raise InvalidValue from None


BOOLEAN = ValueKind(
    "true or false", _read_boolean, {"type": "boolean"}, _read_boolean_text, lambda value: str(value).lower()
)


def integer(*, lowest: int, highest: int) -> ValueKind:
    """Return the kind of whole numbers from `lowest` to `highest`."""

    def read(value: Any) -> int:
        if type(value) is not int or not lowest <= value <= highest:  # type(): bool is a subclass of int
            raise InvalidValue
        return value

    def read_text(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text.strip(), re.ASCII):
            raise InvalidValue
        return read(int(text))

    schema = {"type": "integer", "minimum": lowest, "maximum": highest}
    return ValueKind(f"a whole number from {lowest} to {highest}", read, schema, read_text, str)


def _real(
    accepts: str, fits: Callable[[float], bool], write: Callable[[float], str], bounds: Mapping[str, float]
) -> ValueKind:
    """Return the kind of numbers for which `fits` is true; values are floats."""

    def read(value: Any) -> float:
        if type(value) not in (int, float) or not fits(value):
            raise InvalidValue
        return float(value)

    def read_text(text: str) -> float:
        try:
            return read(float(text))
        except ValueError:
            raise InvalidValue from None

    return ValueKind(accepts, read, {"type": "number", **bounds}, read_text, write)


def number(*, lowest: float, highest: float) -> ValueKind:
    """Return the kind of numbers from `lowest` to `highest`; values are floats."""
    accepts = f"a number from {lowest:g} to {highest:g}"
    bounds = {"minimum": lowest, "maximum": highest}
    return _real(accepts, lambda value: lowest <= value <= highest, lambda value: f"{value:g}", bounds)


def _fraction(accepts: str, *, with_zero: bool) -> ValueKind:
    bounds = {"minimum" if with_zero else "exclusiveMinimum": 0, "maximum": 1}
    return _real(accepts, lambda value: 0 < value <= 1 or (with_zero and value == 0), repr, bounds)


FRACTION = _fraction("a number above 0 and at most 1", with_zero=False)
SHARE = _fraction("a number from 0 to 1", with_zero=True)


# --- durations and sizes ---------------------------------------------------------------------------------------------


# --- choices and lists -----------------------------------------------------------------------------------------------


def choice(
    names: Iterable[str], *, aliases: Mapping[str, str] | None = None, removed: Mapping[str, str] | None = None
) -> ValueKind:
    """Return the kind of one of `names`, case-insensitive; `aliases` maps other spellings to them. `removed` are former
    values, each with what to use instead, as an imperative."""
    known, former = tuple(names), dict(removed or {})
    spelt = {name.casefold(): name for name in known} | dict(aliases or {})

    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidValue
        name = spelt.get(value.strip().casefold())
        if instead := former.get(value.strip().casefold()):
            raise InvalidValue(f"{describe(value)} was removed in this version: {instead}")
        if name is None:
            guess = nearest(value, spelt)
            raise InvalidValue(f"given {describe(value)}" + (f'; did you mean "{spelt[guess]}"?' if guess else ""))
        return name

    spellings = dict.fromkeys((*known, *spelt))  # a schema cannot ignore case: as documented, and in lower case
    return ValueKind(one_of(known), read, {"type": "string", "enum": list(spellings)})


def list_of(item: ValueKind, *, called: str, may_be_empty: bool = False) -> ValueKind:
    """Return the kind of lists of `item` without duplicates; as text, comma-separated. Values are tuples. `called`
    completes "a list of …". `may_be_empty` is for lists where none is a meaningful number of items.
    """

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise InvalidValue
        if not value and not may_be_empty:
            raise InvalidValue("given an empty list")
        return _distinct([_read_item(item, element) for element in value])

    def read_text(text: str) -> tuple[Any, ...]:
        if text.lstrip().startswith("["):
            raise InvalidValue("it starts with [ but is not a TOML list")
        return _distinct([_read_item(item, element.strip()) for element in text.split(",")])

    def write(values: Any) -> str:
        return "[" + ", ".join(item.write(value) for value in values) + "]"

    least = {} if may_be_empty else {"minItems": 1}
    schema = {"type": "array", "items": item.schema, **least, "uniqueItems": True}
    return ValueKind(f"a list of {called}", read, schema, read_text, write)


def _read_item(item: ValueKind, element: Any) -> Any:
    try:
        return item.read(element)
    except InvalidValue as unfit:
        detail = str(unfit) or f"given {describe(element)}"
        raise InvalidValue(f"each must be {item.accepts}; {detail}") from None


def _distinct(values: list[Any]) -> tuple[Any, ...]:
    if len(set(values)) < len(values):
        raise InvalidValue("an item is listed twice")
    return tuple(values)


# --- addresses, databases, headers -----------------------------------------------------------------------------------
