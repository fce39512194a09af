"""Executor with daemon threads, used by the store."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


class DaemonExecutor:
    """Daemon threads that run calls in order. Unlike the threads of a ThreadPoolExecutor, they do not keep the process
    from exiting if the disk hangs."""

    def __init__(self, name: str, *, threads: int = 1) -> None:
        self.busy_since: float | None = None  # monotonic seconds; for one thread
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Queue a call and return the future of its result."""
        future: Future[Result] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(run)
        return future

    def stop(self) -> None:
        """Make each thread exit after the queued calls."""
        for _ in self._threads:
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            self.busy_since = time.monotonic()
            call()
            self.busy_since = None
