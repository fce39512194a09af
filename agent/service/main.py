"""The agent as a process: put together from its settings, its pages, its listeners, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

from agent.audit.database import AuditError
from agent.decision.plan import Verdict
from agent.executor.permissions import OnExit
from agent.service import node_server
from agent.service.build import LOOK_PATIENCE_S, Assembled, assembled
from agent.service.node_server import listening, stop_signal
from agent.service.pages import Pages
from agent.service.restore import _still_tainted, in_words
from agent.service.settings import AgentSettings
from watcher import __version__
from watcher.platform.malloc import share_one_heap
from watcher.platform.settings.tables import Settings
from watcher.platform.telemetry.instruments import Instruments

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.05
MOST_LOOKS = 12  # of --once: two minutes, by the usual interval
"""How long, and how often, a single look waits for kubelet and API; who has not answered by then is missing."""
GARBAGE_AFTER = 20_000
"""Objects. A cycle over 200 pods makes some ten thousand, and they go with the next one."""


# --- put together ------------------------------------------------------------------------------------------------


# --- pages -------------------------------------------------------------------------------------------------------


# --- run ---------------------------------------------------------------------------------------------------------


def run(settings: AgentSettings, everything: Settings) -> int:
    """Until told to stop; the exit code."""
    return node_server.run(serve(settings, everything), name="agent")


async def serve(settings: AgentSettings, everything: Settings) -> int:
    """Start, run until a signal, restore if that was asked for, end."""
    share_one_heap()  # each cycle is in another thread
    stop = stop_signal(renewing="policies are followed; other settings need a restart")
    async with assembled(settings, everything) as made:
        _say(settings)
        telemetry = Instruments(version=__version__, cluster=everything.cluster.name or "")
        telemetry.add(made.metrics)
        pages = Pages(made, telemetry)
        async with listening(settings, pages, telemetry) as address:
            print(f"load-watcher agent listens on {address}", flush=True)
            gc.freeze()  # what is there now stays: no need to look through it for garbage in every cycle,
            gc.set_threshold(GARBAGE_AFTER)  # nor ten times a cycle through what it makes
            running = asyncio.create_task(made.agent.run(), name="agent")
            await stop.wait()
            log.info("stopping")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return await _leave(made, settings)


def _say(settings: AgentSettings) -> None:
    """In one line, what this process may do."""
    enforce = settings.mode == "enforce"
    says = "acts on what it decides" if enforce else "decides and reports, and changes nothing (--enforce acts)"
    log.info("the agent on node %s %s; its file is %s", settings.node_name(), says, settings.state_file)


async def _leave(made: Assembled, settings: AgentSettings) -> int:
    on_exit = OnExit(settings.on_exit)
    try:
        put_back = await made.executor.leave(on_exit)
        tainted = on_exit is OnExit.RESTORE and await made.executor.tainted()
    except AuditError as error:
        log.error("quotas could not be put back: %s. %s", error, error.hint)
        return 1
    for each in put_back:
        log.info("%s", in_words(each))
    if tainted:
        log.warning("%s", _still_tainted(settings))
    return 0


# --- once, and restore -------------------------------------------------------------------------------------------


async def look_once(settings: AgentSettings, everything: Settings, *, pause: float) -> dict[str, Any]:
    """The explanation of the cycle in which no rule counts samples in a row any more, so that each has decided, or of
    the last of MOST_LOOKS; the first one is without rates. Raises CannotRun."""
    async with assembled(settings, everything) as made:
        for _ in range(round(LOOK_PATIENCE_S / LOOK_AGAIN_S)):
            if await made.informed():
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        await made.agent.cycle()
        for _ in range(MOST_LOOKS):
            await asyncio.sleep(pause)
            plan = (await made.agent.cycle()).plan
            counting = [rule.text for rule in (plan.rules if plan else ()) if rule.verdict is Verdict.COUNTING]
            if not counting:
                break
            log.info("looking again in %g s: %s", pause, "; ".join(counting))
        return made.agent.explanation()
