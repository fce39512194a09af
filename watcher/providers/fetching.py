"""What the providers that ask a server many questions have in common.

They ask one question for each metric, or for a few that stand together; a question that may yet be answered is asked
again; a fetch fails only if every question failed; and a metric that falls silent is told. What is asked, and how an
answer is read, is each provider's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from watcher.arrays import F64
from watcher.model import METRIC_BY_NAME, Finding, FindingKind, Metric, Remedy, SeriesBatch
from watcher.platform.net.redaction import shown
from watcher.providers.base import (
    Fetch,
    ProviderError,
    ProviderMalformed,
    ProviderPartial,
    ProviderRefused,
    ProviderUnreachable,
    QueryFailure,
    QueryPlan,
)

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
ErrorT = TypeVar("ErrorT", bound=ProviderError)

FETCH_SHARE = 0.75
"""Of an interval; a little less than the 0.8 of a tick, so that late metrics fail by themselves, not with the tick."""
SILENT_FETCHES = 3
"""After so many in a row without a point a metric that had some is reported."""
PASSING_STATUSES = frozenset({429, 502, 503, 504})
PAUSED_AT_MOST_S = 900.0
"""A source may ask not to be asked for hours; the longest window would then be empty anyway."""
AHEAD_S = 30.0
"""As the review has it: what is further ahead of the present is a wrong clock's."""
BEHIND_S = 3600.0
"""Longer ago than any clock is usually wrong by, and than any window is long that is asked for again."""
CLOCK_RESOLUTION_S = 1.5
"""A Date header has whole seconds, and an answer some way to go: smaller offsets mean nothing."""


# --- what a far side says --------------------------------------------------------------------------------------------


def clock_offset(date: str | None, *, heard: float) -> float | None:
    """The far clock minus ours in seconds, 0 within what a Date header can tell, None without one. Servers write the
    header as they begin to answer, which on average is half a second after the second it names."""
    if not date:
        return None
    try:
        offset = parsedate_to_datetime(date).timestamp() + 0.5 - heard
    except ValueError:
        return None
    return 0.0 if abs(offset) < CLOCK_RESOLUTION_S else offset


def unexpected(body: bytes, *, expected: str, api: str, content_type: str, problem: str) -> ProviderMalformed:
    """The error for an answer that should have been `expected` ("JSON") of `api` ("the InfluxDB API")."""
    start = shown(body[:1024].decode(errors="replace"))
    if body.lstrip()[:1] == b"<":
        return ProviderMalformed(
            f"it answered with a web page, not {expected}: {start}",
            hint=f"provider.address may lead to a login page or a user interface instead of {api}.",
        )
    kind = f" ({shown(content_type)})" if content_type else ""
    return ProviderMalformed(
        f"its answer{kind} is not {expected}: {shown(problem)}; it begins {start}",
        hint=f"Is provider.address that of {api}, or of something before it?",
    )


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds until a source that was asked too often wants to be asked again, at most PAUSED_AT_MOST_S; None where it
    does not tell. Retry-After has seconds or a date (RFC 9110, 10.2.3), X-RateLimit-Reset seconds (Datadog)."""
    for name in ("Retry-After", "X-RateLimit-Reset"):
        seconds = _seconds(headers.get(name, ""), date=headers.get("Date", ""))
        if seconds is not None:
            return min(max(seconds, 0.0), PAUSED_AT_MOST_S)
    return None


def _seconds(text: str, *, date: str) -> float | None:
    """The seconds that a header says, as a number or as a time after `date`; None where it says neither."""
    with contextlib.suppress(ValueError):
        seconds = float(text)
        return seconds if np.isfinite(seconds) else None
    with contextlib.suppress(ValueError, TypeError):  # the latter where one of the two has no time zone
        return (parsedate_to_datetime(text) - parsedate_to_datetime(date)).total_seconds()
    return None


# --- errors and retries ----------------------------------------------------------------------------------------------


def placed(error: ErrorT, address: str, *, scrub: Callable[[str], str]) -> ErrorT:
    """The same error with the address before its message, in which `scrub` hides what we sent in confidence: a proxy
    may answer with what it was asked."""
    told = copy.copy(error)
    told.args = (f"{address}: {scrub(str(error))}",)
    return told


def most_telling(failures: Sequence[QueryFailure]) -> ProviderError:
    """The one error to raise for many: nobody asks about refusals of a source that cannot be reached."""
    for kind in (ProviderUnreachable, ProviderRefused, ProviderPartial, ProviderMalformed):
        for failure in failures:
            if isinstance(failure.error, kind):
                return failure.error
    return failures[0].error


async def retried(attempt: Callable[[], Awaitable[T]], *, pauses: Sequence[float], deadline: float) -> T:
    """What `attempt` returns, tried once more after each pause (seconds) while it raises ProviderUnreachable, and after
    a longer one where the source said so.

    `deadline` is in the time of the event loop: no retry begins that it would cut.
    """
    loop = asyncio.get_running_loop()
    for pause in (*pauses, None):
        try:
            return await attempt()
        except ProviderUnreachable as error:
            if pause is None:
                raise
            pause = max(pause, error.retry_after_s or 0.0)
            if loop.time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


class Aside:
    """Slow work in a thread, one piece at a time: it needs Python's global lock anyway, and four threads at it would
    each make the event loop wait its turn."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()

    async def do(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """What `work` returns."""
        async with self._free:
            return await asyncio.to_thread(work, *arguments, **options)


# --- a fetch ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fetching:
    """One fetch under way. `present` is false for a look back (backfill), whose emptiness means nothing; `deadline` is
    in the time of the event loop."""

    since: float
    until: float
    deadline: float
    present: bool
    findings: list[Finding] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def find(self, kind: FindingKind, metric: Metric, reason: str, remedy: Remedy) -> None:
        """Note what concerns a metric of all nodes."""
        self.findings.append(Finding(kind, "", metric.name, self.until, reason, remedy))


def untimely(metric: Metric, time: F64, *, since: float, until: float, beyond: float = 0.0) -> list[Finding]:
    """What is found about times (unix seconds) far from the span that was asked for. A few around it come with rounded
    spans; `beyond` is by how many seconds more was asked for than is wanted."""
    found = []
    ahead, behind = time > until + beyond + AHEAD_S, time < since - BEHIND_S
    for kind, far, side in ((FindingKind.FUTURE_SAMPLE, ahead, "after"), (FindingKind.SOURCE, behind, "before")):
        if far.any():
            reason = (
                f"{np.count_nonzero(far)} of {len(time)} samples are of long {side} the times that were asked for:"
                " is a clock wrong, or are they in another unit than they should be?"
            )
            found.append(Finding(kind, "", metric.name, until, reason, Remedy.DROPPED))
    return found


@dataclass(slots=True)
class Silence:
    """What is known of one metric's samples: `had` once there were some, `fetches` in a row that brought none."""

    had: bool = False
    fetches: int = 0

    def note(self, heard: bool, *, present: bool) -> None:
        """A fetch brought samples or did not; that the past is empty says nothing."""
        self.had |= heard
        if present:
            self.fetches = 0 if heard else self.fetches + 1

    @property
    def worth_telling(self) -> bool:
        """Points come late at times, so one that had some is given a few fetches."""
        return self.fetches >= (SILENT_FETCHES if self.had else 1)


class Fetches:
    """The fetches of one provider, one after the other, and what was last said about how they ask."""

    def __init__(self, *, max_seconds: float, fetch_deadline: float) -> None:
        self._max_seconds, self._fetch_deadline = max_seconds, fetch_deadline
        self._latest = float("-inf")
        self._announced: Mapping[str, QueryPlan] = {}

    def begin(self, since: float, until: float) -> Fetching:
        """A fetch of the span, of which no more than the longest window is ever asked for."""
        present = until >= self._latest
        self._latest = max(self._latest, until)
        deadline = asyncio.get_running_loop().time() + self._fetch_deadline
        return Fetching(max(since, until - self._max_seconds), until, deadline, present)

    def announce(self, plans: Mapping[str, QueryPlan], *, address: str) -> None:
        """One log line when something else is read than before."""
        changed = [plan for name, plan in plans.items() if self._announced.get(name) != plan]
        self._announced = plans
        if changed:
            uses = "; ".join(
                f"{METRIC_BY_NAME[plan.metric].key}: {plan.expression} by {plan.node_label}" for plan in changed
            )
            log.info("using %s for %s", address, uses)


Outcome = SeriesBatch | QueryFailure | None
"""Of one metric: its samples, its failure, or None where it has no samples in this span."""


async def answered(questions: Iterable[Coroutine[Any, Any, Sequence[Outcome]]]) -> list[Outcome]:
    """The outcomes of questions that are asked at once. Raises ProviderError if all failed."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(question) for question in questions]
    outcomes = [outcome for task in tasks for outcome in task.result()]
    failures = [outcome for outcome in outcomes if isinstance(outcome, QueryFailure)]
    if failures and len(failures) == len(outcomes):
        raise most_telling(failures)
    return outcomes


def fetched(outcomes: Sequence[Outcome], fetching: Fetching, *, plans: Mapping[str, QueryPlan]) -> Fetch:
    """The answer to who fetches."""
    return Fetch(
        batches=tuple(outcome for outcome in outcomes if isinstance(outcome, SeriesBatch)),
        failures=tuple(outcome for outcome in outcomes if isinstance(outcome, QueryFailure)),
        plans=plans,
        findings=tuple(fetching.findings),
        clock_offset_s=min(fetching.clock, key=abs) if fetching.clock else None,
    )


# --- settings --------------------------------------------------------------------------------------------------------
