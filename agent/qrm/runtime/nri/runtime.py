"""The container runtime as the manager uses it in the mode nri: what exists, updates, and the plug-in that the runtime
calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from agent.qrm.cluster.pod_source import NodePodSources
from agent.qrm.manager.manager import Manager
from agent.qrm.reconciler import Reconciler
from agent.qrm.runtime.nri.failures import NriFindings
from agent.qrm.runtime.nri.plugin import NriPlugin
from agent.qrm.runtime.nri.table import RuntimePods, RuntimeTable
from agent.qrm.runtime.nri.ttrpc import FIRST_DELAY_S, NriSession
from agent.qrm.runtime.nri.updates import RoundUpdates
from agent.qrm.runtime.restore import OriginalValues
from agent.qrm.settings import REFUSE, QrmSettings


class NriRuntime:
    """Built before the rounds, which use `pods`, `updates` and `active`; `run` then serves the runtime. `first_delay`
    is that of the session, in seconds."""

    def __init__(
        self, settings: QrmSettings, manager: Manager, pods: NodePodSources, *, first_delay: float = FIRST_DELAY_S
    ) -> None:
        self.label = f"{settings.nri_index}-{settings.nri_name}"
        self.findings = NriFindings(time.time)
        self.table = RuntimeTable()
        self.pods = RuntimePods(pods, self.table)
        self.session = NriSession(
            settings.nri_socket,
            lambda: {} if self.plugin is None else self.plugin.methods(),
            name=settings.nri_name,
            index=settings.nri_index,
            failed=self._failed,
            first_delay=first_delay,
        )
        self.updates = RoundUpdates(manager, self.session.update, self.findings)
        self.plugin: NriPlugin | None = None
        self._manager = manager
        self._originals = OriginalValues(settings.state_dir)
        self._refuses = settings.on_failure == REFUSE

    def active(self) -> Collection[str]:
        """The UIDs of pods whose allocations must not be released, because their containers still exist. Before the
        first synchronization, these can be all pods of the checkpoint."""
        return self.table.pods if self.table.synchronized else self._manager.allocations.pods

    async def run(self, rounds: Reconciler, observe: Callable[[str, float], None]) -> None:
        """Serve the runtime until cancelled. Raises OSError if the stored values cannot be read."""
        self._originals.read()
        self.plugin = NriPlugin(
            rounds,
            self.pods,
            self.table,
            self._originals,
            self.findings,
            label=self.label,
            refuses=self._refuses,
            undelivered=lambda: self.updates.undelivered,
            observe=observe,
        )
        await self.session.run()

    def _failed(self, kind: str, message: str) -> None:
        self.table.connected = False
        effect = "are refused if the runtime requires the plug-in" if self._refuses else "start without allocations"
        self.findings.add(kind, f"{message}; containers {effect} until the plug-in is registered")

    @property
    def trouble(self) -> str:
        """Why containers start without allocations now; "" if they do not."""
        if self.session.trouble:
            return self.session.trouble
        return "" if self.table.connected else "the runtime has not sent its pods and containers yet"

    def state(self) -> dict[str, Any]:
        """The connection, the runtime and the last failures, as JSON."""
        facts = self.plugin.runtime if self.plugin is not None else None
        return {
            "plugin": self.label,
            "socket": str(self.session.socket),
            "connected": not self.trouble,
            "trouble": self.trouble,
            "runtime": None if facts is None else {"name": facts.name, "version": facts.version, "nri": facts.nri},
            "on_failure": "refuse" if self._refuses else "open",
            "unpinned": self.findings.unpinned,
            "refused": self.findings.refused,
            "failures": dict(sorted(self.findings.counts.items())),
            "findings": self.findings.as_json(),
        }
