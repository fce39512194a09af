"""Logs an unexpected error of a background loop once, not again in each round."""

from __future__ import annotations

import logging
import traceback
from typing import Any


class RepeatedErrors:
    """The unexpected errors of one loop. Errors of one type from one line of code count as the same error; while the
    error remains, only the first is logged, with its traceback. The others are logged at level DEBUG."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: tuple[Any, ...] | None = None

    def failed(self, error: BaseException, message: str, *args: object) -> None:
        """A round has failed with this error. `message` and `args` are those of logging."""
        frames = traceback.extract_tb(error.__traceback__, limit=-1)
        this = (type(error), *((frame.filename, frame.lineno) for frame in frames))
        self._log.log(logging.DEBUG if this == self._last else logging.ERROR, message, *args, exc_info=error)
        self._last = this

    def succeeded(self) -> None:
        """A round has ended without an unexpected error, so the next one is logged again."""
        self._last = None
