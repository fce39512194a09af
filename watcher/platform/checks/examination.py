"""The examination: which checks there are to run, in what order, and what becomes of one that hangs or breaks.

A check is a coroutine function with a name, and with the names of those that must have gone well before it makes sense:
nobody wants to read that 300 nodes are missing where the password is wrong. All run at once, each under a deadline of
its own, and what they say is told in the order of the table. What one finds out for others (the settings, what the
source answered) it leaves in the examination, by type.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from watcher.platform.checks.results import Result, Status, fail, skipped
from watcher.platform.logs import one_line
from watcher.platform.settings.tables import Settings

log = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 30.0
STOPPERS = (Status.FAIL, Status.SKIPPED)


@dataclass
class Examination:
    """What is examined. `load` gives the settings, or raises SettingsError; `url` is where a running service was said
    to be, `scheduler_files` are scheduler configurations that were named, `evictor_files` those of what evicts;
    `environ` and `cwd` are the process's."""

    load: Callable[[], Settings]
    environ: Mapping[str, str]
    cwd: Path
    url: str = ""
    scheduler_files: Sequence[Path] = ()
    evictor_files: Sequence[Path] = ()
    _facts: dict[type, Any] = field(default_factory=dict)

    def leave(self, fact: object) -> None:
        """Leave something for the checks that need this one."""
        self._facts[type(fact)] = fact

    def the(self, kind: type[T]) -> T:
        """What a check that this one needs has left."""
        fact: T = self._facts[kind]
        return fact

    def find(self, kind: type[T]) -> T | None:
        """What a check that this one comes after has left, if it has."""
        fact: T | None = self._facts.get(kind)
        return fact


Run = Callable[[Examination], Awaitable[Sequence[Result]]]


@dataclass(frozen=True, slots=True)
class Check:
    """`needs` are names of earlier checks of the table, of which nothing may have failed or been skipped; those of
    `after` need only be over."""

    name: str
    run: Run
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    deadline: float = DEADLINE_S


def chosen(checks: Sequence[Check], names: Collection[str]) -> tuple[Check, ...]:
    """Those of these names, and what they need."""
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
    examination: Examination, checks: Sequence[Check], *, tell: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Run the checks; `tell` hears each result as soon as it, and all before it, are known. Never raises for what a
    check does."""
    tasks: dict[str, asyncio.Task[list[Result]]] = {}
    for check in checks:
        before = {name: tasks[name] for name in (*check.needs, *check.after)}
        tasks[check.name] = asyncio.create_task(_finished(check, examination, before), name=f"doctor-{check.name}")
    results: list[Result] = []
    for task in tasks.values():
        for result in await task:
            tell(result)
            results.append(result)
    return results


async def _finished(
    check: Check, examination: Examination, before: Mapping[str, asyncio.Task[list[Result]]]
) -> list[Result]:
    for name, task in before.items():
        if any(result.status in STOPPERS for result in await task) and name in check.needs:
            return [replace(skipped(f"not looked at: it needs the check {name} to go well"), check=check.name)]
    # What is told may have the names of nodes in it, and what a far side said: no second line by a clever name.
    return [
        replace(result, check=check.name, what=one_line(result.what), cure=one_line(result.cure))
        for result in await _bounded(check, examination)
    ]


async def _bounded(check: Check, examination: Examination) -> Sequence[Result]:
    try:
        async with asyncio.timeout(check.deadline):
            return await check.run(examination)
    except TimeoutError:
        cure = "something it asks hangs: look at the network, at the disk and at the load of this machine"
        return [fail(f"this check did not end within {check.deadline:g} s", cure)]
    except Exception as error:  # a fault of ours must cost its own line only
        log.debug("the check %s failed", check.name, exc_info=True)
        cure = "this is a fault of load-watcher: please report it, with what --verbose shows"
        return [fail(f"this check itself failed: {type(error).__name__}", cure)]


async def aside(call: Callable[[], T]) -> T:
    """Call something that blocks, in a thread that holds up neither the others nor the end of the process, even if it
    never returns (a disk that hangs)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(outcome: Callable[[], None]) -> None:
        if not future.done():
            outcome()

    def run() -> None:
        try:
            value = call()
        except Exception as error:
            outcome = _later(future.set_exception, error)
        else:
            outcome = _later(future.set_result, value)
        with suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits for it any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="doctor", daemon=True).start()
    return await future


def _later(call: Callable[[T], None], argument: T) -> Callable[[], None]:
    return lambda: call(argument)
