"""The agent as a process: built from its settings, with HTTP routes, startup, shutdown, `--once` and `restore`."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from agent.audit.database import AuditError
from agent.cgroups.detection import KubeletGroups
from agent.decision.plan import RuleVerdict
from agent.executor.cluster import ClusterActions
from agent.executor.executor import Executor, OnExit
from agent.executor.knob_writer import RestoreResult
from agent.model import SCHEDULING_TAINT
from agent.service import node_server
from agent.service.dependencies import (
    LOOK_PATIENCE_S,
    AgentRuntime,
    build_agent,
    kube_client,
    open_audit,
)
from agent.service.node_server import CannotRun, listening, stop_signal
from agent.service.pages import AgentPages
from agent.service.settings import AgentSettings
from watcher import __version__
from watcher.core.config.settings import Settings
from watcher.core.kubernetes.errors import KubeError
from watcher.platform.interpreter import limit_malloc_arenas
from watcher.platform.logs import ClusterSettings
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


def run(settings: AgentSettings, everything: Settings) -> int:
    """Run the agent until a stop signal; returns the exit code."""
    return node_server.run(serve(settings, everything), name="agent")


async def serve(settings: AgentSettings, everything: Settings) -> int:
    """Run the agent until a stop signal, then restore if on_exit is set to it; returns the exit code."""
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
    try:
        put_back = await made.executor.shut_down(settings.on_exit)
        tainted = settings.on_exit is OnExit.RESTORE and await made.executor.tainted()
    except AuditError as error:
        log.error("restoring quotas at shutdown failed, they stay lowered: %s. %s", error, error.hint)
        return 1
    for each in put_back:
        log.info("%s", in_words(each))
    if tainted:
        log.warning("%s", _still_tainted(settings))
    return 0


# --- once -------------------------------------------------------------------------------------------------------------


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


# --- restore ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreSummary:
    """Result of `restore`: one entry for each stored original value, and a message if the taint remains ("" if not)."""

    quotas: tuple[RestoreResult, ...]
    tainted: str = ""


async def restore(settings: AgentSettings, everything: Settings) -> RestoreSummary:
    """Restore all original values and remove the taint, after a crash or before an uninstall. Raises CannotRun."""
    async with AsyncExitStack() as stack:
        if not settings.state_file.exists():
            hint = "specify the agent's file with --state-file, or use --missing-ok where the agent never ran"
            raise CannotRun(
                f"the audit file {settings.state_file} does not exist: no values are known to restore\n  {hint}"
            )
        audit = open_audit(settings, replace_damaged=False)
        stack.callback(audit.close)
        cluster = None
        client = kube_client(settings.kubernetes, everything)
        if client is not None:
            stack.push_async_callback(client.close)
            cluster = ClusterActions(client, node=settings.node_name(), control=settings.control, clock=time.time)
        groups = KubeletGroups(settings.find_layout)
        stack.callback(groups.close)
        try:
            executor = Executor(audit, groups, cluster=cluster)
            quotas = await executor.restore_all(reason="load-watcher agent restore")
            return RestoreSummary(quotas, _still_tainted(settings) if await executor.tainted() else "")
        except (AuditError, KubeError) as error:
            raise CannotRun.of(error) from None


def _still_tainted(settings: AgentSettings) -> str:
    """Message for a taint that could not be removed."""
    node = settings.node_name()
    return (
        f"node {node} may still keep new pods away: the taint {SCHEDULING_TAINT} was not removed through the API\n"
        f"  run load-watcher agent restore with kubernetes.kubeconfig set, or: kubectl taint node {node}"
        f" {SCHEDULING_TAINT}-"
    )


def in_words(each: RestoreResult) -> str:
    """Describe the result of restoring one value of a container or pod."""
    container = f", container {each.remembered.container}" if each.remembered.container else ""
    return f"{each.remembered.pod}{container}: {each.text}"
