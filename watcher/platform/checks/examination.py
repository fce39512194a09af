"""Runs the checks: order, dependencies, deadlines and errors.

A check is a coroutine function with a name and the names of the checks that must succeed first: if the password is
wrong, a report of 300 missing nodes is useless. All checks run concurrently, each with its own deadline; results are
reported in the order of the table. A check stores facts for other checks (the settings, the source's response) in the
examination, by type.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from watcher.core.config.settings import Settings
from watcher.platform.checks.results import CheckResult, CheckStatus, fail, skipped
from watcher.platform.logs import one_line

log = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 30.0
BLOCKING_STATUSES = (CheckStatus.FAIL, CheckStatus.SKIPPED)


@dataclass
class CheckContext:
    """Inputs and shared facts of the checks. `load` returns the settings or raises SettingsError; `url` is the given
    address of a running service, or ""; `scheduler_files` and `evictor_files` are the given configuration files of
    schedulers and evictors; `environ` and `cwd` are the process's environment and working directory.
    """

    load: Callable[[], Settings]
    environ: Mapping[str, str]
    cwd: Path
    url: str = ""
    scheduler_files: Sequence[Path] = ()
    evictor_files: Sequence[Path] = ()
    _facts: dict[type, Any] = field(default_factory=dict)

    def put(self, fact: object) -> None:
        """Store a fact for dependent checks; it replaces an earlier fact of its type."""
        self._facts[type(fact)] = fact

    def get(self, kind: type[T]) -> T:
        """Return the fact of this type from a check that the caller needs; KeyError if there is none."""
        fact: T = self._facts[kind]
        return fact

    def find(self, kind: type[T]) -> T | None:
        """Return the fact of this type from an earlier check, or None."""
        fact: T | None = self._facts.get(kind)
        return fact


Run = Callable[[CheckContext], Awaitable[Sequence[CheckResult]]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check. `needs` names earlier checks of the table without which it is skipped: none of their results may be
    failed or skipped. It also waits for the checks in `after`, whatever their results. `deadline` is in seconds.
    """

    name: str
    run: Run
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    deadline: float = DEADLINE_S


def select_checks(checks: Sequence[Check], names: Collection[str]) -> tuple[Check, ...]:
    """Return the checks with these names and the checks that they need, in the order of `checks`."""
    wanted = set(names)
    for check in reversed(checks):
        if check.name in wanted:
            wanted |= set(check.needs)
    return tuple(
        replace(check, after=tuple(name for name in check.after if name in wanted))
        for check in checks
        if check.name in wanted
    )


async def examine(
    examination: CheckContext,
    checks: Sequence[Check],
    *,
    on_result: Callable[[CheckResult], None] = lambda result: None,
) -> list[CheckResult]:
    """Run the checks; `on_result` is called with each result as soon as it and all results before it are known.
    Exceptions of checks become failed results.
    """
    tasks: dict[str, asyncio.Task[list[CheckResult]]] = {}
    for check in checks:
        before = {name: tasks[name] for name in (*check.needs, *check.after)}
        tasks[check.name] = asyncio.create_task(_finished(check, examination, before), name=f"doctor-{check.name}")
    results: list[CheckResult] = []
    for task in tasks.values():
        for result in await task:
            on_result(result)
            results.append(result)
    return results


async def _finished(
    check: Check, examination: CheckContext, before: Mapping[str, asyncio.Task[list[CheckResult]]]
) -> list[CheckResult]:
    for name, task in before.items():
        if any(result.status in BLOCKING_STATUSES for result in await task) and name in check.needs:
            return [replace(skipped(f"not checked: check '{name}' failed or was skipped"), check=check.name)]
    # Results may contain node names and remote messages: they are limited to one line, against injected lines.
    return [
        replace(result, check=check.name, what=one_line(result.what), cure=one_line(result.cure))
        for result in await _bounded(check, examination)
    ]


async def _bounded(check: Check, examination: CheckContext) -> Sequence[CheckResult]:
    try:
        async with asyncio.timeout(check.deadline):
            return await check.run(examination)
    except TimeoutError:
        cure = "a remote service or the disk may hang: check the network, the disk and the load of this machine"
        return [fail(f"the check did not finish within {check.deadline:g} s", cure)]
    except Exception as error:  # a bug in one check must not affect the others
        log.debug("check %s raised an exception; reported as failed", check.name, exc_info=True)
        cure = "this is a bug in load-watcher: please report it, with the output of --verbose"
        return [fail(f"the check raised an exception: {type(error).__name__}", cure)]


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking call in a daemon thread. If it never returns (for example because of a hanging disk), it blocks
    neither the other checks nor the exit of the process.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # a call in progress cannot be cancelled

    def run() -> None:
        try:
            outcome.set_result(call())
        except Exception as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return await asyncio.wrap_future(outcome)
