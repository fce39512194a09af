"""How long an event loop was kept from running, and by what.

A coroutine that wants to run every millisecond notes by how much it was late. The loop is late because another thread
holds Python's global lock, because a callback takes long, or because the machine has no core for it; the last is why
the same is measured while nothing is done, and stands beside it.
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
IDLE = ("_run", "_work", "request", "converse")  # of a thread that waits: for work, or for an answer
PACKAGE = Path(__file__).resolve().parents[1] / "watcher"


@dataclass
class Stall:
    """The worst lateness, in ms, and where the other threads were when the loop ran again."""

    worst: float = 0.0
    culprit: str = ""


@asynccontextmanager
async def watching() -> AsyncIterator[Stall]:
    """Watch the running loop for as long as the block lasts."""
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
    """What of our package each other thread is in."""
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
