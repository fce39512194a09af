"""Log formats: text for people, or one JSON object per line for log collectors.

Each line is one event in both formats. Names of nodes, labels and error texts come from outside, so their control
characters are escaped, which prevents log injection.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from typing import Annotated, TextIO

from watcher.core.config import values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import LEVEL

# These loggers log every job, request or migration at "info"; they are limited to warnings unless the level is debug.
CHATTY = ("aiohttp.access", "alembic", "urllib3")
# APScheduler warns about every tick that is skipped because one still runs; the service counts them instead.
QUIET = ("apscheduler",)


@dataclass(frozen=True, repr=False)
class ClusterSettings(SettingsTable, section="cluster"):
    """The cluster of this service, to distinguish several clusters that share a source, a database, logs or metrics."""

    name: Annotated[str | None, values.NAME.like('"prod-1"')] = None
    """Name of the cluster, included in JSON logs and on /metrics (load_watcher_cluster_info). Stored samples of another
    cluster are not loaded. It does not select series; for that, set provider.matchers."""


@dataclass(frozen=True, repr=False)
class LogSettings(SettingsTable, section="log"):
    """Level and format of the log, which is written to standard error."""

    level: Annotated[str, LEVEL.flagged("--log-level")] = "info"
    """Lowest level of messages to log. Aliases: trace for debug, warn, and fatal or panic for critical."""
    format: Annotated[str, values.choice(("text", "json")).flagged("--log-format")] = "text"
    """text: readable lines. json: one JSON object per line, for log collectors."""


def setup_logging(settings: LogSettings, *, cluster: str = "") -> None:
    """Set up logging to standard error. May be called again when the settings have changed. `cluster` is added to each
    JSON object, unless it is ""."""
    handler = _Handler()
    handler.setFormatter(JsonFormatter(cluster) if settings.format == "json" else TextFormatter())
    logging.captureWarnings(True)  # a warning of a library would otherwise be raw text
    root = logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if settings.level == "debug" else logging.WARNING)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.NOTSET if settings.level == "debug" else logging.ERROR)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr at each record, as logging's last-resort handler does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


class TextFormatter(logging.Formatter):
    """Text format: 2026-01-31T12:00:00.123Z info watcher.tick.tick: message, followed by a traceback if there is
    one."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_timestamp(record)} {record.levelname.lower()} {record.name}: {one_line(record.getMessage())}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """JSON format, one object per line: ts, level, logger, message, and if present cluster and exception."""

    def __init__(self, cluster: str = "") -> None:
        super().__init__()
        self._cluster = {"cluster": cluster} if cluster else {}

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON; non-ASCII characters are escaped, so no text can break the line."""
        event = {
            "ts": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._cluster,
        }
        if trace := _trace(self, record):
            event["exception"] = trace
        return json.dumps(event)


def _timestamp(record: logging.LogRecord) -> str:
    """Return the record's time as RFC 3339 in UTC, with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    return "\n".join(parts)


def one_line(text: str) -> str:
    """Escape control characters, including line breaks, in a text."""
    return text if text.isprintable() else "".join(_printable(character) for character in text)


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
