"""Parses query strings and paths of requests.

Ignoring a misspelt parameter would return unintended data without an error. Therefore every unknown parameter and value
is rejected, with the nearest known one and the list of all known ones in the hint.

Pure: no I/O. Errors are raised as `BadParameter`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from watcher.core.messages import nearest
from watcher.core.publishing.selection import Selection, Shape
from watcher.model import DEFAULT_OPERATORS, MetricType, Operator, Window, default_window

SHOWN_CHARACTERS = 256  # maximum length of a name quoted in a message
MAX_PARAMETERS = 5_000
MOST_MINUTES = 1440
MISSING_RESPONSES = ("error", "empty")
"""Values of the parameter `missing`, the default first."""
MAX_POINTS = 11_000  # per series, the same limit as in Prometheus
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?\Z")
_UNIT_S = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_LATEST_TIME = 253402300799  # the last second of the year 9999
Choice = TypeVar("Choice", bound=StrEnum)


class BadParameter(ValueError):
    """An invalid request. `hint` describes valid input."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def truncated(text: str) -> str:
    """A name from a request, truncated for use in a message. Messages quote it with !r, which escapes unprintable
    characters."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def path_segment(raw: str) -> str:
    """A percent-decoded path segment. Raises BadParameter if it is not UTF-8."""
    if raw.isascii() and "%" not in raw:
        return raw
    try:
        text = unquote(raw, errors="strict")
        text.encode()  # the parser decodes a byte that is not UTF-8 as half of a surrogate pair
    except UnicodeError:
        raise BadParameter("the path is not UTF-8") from None
    return text


def query_values(raw: str, *, known: Sequence[str]) -> dict[str, list[str]]:
    """The values of each parameter of a query string, in order. Raises BadParameter for an unknown name."""
    if not raw:
        return {}
    try:
        raw.encode()
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except UnicodeError:
        raise BadParameter("the query string is not UTF-8") from None
    except ValueError:
        raise BadParameter(f"the query string has more than {MAX_PARAMETERS} parameters") from None
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            raise unknown_value("parameter", name, known)
        values.setdefault(name, []).append(value)
    return values


def unknown_value(what: str, given: str, known: Sequence[str]) -> BadParameter:
    """The error for an unknown word: names the word, the nearest known one, and all known ones."""
    listed = ", ".join(known) if known else "none"
    near = nearest(given, known)
    hint = f"did you mean {near}? " if near else ""
    return BadParameter(f"unknown {what} {truncated(given)!r}", f"{hint}known: {listed}")


def single_value(values: Mapping[str, Sequence[str]], name: str) -> str | None:
    """The value of a parameter that may be given at most once; None if it is missing."""
    given = values.get(name)
    if not given:
        return None
    if len(given) > 1:
        raise BadParameter(f"parameter {name!r} is given {len(given)} times", "specify it once")
    return given[0]


def window_of(values: Mapping[str, Sequence[str]], windows: Sequence[Window]) -> Window:
    """The window with the requested label; the default window (15 minutes, or the served window nearest to it) without
    a label."""
    label = single_value(values, "window")
    if label is None:
        return default_window(windows)
    for window in windows:
        if window.label == label:
            return window
    raise unknown_value("window", label, [window.label for window in windows])


def selection_of(
    values: Mapping[str, Sequence[str]], windows: Sequence[Window], horizons: Sequence[str] = ()
) -> Selection:
    """The normalized selection of a request: independent of parameter order and of explicitly given defaults, so that
    equivalent requests share one cached document."""
    from watcher.core.publishing.selection import Selection

    types = _choices(values, "type", MetricType)
    operators = _choices(values, "operator", Operator)
    horizon = horizon_of(values, horizons)
    if horizon and Operator.FORECAST not in (operators or ()):
        raise BadParameter("horizon is only for operator=FORECAST", hint="add operator=FORECAST, or omit horizon")
    return Selection(
        window_of(values, windows),
        None if types == tuple(MetricType) else types,
        None if operators == DEFAULT_OPERATORS else operators,
        horizon,
    )


def horizon_of(values: Mapping[str, Sequence[str]], known: Sequence[str]) -> str:
    """The requested horizon of forecasts, "" for the default one. Raises BadParameter for an unknown one."""
    given = single_value(values, "horizon") or ""
    if given and given not in known:
        raise unknown_value("horizon", given, known)
    return given


def types_of(values: Mapping[str, Sequence[str]]) -> tuple[MetricType, ...] | None:
    """The requested metric types, None for all."""
    return _choices(values, "type", MetricType)


def operators_of(values: Mapping[str, Sequence[str]]) -> tuple[Operator, ...] | None:
    """The requested operators, None for the defaults of the document."""
    return _choices(values, "operator", Operator)


def _choices(values: Mapping[str, Sequence[str]], name: str, kind: type[Choice]) -> tuple[Choice, ...] | None:
    given = values.get(name)
    if not given:
        return None
    known = [choice.value for choice in kind]
    for value in given:
        if value not in known:
            raise unknown_value(name, value, known)
    return tuple(choice for choice in kind if choice.value in given)


def shape_of(values: Mapping[str, Sequence[str]]) -> Shape:
    """The requested document shape; Shape.WATCHER by default."""
    from watcher.core.publishing.selection import Shape

    given = single_value(values, "shape")
    if given is None:
        return Shape.WATCHER
    try:
        return Shape(given)
    except ValueError:
        raise unknown_value("shape", given, [shape.value for shape in Shape]) from None


def hosts_of(values: Mapping[str, Sequence[str]]) -> frozenset[str] | None:
    """The requested node names; None for all. An empty name also means all, as in the original load-watcher."""
    given = values.get("host", ())
    return frozenset(given) if given and "" not in given else None


def minutes_of(values: Mapping[str, Sequence[str]]) -> int:
    """The requested number of minutes, 0 without the parameter. Raises BadParameter."""
    given = single_value(values, "minutes")
    if given is None:
        return 0
    if not (given.isascii() and given.isdigit() and len(given) <= 5 and 1 <= int(given) <= MOST_MINUTES):
        raise BadParameter(f"minutes={truncated(given)!r} is invalid", f"use a whole number from 1 to {MOST_MINUTES}")
    return int(given)


def accepts_empty(values: Mapping[str, Sequence[str]]) -> bool:
    """Whether the caller wants an empty document instead of status 404. A browser logs each 404 as an error, also if it
    is the expected answer. Raises BadParameter for an unknown value."""
    given = single_value(values, "missing")
    if given is not None and given not in MISSING_RESPONSES:
        raise unknown_value("missing", given, MISSING_RESPONSES)
    return given == MISSING_RESPONSES[1]


def aggregate_of(values: Mapping[str, Sequence[str]], known: Sequence[str]) -> str:
    """The requested aggregate, "" without the parameter. Raises BadParameter for an unknown one."""
    given = single_value(values, "aggregate")
    if given is not None and given not in known:
        raise unknown_value("aggregate", given, known)
    return given or ""


# --- times -----------------------------------------------------------------------------------------------------------


def time_of(values: Mapping[str, Sequence[str]], name: str, *, now: float, default: float) -> int:
    """`moment_of` in whole unix seconds, or the default."""
    moment = moment_of(values, name, now=now)
    return int(default if moment is None else moment)


def moment_of(values: Mapping[str, Sequence[str]], name: str, *, now: float) -> float | None:
    """A time in unix seconds, given as a number, an RFC 3339 date, a duration before now such as -1h, or "now". None if
    the parameter is missing. Raises BadParameter."""
    given = single_value(values, name)
    if given is None:
        return None
    moment = _moment(given.strip(), now=now)
    if moment is None or not 0 <= moment <= _LATEST_TIME:
        raise BadParameter(
            f"{name}={truncated(given)!r} is not a time",
            "use unix seconds, a date like 2026-01-31T12:00:00Z, or a duration before now like -1h",
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
    """The interval between points in whole seconds, given as a number of seconds or a duration such as 5m."""
    given = single_value(values, "step")
    if given is None:
        return default
    seconds = _seconds(given.strip())
    if seconds is None or not 1 <= seconds <= _LATEST_TIME:
        raise BadParameter(f"step={truncated(given)!r} is not a step", "use whole seconds, or a duration like 5m")
    return int(seconds)


def _seconds(text: str) -> float | None:
    found = _DURATION.match(text)
    return float(found[1]) * _UNIT_S[found[2]] if found else None


def check_range(start: int, end: int, step: int) -> None:
    """Raise BadParameter for an empty range, or if a series would have more than MAX_POINTS points. `start`, `end` are
    unix seconds, `step` is in seconds."""
    if start >= end:
        raise BadParameter("the range is empty: from is not before to", "defaults: from = one hour before to, to = now")
    points = (end - start) // step + 1
    if points > MAX_POINTS:
        enough = (end - start) // (MAX_POINTS - 1) + 1
        raise BadParameter(
            f"{points} points in a series are more than {MAX_POINTS}", f"use a shorter range, or step={enough}"
        )


def names_of(types: Collection[MetricType]) -> str:
    """Metric types as comma-separated text, for messages."""
    return ", ".join(sorted(types))
