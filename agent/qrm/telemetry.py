"""The components of the QoS Resource Manager that run, and their Prometheus metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.metrics_core import Metric as Family

from agent.qrm.cluster.pod_source import NodePodSources
from agent.qrm.grpc.contact import ManagerContact
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.manager.request import CPU
from agent.qrm.plugins.adjuster import Adjuster
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.reconciler import Reconciler
from agent.qrm.roles import OFFLINE, ONLINE
from agent.qrm.runtime.nri.runtime import NriRuntime
from agent.qrm.settings import QrmSettings
from watcher.platform.telemetry.instruments import Timings, counter, gauge

CALL_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
ROUND_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 10.0)


class QrmMetrics:
    """What is counted and timed: calls to plug-ins, rounds, answers to the container runtime, and writes of the
    checkpoint."""

    def __init__(self) -> None:
        self.checkpoints: Counter[str] = Counter()
        self._gathered: list[Family] = []
        self._errors: Counter[tuple[str, str]] = Counter()
        self._allocate = Timings(
            "qrm_allocate_seconds", "Duration of Allocate calls to plug-ins in seconds.", ("resource",), CALL_S
        )
        self._hints = Timings(
            "qrm_hints_seconds", "Duration of GetTopologyHints calls to plug-ins in seconds.", ("resource",), CALL_S
        )
        self._round = Timings("qrm_reconcile_seconds", "Duration of reconcile rounds in seconds.", (), ROUND_S)

        self._answers = Timings(
            "qrm_nri_answer_seconds", "Duration of answers to the container runtime in seconds.", ("method",), CALL_S
        )

    def observe_nri(self, method: str, seconds: float) -> None:
        """Record one answer to the container runtime."""
        self._answers.observe(seconds, method)

    def observe_call(self, resource: str, method: str, seconds: float, failed: bool) -> None:
        """Record one call to a plug-in."""
        if failed:
            self._errors[resource, method] += 1
        if method == "Allocate":
            self._allocate.observe(seconds, resource)
        elif method == "GetTopologyHints":
            self._hints.observe(seconds, resource)

    def observe_round(self, seconds: float) -> None:
        """Record the duration of one round in seconds."""
        self._round.observe(seconds)

    def gather(self, parts: QrmComponents) -> None:
        """Take a snapshot of the metrics in the event loop; `collect` runs in another thread, where the counters could
        change during the scrape."""
        self._gathered = list(self._families(parts))

    def collect(self) -> Iterator[Family]:
        """The last snapshot; called by the Prometheus registry."""
        yield from self._gathered

    def _families(self, parts: QrmComponents) -> Iterator[Family]:
        for timings in (self._allocate, self._hints, self._round):
            yield from timings.collect()
        errors = [({"resource": r, "method": m}, float(n)) for (r, m), n in sorted(self._errors.items())]
        yield counter("qrm_plugin_errors", "Failed calls to plug-ins.", errors)
        writes = [({"result": result}, float(n)) for result, n in sorted(self.checkpoints.items())]
        yield counter("qrm_checkpoint_writes", "Writes of the checkpoint file.", writes)
        if parts.rounds is not None:
            yield from _of_rounds(parts.rounds)
        if parts.pods is not None and (age := parts.pods.age(monotonic=time.monotonic())) is not None:
            yield gauge("qrm_pods_age_seconds", "Seconds since the list of pods was current.", [({}, age)])
        unmanaged = parts.contacts if parts.rounds is None else {}
        silence = [({"resource": name}, contact.silent_for) for name, contact in sorted(unmanaged.items())]
        text = "Seconds since a manager last registered or called the plug-in (mode server)."
        yield gauge("qrm_manager_silent_seconds", text, silence)
        if parts.nri is not None:
            yield from self._answers.collect()
        yield from _of_nri(parts.nri)
        if parts.cpu is not None:
            yield from _of_pools(parts.cpu, parts.adjuster)


@dataclass
class QrmComponents:
    """The running components, and their metrics. `rounds` and `pods` are None in the mode server, `adjuster` if load
    does not resize pools, `nri` in other modes than nri; `builtin` are the plug-ins that this process serves, by
    resource."""

    settings: QrmSettings
    builtin: Mapping[str, PluginServer]
    metrics: QrmMetrics = field(default_factory=QrmMetrics)
    rounds: Reconciler | None = None
    adjuster: Adjuster | None = None
    nri: NriRuntime | None = None
    pods: NodePodSources | None = None

    @property
    def cpu(self) -> CpuPlugin | None:
        plugin = self.builtin[CPU].plugin if CPU in self.builtin else None
        return plugin if isinstance(plugin, CpuPlugin) else None

    @property
    def contacts(self) -> Mapping[str, ManagerContact]:
        """How managers use the built-in plug-ins, by resource."""
        return {name: server.contact for name, server in self.builtin.items()}


def _of_pools(cpu: CpuPlugin, adjuster: Adjuster | None) -> Iterator[Family]:
    sizes = {name: float(len(cpus)) for name, cpus in cpu.pools.items()}
    yield gauge("qrm_pool_cpus", "CPUs in each pool.", [({"pool": name}, size) for name, size in sizes.items()])
    if adjuster is None:
        return
    last = adjuster.last
    if last is not None:
        targets = {ONLINE: float(last.resize.target), OFFLINE: float(last.pools.cpus - last.resize.target)}
        rows = [({"pool": name}, target) for name, target in targets.items()]
        yield gauge("qrm_pool_target_cpus", "Target size of each pool in CPUs, computed from the load.", rows)
        yield gauge("qrm_offline_headroom_cpus", "CPUs that offline pods are offered.", [({}, last.headroom)])
    resizes = [({"direction": way}, float(n)) for way, n in sorted(adjuster.directions.items())]
    yield counter("qrm_resize", "Resizes of the online pool.", resizes)


def _of_nri(nri: NriRuntime | None) -> Iterator[Family]:
    """Families without samples in other modes, so that alerts refer to known metrics."""
    connected: list[tuple[dict[str, str], float]] = []
    unpinned, refused, failures = connected.copy(), connected.copy(), connected.copy()
    if nri is not None:
        connected = [({}, float(not nri.trouble))]
        unpinned = [({}, float(nri.findings.unpinned))]
        refused = [({}, float(nri.findings.refused))]
        failures = [({"kind": kind}, float(n)) for kind, n in sorted(nri.findings.counts.items())]
    text = "Whether the container runtime calls the NRI plug-in (1) or containers start without allocations (0)."
    yield gauge("qrm_nri_connected", text, connected)
    text = "Containers created without their allocations, which the next round applies."
    yield counter("qrm_nri_unpinned", text, unpinned)
    yield counter("qrm_nri_refused", "Containers not created because of a failure (qrm.on_failure).", refused)
    yield counter("qrm_nri_failures", "Failures of the NRI plug-in, and containers of inadmissible pods.", failures)


def _of_rounds(rounds: Reconciler) -> Iterator[Family]:
    admissions = [({"result": r, "reason": why}, float(n)) for (r, why), n in sorted(rounds.admissions.items())]
    yield counter("qrm_admissions", "Admissions of pods.", admissions)
    updates = [({"result": result}, float(n)) for result, n in sorted(rounds.updates.items())]
    yield counter("qrm_reconcile_updates", "Attempts to set the properties of a container.", updates)
    yield counter(
        "qrm_reconcile_skipped", "Reconcile rounds skipped because they were late.", [({}, float(rounds.skipped))]
    )
    states = Counter((name, "live" if live else "stopped") for name, live in rounds.manager.plugins.states.items())
    plugins = [({"resource": name, "state": state}, float(n)) for (name, state), n in sorted(states.items())]
    yield gauge("qrm_plugins", "Plug-ins that are or were registered.", plugins)
    yield gauge("qrm_inadmissible_pods", "Pods that were not admitted.", [({}, float(len(rounds.inadmissible)))])
