"""Kinds of values that the data model defines: windows, metric types and operators; and log levels."""

from __future__ import annotations

from dataclasses import replace

from watcher import model
from watcher.core.config import quantities, values
from watcher.core.config.quantities import DAY
from watcher.core.config.values import ValueKind


def window(text: str) -> model.Window:
    """Return the window of this length, with the canonical label of the API and the database: "900s" is "15m"."""
    seconds = int(quantities.read_duration(text))
    return model.Window(quantities.write_duration(seconds), seconds)


def _window(length: ValueKind, accepts: str) -> ValueKind:
    return ValueKind(
        accepts,
        lambda value: window(f"{length.read(value)}s"),
        length.schema,
        write=lambda each: values.write_text(each.label),
    )


def _sorted(item: ValueKind, example: str) -> ValueKind:
    several = values.list_of(item, called=f"durations, like {example}")
    return replace(
        several,
        read=lambda value: tuple(sorted(several.read(value), key=_length)),
        text=lambda text: tuple(sorted(several.read_text(text), key=_length)),
    )


def _length(of: model.Window | int) -> int:
    return of if isinstance(of, int) else of.seconds


WINDOWS = _sorted(
    _window(
        quantities.whole_seconds(lowest=2, highest=int(DAY)), 'a duration of whole seconds, like "15m", of at most 24h'
    ),
    '["5m", "10m", "15m"]',
)
HORIZON = quantities.whole_hours(highest=24)
HORIZONS = _sorted(HORIZON, '["1h", "6h", "24h"]')
WINDOW_LABELS = ValueKind(
    WINDOWS.accepts,
    lambda value: tuple(each.label for each in WINDOWS.read(value)),
    WINDOWS.schema,
    lambda text: tuple(each.label for each in WINDOWS.read_text(text)),
    lambda labels: "[" + ", ".join(map(values.write_text, labels)) + "]",
)

_METRIC_TYPES = tuple(kind.value for kind in model.MetricType)
_METRIC_NAMES = tuple(dict.fromkeys((*_METRIC_TYPES, *model.METRIC_BY_KEY)))
TYPES = values.list_of(values.choice(_METRIC_NAMES), called="metric types, like CPU, or keys, like NetworkReceive")
TYPES_ONLY = values.list_of(values.choice(_METRIC_TYPES), called="metric types, like CPU")
_OF_WINDOWS = [each.value for each in model.Operator if each is not model.Operator.FORECAST]
OPERATORS = values.list_of(values.choice(_OF_WINDOWS), called="operators, like AVG")
DEFAULT_WINDOWS = tuple(window(label) for label in ("5m", "10m", "15m"))

# Level names of logrus, which the Go load-watcher uses, in addition to Python's.
LEVELS = {"trace": "debug", "warn": "warning", "fatal": "critical", "panic": "critical"}
LEVEL = values.choice(("debug", "info", "warning", "error", "critical"), aliases=LEVELS)
