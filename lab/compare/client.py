"""Query two services, once or repeatedly, and accumulate their differences."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from lab.compare.comparison import Comparison, ServiceLoads, read_answer
from watcher import __version__
from watcher.core.messages import hide_secrets, printable
from watcher.platform.net.failures import cluster_hint, failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body
from watcher.platform.net.session import client_session

EVERY_S = 30.0  # polling interval of the plug-ins
TIMEOUT_S = 30.0


class CompareError(Exception):
    """A service could not be queried; `hint` states what to do."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two services; `name` is used in messages."""

    name: str
    address: str
    token: str | None = None

    @property
    def url(self) -> str:
        """URL that the plug-ins query."""
        return self.address.rstrip("/") + "/watcher"


@dataclass(frozen=True, slots=True)
class ComparisonRound:
    """One comparison, passed to the progress callback."""

    number: int
    ours: ServiceLoads
    theirs: ServiceLoads


async def run(
    ours: Side,
    theirs: Side,
    comparison: Comparison,
    *,
    duration: float = 0.0,
    every: float = EVERY_S,
    on_progress: Callable[[ComparisonRound], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> None:
    """Compare once, and then every `every` seconds until `duration` seconds have passed.

    Raises CompareError if the first comparison fails. Later failures are passed to `warn` and skipped, because services
    may restart during a long run. `on_progress` is called after each comparison.
    """
    ends = time.monotonic() + duration
    async with client_session(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        while True:
            began = time.monotonic()
            # await both even if one fails: a cancelled request would cause an error in the log of the other service
            asked = await asyncio.gather(_ask(session, ours), _ask(session, theirs), return_exceptions=True)
            failures = [answer for answer in asked if isinstance(answer, BaseException)]
            if failures and not (comparison.rounds and isinstance(failures[0], CompareError)):
                raise failures[0]
            if failures:
                warn(str(failures[0]))
            else:
                answers = [answer for answer in asked if isinstance(answer, ServiceLoads)]
                comparison.add(answers[0], answers[1])
                on_progress(ComparisonRound(comparison.rounds, answers[0], answers[1]))
            wait = began + every - time.monotonic()
            if time.monotonic() + wait > ends:
                return
            await asyncio.sleep(max(0.0, wait))


async def _ask(session: aiohttp.ClientSession, side: Side) -> ServiceLoads:
    headers = {"Content-Type": "application/json", "User-Agent": f"load-watcher/{__version__} compare"}
    if side.token:
        headers["Authorization"] = f"Bearer {side.token}"
    try:
        async with session.get(side.url, headers=headers, allow_redirects=False) as response:
            body = await read_body(response, answer_bound())
            if response.status != 200:
                said = body.decode("utf-8", "replace")
                said = printable(hide_secrets(said, (side.token or "",)))  # a proxy may echo it
                raise CompareError(
                    f"{side.name}, {side.url}, returned status {response.status}: {said or 'empty response'}",
                    hint="the plug-ins treat this as a failure and keep their cached copy",
                )
    except AnswerTooLarge as error:
        raise CompareError(f"{side.name}, {side.url}: {error}", hint=TOO_LARGE_HINT) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        hint = "check that the service is running and that the address equals watcherAddress of the scheduler"
        more = cluster_hint(side.url, environ=os.environ, home=Path.home())
        message = f"no response from {side.name}, {side.url}: {failure_reason(error, url=side.url)}"
        raise CompareError(message, hint="\n".join(filter(None, (hint, more)))) from error
    try:
        return read_answer(body)
    except ValueError as error:
        raise CompareError(f"{side.name}, {side.url}: {error}", hint="check the log of that service") from error
