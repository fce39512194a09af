"""How log lines look: for people, or one JSON object a line for collectors.

A line is one event in both. Names of nodes, labels and error texts come from outside, so control characters in them
are escaped: nobody can write a second line into the log by naming a node cleverly.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from watcher.platform.settings.sections.server import LogSettings

# These tell at "info" of every job, request or migration, which are states and not changes.
CHATTY = ("aiohttp.access", "alembic", "apscheduler", "urllib3")


def setup_logging(settings: LogSettings, *, cluster: str = "") -> None:
    """Log to standard error as these settings say. May be called again, when they have changed. `cluster` is the name
    that stands in each object of JSON, "" for none."""
    handler = _Handler()
    handler.setFormatter(JsonFormatter(cluster) if settings.format == "json" else TextFormatter())
    root = logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each, _Handler)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if settings.level == "debug" else logging.WARNING)


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to what standard error is at that moment, as logging's own handler of last resort does."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Standard error."""
        return sys.stderr


class TextFormatter(logging.Formatter):
    """2026-01-31T12:00:00.123Z info watcher.refresh.tick: message, and a traceback on the lines below."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        line = f"{_timestamp(record)} {record.levelname.lower()} {record.name}: {one_line(record.getMessage())}"
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


class JsonFormatter(logging.Formatter):
    """One object a line: ts, level, logger, message, the cluster where it has a name, and exception where there is
    one."""

    def __init__(self, cluster: str = "") -> None:
        super().__init__()
        self._cluster = {"cluster": cluster} if cluster else {}

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON; other than ASCII is escaped, so no text can break it."""
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
    """RFC 3339 in UTC, with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    parts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    return "\n".join(parts)


def one_line(text: str) -> str:
    """The text with its control characters, line ends among them, written as what they are."""
    return text if text.isprintable() else "".join(_printable(character) for character in text)


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]
