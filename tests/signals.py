"""SIGTERM in a program that starts others and ends them before its own end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def sigterm_after() -> Iterator[None]:
    """Handle a SIGTERM that arrives in the block at the end of the block.

    For starting a process: a handler that raises inside Popen leaves a process that the caller does not know.
    """
    if threading.current_thread() is not threading.main_thread():  # handlers interrupt only the main thread
        yield
        return
    received: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        if received:
            signal.raise_signal(signal.SIGTERM)
