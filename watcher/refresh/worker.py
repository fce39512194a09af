"""The worker thread of the tick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class TickWorker:
    """One thread, which runs the computations of ticks one at a time, in the order of the calls."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pipeline")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function in the thread and return its result. A cancelled caller does not stop the function."""
        loop = asyncio.get_running_loop()
        # shielded: the next tick must not use the history while a cancelled tick still writes it
        return await asyncio.shield(loop.run_in_executor(self._executor, partial(function, *args, **kwargs)))

    def close(self) -> None:
        """Stop the thread after the function that runs now."""
        self._executor.shutdown(wait=False, cancel_futures=True)
