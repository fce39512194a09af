"""Wait until a condition is true: with a deadline and a name of the condition instead of a fixed sleep."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import pytest

Outcome = TypeVar("Outcome")

# Often enough that a test hardly waits longer than necessary, seldom enough that two cores stay free for the tested
# programs: most conditions are requests.
SHORTEST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.1
PAUSE_SHARE = 0.1

# Long, because a passing run never reaches the deadline: a condition takes a tenth of a second on an idle machine, and
# many times that on a busy one.
PATIENCE_SECONDS = 60.0

# A factor of all deadlines: a virtual machine without acceleration is ten times slower.
SLOWNESS = float(os.environ.get("LOAD_WATCHER_SLOWNESS", "1"))


def pause(waited: float) -> float:
    """Return the time until the next attempt: a tenth of the time waited so far, within the limits. All in seconds."""
    return min(LONGEST_PAUSE_SECONDS, max(SHORTEST_PAUSE_SECONDS, PAUSE_SHARE * waited))


def wait_for(
    condition: Callable[[], Outcome],
    *,
    what: str,
    timeout: float = PATIENCE_SECONDS,
    ignoring: tuple[type[Exception], ...] = (),
) -> Outcome:
    """Call `condition` until it returns a true value, and return that.

    After `timeout` seconds the test fails with `what` as the awaited condition, and the last outcome. Exceptions of the
    kinds in `ignoring` count as not true; any other one is raised.
    """
    began = time.monotonic()
    timeout *= SLOWNESS
    while True:
        last: object
        try:
            last = outcome = condition()
            if outcome:
                return outcome
        except ignoring as error:
            last = error
        waited = time.monotonic() - began
        if waited > timeout:
            pytest.fail(f"waited {timeout:g} s for {what}; last was {last!r}")
        time.sleep(pause(waited))


@overload
async def eventually(
    condition: Callable[[], Awaitable[Outcome]],
    *,
    what: str,
    timeout: float = ...,
    ignoring: tuple[type[Exception], ...] = ...,
) -> Outcome: ...
@overload
async def eventually(
    condition: Callable[[], Outcome],
    *,
    what: str,
    timeout: float = ...,
    ignoring: tuple[type[Exception], ...] = ...,
) -> Outcome: ...
async def eventually(
    condition: Callable[[], Any],
    *,
    what: str,
    timeout: float = PATIENCE_SECONDS,
    ignoring: tuple[type[Exception], ...] = (),
) -> Any:
    """The same inside an event loop, which keeps running meanwhile; `condition` may be a coroutine function."""
    began = time.monotonic()
    timeout *= SLOWNESS
    while True:
        last: object
        try:
            answer = condition()
            last = outcome = await answer if isinstance(answer, Awaitable) else answer
            if outcome:
                return outcome
        except ignoring as error:
            last = error
        waited = time.monotonic() - began
        if waited > timeout:
            pytest.fail(f"waited {timeout:g} s for {what}; last was {last!r}")
        await asyncio.sleep(pause(waited))
