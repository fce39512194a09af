"""Asking two services the same question, once or for a while, and adding up how they differ."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from load_watcher.compare.comparison import Answer, Comparison, read_answer
from watcher import __version__

EVERY_S = 30.0  # as often as the plug-ins poll
TIMEOUT_S = 30.0


class CompareError(Exception):
    """A service that could not be asked; `hint` says what to do."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two services; `name` is what it is called in messages."""

    name: str
    address: str
    token: str | None = None

    @property
    def url(self) -> str:
        """What the plug-ins would ask."""
        return self.address.rstrip("/") + "/watcher"


@dataclass(frozen=True, slots=True)
class Round:
    """One comparison, as it is told while it goes on."""

    number: int
    ours: Answer
    theirs: Answer


async def run(
    ours: Side,
    theirs: Side,
    comparison: Comparison,
    *,
    duration: float = 0.0,
    every: float = EVERY_S,
    tell: Callable[[Round], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> None:
    """Compare once, and then every `every` seconds until `duration` seconds have passed.

    Raises CompareError where the very first comparison cannot be made; later ones that cannot are said by `warn` and
    left out: services restart while one looks at them for an hour.
    """
    ends = time.monotonic() + duration
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        while True:
            began = time.monotonic()
            # both are awaited whatever becomes of one: a request that is cut off is an error in the other's log
            asked = await asyncio.gather(_ask(session, ours), _ask(session, theirs), return_exceptions=True)
            failures = [answer for answer in asked if isinstance(answer, BaseException)]
            if failures and not (comparison.rounds and isinstance(failures[0], CompareError)):
                raise failures[0]
            if failures:
                warn(str(failures[0]))
            else:
                answers = [answer for answer in asked if isinstance(answer, Answer)]
                comparison.add(answers[0], answers[1])
                tell(Round(comparison.rounds, answers[0], answers[1]))
            wait = began + every - time.monotonic()
            if time.monotonic() + wait > ends:
                return
            await asyncio.sleep(max(0.0, wait))


async def _ask(session: aiohttp.ClientSession, side: Side) -> Answer:
    headers = {"Content-Type": "application/json", "User-Agent": f"load-watcher/{__version__} compare"}
    if side.token:
        headers["Authorization"] = f"Bearer {side.token}"
    try:
        async with session.get(side.url, headers=headers) as response:
            body = await response.read()
            if response.status != 200:
                said = body[:200].decode("utf-8", "replace").strip()
                raise CompareError(
                    f"{side.name}, {side.url}, answered {response.status}: {said or 'nothing'}",
                    hint="to the plug-ins this is a failure: they keep the copy that they have",
                )
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        reason = str(error) or type(error).__name__
        hint = "is it running, and is the address the one that the scheduler has as watcherAddress?"
        raise CompareError(f"no answer from {side.name}, {side.url}: {reason}", hint=hint) from error
    try:
        return read_answer(body)
    except ValueError as error:
        raise CompareError(f"{side.name}, {side.url}: {error}", hint="its own log should say why") from error
