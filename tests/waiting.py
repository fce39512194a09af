"""Waiting for something to become true: a deadline and a name of the condition instead of a fixed sleep."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

import pytest

Outcome = TypeVar("Outcome")

# Often enough that a test waits hardly longer than it must, seldom enough that two cores stay free for what it waits
# for: most conditions are requests.
SHORTEST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.1
PAUSE_SHARE = 0.1

# Long, because a deadline that is never met costs nothing in a run that passes: a condition takes a tenth of a
# second on a quiet machine, and many times that on one whose cores are shared by other work.
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
    """Call `condition` until it returns something true, and return that.

    After `timeout` seconds the test fails and says `what` it waited for, with the last outcome. Exceptions of the kinds
    in `ignoring` count as not yet; any other passes through.
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
