"""The agent as a process: built from its settings, with HTTP routes, startup, shutdown, `--once` and `restore`."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

from agent.audit.database import AuditError
from agent.decision.plan import RuleVerdict
from agent.executor.permissions import OnExit
from agent.service import node_server
from agent.service.build import LOOK_PATIENCE_S, AgentRuntime, build_agent
from agent.service.node_server import listening, stop_signal
from agent.service.pages import AgentPages
from agent.service.restore import _still_tainted, in_words
from agent.service.settings import AgentSettings
from watcher import __version__
from watcher.core.config.settings import Settings
from watcher.platform.logs import ClusterSettings
from watcher.platform.malloc import limit_malloc_arenas
from watcher.platform.telemetry.instruments import Instruments

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.05
MOST_LOOKS = 12  # two minutes with the default interval
"""Maximum number of cycles of --once. LOOK_PATIENCE_S is how long it waits for kubelet and API, LOOK_AGAIN_S how often
it checks them; a source that has not responded by then counts as missing."""
RENEWING = (
    "the token file is read again if it changed; policies are reloaded automatically; other settings need a restart"
)
GARBAGE_AFTER = 20_000
"""Garbage collection threshold in objects. A cycle over 200 pods allocates about 10,000, freed in the next cycle."""


# --- construction ------------------------------------------------------------------------------------------------


# --- pages -------------------------------------------------------------------------------------------------------


# --- run ---------------------------------------------------------------------------------------------------------


def run(settings: AgentSettings, everything: Settings) -> int:
    """Run the agent until a stop signal; returns the exit code."""
    return node_server.run(serve(settings, everything), name="agent")


async def serve(settings: AgentSettings, everything: Settings) -> int:
    """Run the agent until a stop signal, then restore if on_exit says so; returns the exit code."""
    limit_malloc_arenas()  # each cycle runs in a different thread
    stop = stop_signal()
    async with build_agent(settings, everything) as made:
        _say(settings)
        telemetry = Instruments(version=__version__, cluster=everything[ClusterSettings].name or "")
        telemetry.add(made.metrics)
        pages = AgentPages(made, telemetry)
        async with listening(settings, pages, telemetry, renewing=RENEWING) as address:
            print(f"load-watcher agent listens on {address}", flush=True)
            gc.freeze()  # objects that exist now are permanent: exclude them from garbage collection,
            gc.set_threshold(GARBAGE_AFTER)  # and do not run it ten times per cycle
            running = asyncio.create_task(made.agent.run(), name="agent")
            await stop.wait()
            log.info("stopping")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return await _leave(made, settings)


def _say(settings: AgentSettings) -> None:
    """Log the node, the mode and the audit file."""
    enforce = settings.mode == "enforce"
    says = "enforces its plans" if enforce else "runs in preview and changes nothing (use --enforce to act)"
    log.info("the agent on node %s %s; audit file: %s", settings.node_name(), says, settings.state_file)


async def _leave(made: AgentRuntime, settings: AgentSettings) -> int:
    on_exit = OnExit(settings.on_exit)
    try:
        put_back = await made.executor.shut_down(on_exit)
        tainted = on_exit is OnExit.RESTORE and await made.executor.tainted()
    except AuditError as error:
        log.error("restoring quotas at shutdown failed, they stay lowered: %s. %s", error, error.hint)
        return 1
    for each in put_back:
        log.info("%s", in_words(each))
    if tainted:
        log.warning("%s", _still_tainted(settings))
    return 0


# --- once, and restore -------------------------------------------------------------------------------------------


async def look_once(settings: AgentSettings, everything: Settings, *, pause: float) -> dict[str, Any]:
    """Run cycles, `pause` seconds apart, until no rule has the verdict COUNTING, at most MOST_LOOKS after the first
    one, which has no rates. Returns the explanation of the last cycle. Raises CannotRun."""
    async with build_agent(settings, everything) as made:
        for _ in range(round(LOOK_PATIENCE_S / LOOK_AGAIN_S)):
            if await made.informed():
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        await made.agent.cycle()
        for _ in range(MOST_LOOKS):
            await asyncio.sleep(pause)
            plan = (await made.agent.cycle()).plan
            counting = [rule.text for rule in (plan.rules if plan else ()) if rule.verdict is RuleVerdict.COUNTING]
            if not counting:
                break
            log.info("next cycle in %g s, because rules need more samples: %s", pause, "; ".join(counting))
        return made.agent.explanation()
