"""Measure for how long an event loop is blocked, and by which code.

A coroutine that wakes up every millisecond records its lateness. The loop is late because another thread holds the
global interpreter lock, because a callback takes long, or because no core is free. For the last reason, the lateness of
an idle loop is reported too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PERIOD_S = 0.001
IDLE = ("_run", "_work", "request", "converse")  # functions of threads that wait for work or for a response
PACKAGE = Path(__file__).resolve().parents[1] / "watcher"


@dataclass
class Stall:
    """The maximum lateness in ms, and the code that other threads were running when the loop continued."""

    worst: float = 0.0
    culprit: str = ""


@asynccontextmanager
async def watching() -> AsyncIterator[Stall]:
    """Measure the running loop while the block runs."""
    stall = Stall()
    task = asyncio.create_task(_watch(stall))
    await asyncio.sleep(2 * PERIOD_S)
    try:
        yield stall
    finally:
        await asyncio.sleep(2 * PERIOD_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(stall: Stall) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(PERIOD_S)
        late = 1e3 * (time.perf_counter() - began - PERIOD_S)
        if late > stall.worst:
            stall.worst, stall.culprit = late, _elsewhere()


def _elsewhere() -> str:
    """Return the functions of this package that other threads are running."""
    own = threading.get_ident()
    found = {_line(frame) for thread, frame in sys._current_frames().items() if thread != own}
    return ", ".join(sorted(found - {""}))


def _line(frame: FrameType | None) -> str:
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            return f"`{path.stem}.{frame.f_code.co_name}`" if frame.f_code.co_name not in IDLE else ""
        frame = frame.f_back
    return ""
