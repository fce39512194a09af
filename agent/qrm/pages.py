"""The HTTP endpoints of the QoS Resource Manager: health, metrics, allocations, and explanations of decisions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from agent import cpuset
from agent.qrm.cluster.pod_source import NodePodSources
from agent.qrm.grpc.contact import SILENT_S
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.plugins.adjuster import Adjuster
from agent.qrm.reconciler import Reconciler
from agent.qrm.runtime.nri.runtime import NriRuntime
from agent.qrm.settings import QrmSettings
from agent.qrm.telemetry import QrmMetrics
from agent.service.node_server import json_response, metrics_response
from watcher.platform.http.openapi import Operation, ResponseSpec
from watcher.platform.http.routing import Access, ApiError, Route
from watcher.platform.telemetry.instruments import Instruments

STUCK_ROUNDS = 3.0
STUCK_S = 60.0
"""A round that takes longer than both limits counts as stuck, because container runtimes and disks may be slow for a
while."""


@dataclass
class QrmComponents:
    """The running components. `rounds` is None in the mode server, `adjuster` if load does not resize pools; `builtin`
    are the plug-ins that this process serves, by resource; `pods` is None in the mode server, `nri` in other modes than
    nri."""

    settings: QrmSettings
    metrics: QrmMetrics
    builtin: Mapping[str, PluginServer]
    rounds: Reconciler | None = None
    adjuster: Adjuster | None = None
    nri: NriRuntime | None = None
    pods: NodePodSources | None = None


class QrmPages:
    """The HTTP routes of the process."""

    def __init__(self, parts: QrmComponents, telemetry: Instruments) -> None:
        self._parts = parts
        self._telemetry = telemetry

    def public(self) -> list[Route]:
        """Routes without authentication: probes and Prometheus metrics."""
        health = Operation("whether reconcile rounds complete", {200: ResponseSpec("rounds complete", dict[str, Any])})
        metrics = Operation("metrics of the QoS Resource Manager", {200: ResponseSpec("exposition", str)})
        return [
            Route("/healthz", "healthz", self.health, health, access=Access.OPEN),
            Route("/metrics", "metrics", self.metrics, metrics, access=Access.OPEN),
        ]

    def all(self) -> list[Route]:
        """All routes, including the routes that show details of pods."""
        state = Operation("pods, pools, plug-ins and the last round", {200: ResponseSpec("the state", dict[str, Any])})
        explain = Operation(
            "recent admissions and resizes with their reasons", {200: ResponseSpec("newest first", dict[str, Any])}
        )
        return [
            *self.public(),
            Route("/qrm", "qrm", self.state, state, access=Access.DETAIL),
            Route("/qrm/explain", "qrm_explain", self.explain, explain, access=Access.DETAIL),
        ]

    async def health(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """200 while rounds complete, 503 if they are stuck. In the mode server always 200, because a restart does not
        bring a manager back; `unused` are the plug-ins that no manager uses, with the seconds since its last call."""
        rounds = self._parts.rounds
        if rounds is None:
            contacts = {name: server.contact for name, server in self._parts.builtin.items()}
            unused = {name: round(each.silent_for, 3) for name, each in contacts.items() if each.silent_for >= SILENT_S}
            return json_response({"status": "ok", "unused": unused})
        if rounds.age > max(STUCK_ROUNDS * rounds.period, STUCK_S):
            raise ApiError(503, "stuck", f"no round completed for {rounds.age:.0f} s", "check the log")
        nri = {} if self._parts.nri is None else {"nri": self._parts.nri.trouble or "connected"}
        return json_response({"status": "ok", "age_s": round(rounds.age, 3), "trouble": rounds.last.trouble, **nri})

    async def metrics(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The metrics in the Prometheus exposition format."""
        self._parts.metrics.gather()
        return await metrics_response(self._telemetry)

    async def state(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The current state of all components as JSON."""
        parts = self._parts
        return json_response(
            {
                "mode": parts.settings.mode,
                "node": parts.settings.node_name(),
                "policy": parts.settings.policy,
                "scope": parts.settings.scope,
                "evicts": parts.settings.evicts,
                "publishes": parts.settings.publishes,
                "machine": self._machine(),
                "plugins": self._plugins(),
                "pools": self._pools(),
                **(parts.rounds.state() if parts.rounds is not None else {}),
                **({"pods_age_s": self._pods_age(parts.pods)} if parts.pods is not None else {}),
                **({"nri": parts.nri.state()} if parts.nri is not None else {}),
            }
        )

    async def explain(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        rounds, adjuster = self._parts.rounds, self._parts.adjuster
        last = adjuster.last if adjuster is not None else None
        return json_response(
            {
                "admissions": [record.as_json() for record in reversed(rounds.history)] if rounds is not None else [],
                "resize": None if last is None else last.as_json(),
                "resizes": [each.as_json() for each in reversed(adjuster.changes)] if adjuster is not None else [],
            }
        )

    def _plugins(self) -> dict[str, Any]:
        """The registered and the built-in plug-ins, by resource."""
        rounds = self._parts.rounds
        found: dict[str, Any] = {}
        if rounds is not None:
            found = {name: {"live": live, "builtin": False} for name, live in rounds.manager.plugins.states.items()}
        for name, server in self._parts.builtin.items():
            if rounds is None:
                found[name] = {"live": server.contact.live, "silent_s": round(server.contact.silent_for, 3)}
            found.setdefault(name, {"live": server.contact.live})
            found[name] |= {
                "builtin": True,
                "refused": server.contact.error or "",
                "state": _machine_state(server),
            }
        return found

    @staticmethod
    def _pods_age(pods: NodePodSources) -> float | None:
        """Seconds since the last list of pods was known to be current; None before the first list."""
        age = pods.age(monotonic=time.monotonic())
        return None if age is None else round(age, 3)

    def _machine(self) -> dict[str, Any]:
        """CPUs by socket and by NUMA node; empty without the built-in CPU plug-in."""
        cpu = self._parts.metrics.cpu
        if cpu is None:
            return {}
        groups = {"sockets": cpu.machine.sockets, "numa": cpu.machine.nodes}
        return {name: {str(unit): cpuset.text(cpus) for unit, cpus in of.items()} for name, of in groups.items()}

    def _pools(self) -> dict[str, Any]:
        cpu = self._parts.metrics.cpu
        if cpu is None:
            return {}
        return {name: {"size": len(cpus), "cpus": cpuset.text(cpus)} for name, cpus in cpu.pools.items()}


def _machine_state(server: PluginServer) -> Any:
    """The machine state as in the state file."""
    return server.plugin.document().get("machineState")
