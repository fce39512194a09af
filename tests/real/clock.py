"""The wall clock of a process, set by libfaketime."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.real.parts import REPOSITORY, UNPACKED

SLEEP = """
import errno
import time

real_sleep = time.sleep


def sleep(seconds):
    try:
        real_sleep(seconds)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


time.sleep = sleep
"""
"""libfaketime subtracts the current time from the end of a sleep, and calls a sleep that has just ended invalid."""


def faketime_library() -> Path:
    """libfaketime's library for programs with threads; without it the test is skipped, or fails where required."""
    for root in (UNPACKED / "usr" / "lib", Path("/usr/lib")):
        for library in sorted(root.glob("*/faketime/libfaketimeMT.so.1")):
            return library
    reason = f"libfaketime is neither in {UNPACKED} nor installed: run make real-parts"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


class FakedClock:
    """A wall clock that libfaketime shows to a process, and that can be set; the monotonic clock stays that of the
    machine.

    The library reads the file about every second, at any moment, so the file is replaced as a whole.
    """

    def __init__(self, directory: Path) -> None:
        self._file = directory / "clock"
        self.set(0)
        (modules := directory / "modules").mkdir()
        (modules / "sitecustomize.py").write_text(SLEEP)
        self.environment = {
            "PYTHONPATH": f"{modules}{os.pathsep}{REPOSITORY}",
            "LD_PRELOAD": str(faketime_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Otherwise waiting threads spin: the library's workaround for old C libraries does not fit the lock that
            # Python's threads share.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def set(self, seconds: int) -> None:
        """Set its difference from the clock of the machine, in seconds."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}")
        fresh.replace(self._file)
