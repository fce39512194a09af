"""`load-watcher agent restore`: write back every changed quota and let new pods onto the node."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from agent.audit.database import AuditError
from agent.executor.cluster import ClusterActions
from agent.executor.executor import Executor
from agent.executor.knob_writer import RestoreResult
from agent.model import SCHEDULING_TAINT
from agent.service.build import WritableCgroups, kube_client, open_audit
from agent.service.node_server import CannotRun
from agent.service.settings import AgentSettings
from watcher.core.config.settings import Settings
from watcher.core.kubernetes.errors import KubeError


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
        groups = WritableCgroups(settings)
        stack.callback(groups.close)
        try:
            executor = Executor(audit, groups.groups, cluster=cluster)
            quotas = await executor.restore_all(reason="load-watcher agent restore")
            return RestoreSummary(quotas, _still_tainted(settings) if await executor.tainted() else "")
        except (AuditError, KubeError) as error:
            raise CannotRun(f"{error}\n  {error.hint}".rstrip()) from None


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
