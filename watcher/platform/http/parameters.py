"""What a request asks for, read from its query string and path.

A misspelt parameter that is passed over gives an answer to another question, and a dashboard shows it for months. So
every name and every value that is not known is refused, with the nearest one that is, and with those that are.

Pure: text in, values or a `BadParameter` out.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import parse_qsl, unquote

from watcher.model import DEFAULT_OPERATORS, MetricType, Operator, Window, default_window

if TYPE_CHECKING:
    from watcher.core.publishing.selection import Selection, Shape

SHOWN_CHARACTERS = 256  # of a name that is repeated in a message
COMPARED_CHARACTERS = 64  # longer words are not near anything we know, and comparing them is slow
MOST_PARAMETERS = 5_000
MOST_POINTS = 11_000  # of a series, as in Prometheus
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?\Z")
_UNIT_S = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LATEST_TIME = 253402300799  # the last second of the year 9999
Choice = TypeVar("Choice", bound=StrEnum)


class BadParameter(ValueError):
    """A request that cannot be understood. `hint` says what would be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def shown(text: str) -> str:
    """A name from outside, cut to what may stand in a message. Messages quote it with !r, which makes harmless what is
    not printable."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def path_segment(raw: str) -> str:
    """The text of a part of the path, its percent signs undone."""
    if raw.isascii() and "%" not in raw:
        return raw
    try:
        text = unquote(raw, errors="strict")
        text.encode()  # a byte that is not UTF-8 comes from the parser as half of a surrogate pair
    except UnicodeError:
        raise BadParameter("the path is not UTF-8") from None
    return text


def query_values(raw: str, *, known: Sequence[str]) -> dict[str, list[str]]:
    """The values of each parameter of a query string, in the order given; every name must be known."""
    if not raw:
        return {}
    try:
        raw.encode()
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=MOST_PARAMETERS)
    except UnicodeError:
        raise BadParameter("the query string is not UTF-8") from None
    except ValueError:
        raise BadParameter(f"the query string has more than {MOST_PARAMETERS} parameters") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            raise unknown("parameter", name, known)
        values.setdefault(name, []).append(value)
    return values


def unknown(what: str, given: str, known: Sequence[str]) -> BadParameter:
    """The refusal of a word: which one, the nearest known one, and all that are known."""
    listed = ", ".join(known) if known else "none"
    near = nearest(given, known)
    hint = f"did you mean {near}? " if near else ""
    return BadParameter(f"unknown {what} {shown(given)!r}", f"{hint}known: {listed}")


def nearest(given: str, known: Sequence[str]) -> str | None:
    """The known word that was probably meant: first the same in another case, then the one most like it."""
    folded = {word.casefold(): word for word in known}
    word = given[:COMPARED_CHARACTERS].casefold()
    if word in folded:
        return folded[word]
    close = difflib.get_close_matches(word, list(folded), n=1, cutoff=0.6)
    return folded[close[0]] if close else None


def single(values: Mapping[str, Sequence[str]], name: str) -> str | None:
    """The value of a parameter that may be given once; None where it is not."""
    given = values.get(name)
    if not given:
        return None
    if len(given) > 1:
        raise BadParameter(f"parameter {name!r} is given {len(given)} times", "give it once")
    return given[0]


def window_of(values: Mapping[str, Sequence[str]], windows: Sequence[Window]) -> Window:
    """The window asked for by its label; 15 minutes by default, or what is served next to it."""
    label = single(values, "window")
    if label is None:
        return default_window(windows)
    for window in windows:
        if window.label == label:
            return window
    raise unknown("window", label, [window.label for window in windows])


def selection_of(values: Mapping[str, Sequence[str]], windows: Sequence[Window]) -> Selection:
    """What a request selects, in one spelling: the order of parameters and what is the default anyway do not count, so
    that equal questions share one answer."""
    from watcher.core.publishing.selection import Selection

    types = _choices(values, "type", MetricType)
    operators = _choices(values, "operator", Operator)
    return Selection(
        window_of(values, windows),
        None if types == tuple(MetricType) else types,
        None if operators == DEFAULT_OPERATORS else operators,
    )


def types_of(values: Mapping[str, Sequence[str]]) -> tuple[MetricType, ...] | None:
    """The metric types asked for, None for all."""
    return _choices(values, "type", MetricType)


def operators_of(values: Mapping[str, Sequence[str]]) -> tuple[Operator, ...] | None:
    """The operators asked for, None for whatever the answer has by default."""
    return _choices(values, "operator", Operator)


def _choices(values: Mapping[str, Sequence[str]], name: str, kind: type[Choice]) -> tuple[Choice, ...] | None:
    given = values.get(name)
    if not given:
        return None
    known = [choice.value for choice in kind]
    for value in given:
        if value not in known:
            raise unknown(name, value, known)
    return tuple(choice for choice in kind if choice.value in given)


def shape_of(values: Mapping[str, Sequence[str]]) -> Shape:
    """Where the nodes shall stand in the document."""
    from watcher.core.publishing.selection import Shape

    given = single(values, "shape")
    if given is None:
        return Shape.WATCHER
    try:
        return Shape(given)
    except ValueError:
        raise unknown("shape", given, [shape.value for shape in Shape]) from None


def hosts_of(values: Mapping[str, Sequence[str]]) -> frozenset[str] | None:
    """The nodes asked for by name; None for all, which an empty name means too, as in the original."""
    given = values.get("host", ())
    return frozenset(given) if given and "" not in given else None


# --- times -----------------------------------------------------------------------------------------------------------


def time_of(values: Mapping[str, Sequence[str]], name: str, *, now: float, default: float) -> int:
    """`moment_of` in whole seconds, or the default."""
    moment = moment_of(values, name, now=now)
    return int(default if moment is None else moment)


def moment_of(values: Mapping[str, Sequence[str]], name: str, *, now: float) -> float | None:
    """A moment in unix seconds: a number, a date by RFC 3339, or a duration before now such as -1h; "now" is now. None
    where none is given. Raises BadParameter."""
    given = single(values, name)
    if given is None:
        return None
    moment = _moment(given.strip(), now=now)
    if moment is None or not 0 <= moment <= _LATEST_TIME:
        raise BadParameter(
            f"{name}={shown(given)!r} is not a time",
            "give unix seconds, a date like 2026-01-31T12:00:00Z, or how long ago, like -1h",
        )
    return moment


def _moment(text: str, *, now: float) -> float | None:
    if text == "now":
        return now
    if text.startswith("-"):
        ago = _seconds(text[1:])
        return None if ago is None else now - ago
    try:
        number = float(text)
        return number if math.isfinite(number) else None
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def step_of(values: Mapping[str, Sequence[str]], *, default: int) -> int:
    """The distance of points in whole seconds: a number of seconds, or a duration such as 5m."""
    given = single(values, "step")
    if given is None:
        return default
    seconds = _seconds(given.strip())
    if seconds is None or not 1 <= seconds <= _LATEST_TIME:
        raise BadParameter(f"step={shown(given)!r} is not a step", "give whole seconds, or a duration like 5m")
    return int(seconds)


def _seconds(text: str) -> float | None:
    found = _DURATION.match(text)
    return float(found[1]) * _UNIT_S[found[2]] if found else None


def check_range(start: int, end: int, step: int) -> None:
    """Refuse a range that ends before it begins, or that would give more points than anyone can read."""
    if start >= end:
        raise BadParameter("the range is empty: from is not before to", "from defaults to one hour ago, to is now")
    points = (end - start) // step + 1
    if points > MOST_POINTS:
        enough = (end - start) // (MOST_POINTS - 1) + 1
        raise BadParameter(
            f"{points} points in a series are more than {MOST_POINTS}", f"ask for a shorter range, or step={enough}"
        )


def names_of(types: Collection[MetricType]) -> str:
    """Types as they stand in a sentence."""
    return ", ".join(sorted(types))
