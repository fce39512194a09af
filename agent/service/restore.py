"""`load-watcher agent restore`: write back every changed quota and let new pods onto the node."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from agent.audit.database import AuditError
from agent.executor.cluster import Cluster
from agent.executor.executor import Executor
from agent.executor.knob_writer import PutBack
from agent.model import SCHEDULING_TAINT
from agent.service.build import kube_client, open_audit
from agent.service.node_server import CannotRun
from agent.service.settings import AgentSettings
from agent.service.sources import WrittenGroups
from watcher.core.kubernetes.errors import KubeError
from watcher.platform.settings.tables import Settings


@dataclass(frozen=True, slots=True)
class Restored:
    """What `restore` did: of each value that was remembered, and what is left of the taint, "" for nothing."""

    quotas: tuple[PutBack, ...]
    tainted: str = ""


async def restore(settings: AgentSettings, everything: Settings) -> Restored:
    """Every quota back to what it was before the agent, and new pods welcome: for after a crash, or an uninstall.
    Raises CannotRun."""
    async with AsyncExitStack() as stack:
        if not settings.state_file.exists():
            raise CannotRun(f"there is no file {settings.state_file}: nothing is known to restore")
        audit = open_audit(settings, begin_anew=False)
        stack.callback(audit.close)
        cluster = None
        client = kube_client(settings.kubernetes, everything)
        if client is not None:
            stack.push_async_callback(client.close)
            cluster = Cluster(client, node=settings.node_name(), control=settings.control, clock=time.time)
        groups = WrittenGroups(settings)
        stack.callback(groups.close)
        try:
            executor = Executor(audit, groups.groups, cluster=cluster)
            quotas = await executor.restore_all(reason="load-watcher agent restore")
            return Restored(quotas, _still_tainted(settings) if await executor.tainted() else "")
        except (AuditError, KubeError) as error:
            raise CannotRun(f"{error}\n  {error.hint}".rstrip()) from None


def _still_tainted(settings: AgentSettings) -> str:
    """What is to be told of a taint that could not be taken off."""
    node = settings.node_name()
    return (
        f"node {node} may still keep new pods away (taint {SCHEDULING_TAINT}): the Kubernetes API did not take it off\n"
        f"  run this again where kubernetes.kubeconfig is set, or: kubectl taint node {node} {SCHEDULING_TAINT}-"
    )


def in_words(each: PutBack) -> str:
    """What became of what was remembered of one container or pod."""
    container = f", container {each.remembered.container}" if each.remembered.container else ""
    return f"{each.remembered.pod}{container}: {each.text}"
