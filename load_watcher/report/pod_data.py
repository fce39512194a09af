"""Collects what pods used, from cAdvisor, and which pods existed with which requests, from kube-state-metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from load_watcher.report.collected import NodeLoads, PodKey, PodLoads, RecordedPods
from load_watcher.report.context import CollectContext
from load_watcher.report.names import controller_of
from load_watcher.report.reading import ProgressCallback, SeriesGrid
from watcher.arrays import F64, Bool
from watcher.fleet.noise import key_of
from watcher.providers.base import NoPodUsage
from watcher.providers.prometheus.pods import CORES, PodPlan, PrometheusPodReader, selector
from watcher.providers.prometheus.queries import among

DAY_S = 86400
REPLAY_STEP_S = 900
REPLAY_DAYS = 5
WARM_UP_S = DAY_S
LABELS = ("namespace", "pod")


async def find_pods(context: CollectContext) -> tuple[PrometheusPodReader, PodPlan] | None:
    """The queries for cAdvisor's series; None if the server has none."""
    reader = PrometheusPodReader(context.config, context.client, source="Prometheus")
    try:
        return reader, await reader.find_plan(context.ends)
    except NoPodUsage:
        return None


async def read_pods(context: CollectContext, reader: PrometheusPodReader, plan: PodPlan) -> PodLoads | None:
    """Cores of all pods at times with equal distances, as many as the budget allows. None without values."""
    series = await context.reader.count(selector(CORES, plan.matchers), context.ends)
    # Each value is a rate, for which the server reads all samples of its span.
    step = context.reader.step_for(series, context.ends - context.begins, smallest=REPLAY_STEP_S, share=0.2)
    step = step or 6 * 3600
    grid = await context.reader.grid(
        plan.cores,
        (*LABELS, plan.label.label),
        context.begins + step,
        context.ends,
        step,
        series=series,
        purpose="cores of pods",
        progress=context.share_of(40, 52, "pods"),
    )
    if not grid.keys:
        return None
    nodes = await reader.nodes_by_label(plan, {key[2] for key in grid.keys}, context.ends)
    pods = tuple((namespace, pod, nodes[label]) for namespace, pod, label in grid.keys)
    return PodLoads(pods, context.begins, step, grid.values)


async def read_owners(context: CollectContext) -> Mapping[tuple[str, str], str] | None:
    """KIND/NAME of the controller of each pod; None without kube-state-metrics."""
    owners = context.narrowed("kube_pod_owner")
    series = await context.reader.count(owners, context.ends)
    if not series:
        return None
    step = DAY_S if context.ends - context.begins >= DAY_S else 3600
    grid = await context.reader.grid(
        f"group by (namespace, pod, owner_kind, owner_name) ({owners})",
        (*LABELS, "owner_kind", "owner_name"),
        context.begins + step,
        context.ends,
        step,
        series=series,
        purpose="owners of pods",
        progress=context.share_of(52, 55, "owners"),
    )
    return {(namespace, pod): controller_of(kind, name) for namespace, pod, kind, name in grid.keys}


# --- pods for the simulation ------------------------------------------------------------------------------------------


def choose_nodes(loads: NodeLoads, candidates: Sequence[str], *, hot: float, most: int) -> tuple[tuple[str, ...], int]:
    """At most `most` of the candidates: a third by the most hot time, and others by a hash of their names. Returns them
    sorted, and the number of those chosen by their hot time (0 if all are chosen)."""
    if len(candidates) <= most:
        return tuple(sorted(candidates)), 0
    place = {node: i for i, node in enumerate(loads.nodes)}
    slots = np.count_nonzero(loads.cpu > hot, axis=0)
    by_heat = sorted(candidates, key=lambda node: (-int(slots[place[node]]), node))
    hottest = [node for node in by_heat[: most // 3] if slots[place[node]]]
    others = sorted(set(candidates) - set(hottest), key=lambda node: (key_of(1, "report", node), node))
    return tuple(sorted(hottest + others[: most - len(hottest)])), len(hottest)


async def read_recorded(
    context: CollectContext,
    reader: PrometheusPodReader,
    plan: PodPlan,
    loads: NodeLoads,
    owners: Mapping[tuple[str, str], str],
) -> RecordedPods | None:
    """The pods of some nodes with their usage and requests; None if kube-state-metrics does not have them."""
    asked = _RecordedQueries(context, plan)
    by_label = await asked.node_labels(reader)
    candidates = [node for node in loads.nodes if node in by_label]
    if not candidates:
        return None
    nodes, hottest = choose_nodes(loads, candidates, hot=context.options.hot, most=context.options.replay_nodes)
    exists = await asked.existence(nodes)
    if not exists.keys:
        return None
    labels = {by_label[node]: node for node in nodes}
    cores, size = await asked.usage(labels)
    requests = await asked.requests(nodes)
    pods: tuple[PodKey, ...] = tuple((key[0], key[1], key[2]) for key in exists.keys)
    return RecordedPods(
        nodes,
        hottest,
        pods,
        tuple(owners.get(pod[:2], "") for pod in pods),
        asked.begins,
        REPLAY_STEP_S,
        np.isfinite(exists.values),
        _of_pods(cores, pods),
        _of_pods(size, pods),
        *(_highest(requests, pods, resource) for resource in ("cpu", "memory")),
    )


class _RecordedQueries:
    """The queries for the pods of some nodes over the last days, with values every REPLAY_STEP_S."""

    def __init__(self, context: CollectContext, plan: PodPlan) -> None:
        self._context, self._plan = context, plan
        self.begins = max(context.begins, context.ends - REPLAY_DAYS * DAY_S - WARM_UP_S)

    async def node_labels(self, reader: PrometheusPodReader) -> dict[str, str]:
        """The value of cAdvisor's node label by node."""
        label = self._plan.label.label
        query = f"group by ({label}) ({selector(CORES, self._plan.matchers)})"
        ends = self._context.ends
        grid = await self._context.reader.grid(query, (label,), ends, ends, 60, series=1, purpose="")
        values = [key for (key,) in grid.keys]
        named = await reader.nodes_by_label(self._plan, values, ends)
        return {named[value]: value for value in sorted(values) if named[value]}

    async def existence(self, nodes: Sequence[str]) -> SeriesGrid:
        info = self._context.narrowed("kube_pod_info", among("node", nodes))
        progress = self._context.share_of(55, 58, "recorded pods")
        phases = self._context.narrowed('kube_pod_status_phase{phase=~"Succeeded|Failed"}')
        query = f"group by (namespace, pod, node) ({info})"
        if await self._context.reader.count(phases, self._context.ends):
            ended = f"max by (namespace, pod) ({phases} == 1)"
            query = f"group by (namespace, pod, node) ({info} unless on (namespace, pod) {ended})"
        return await self._grid(query, ("namespace", "pod", "node"), info, "recorded pods", progress)

    async def usage(self, labels: Mapping[str, str]) -> tuple[SeriesGrid, SeriesGrid]:
        """Cores and bytes by namespace, pod and node."""
        label = self._plan.label.label
        own = PodPlan(self._plan.label, self._plan.span_s, (*self._plan.matchers, among(label, sorted(labels))))
        evidence = selector(CORES, own.matchers)
        found = []
        for query, purpose, low in ((own.cores, "cores", 58), (own.memory, "memory", 60)):
            progress = self._context.share_of(low, low + 2, "recorded pods")
            grid = await self._grid(query, (*LABELS, label), evidence, f"{purpose} of recorded pods", progress)
            keys = tuple((namespace, pod, labels[value]) for namespace, pod, value in grid.keys)
            found.append(SeriesGrid(keys, grid.values))
        return found[0], found[1]

    async def requests(self, nodes: Sequence[str]) -> SeriesGrid:
        """The requests by namespace, pod, node and resource."""
        text = 'kube_pod_container_resource_requests{resource=~"cpu|memory"}'
        requests = self._context.narrowed(text, among("node", nodes))
        once = f"max by (namespace, pod, container, node, resource) ({requests})"
        query = f"sum by (namespace, pod, node, resource) ({once})"
        progress = self._context.share_of(62, 64, "recorded pods")
        return await self._grid(
            query, ("namespace", "pod", "node", "resource"), requests, "requests of recorded pods", progress
        )

    async def _grid(
        self, query: str, labels: Sequence[str], evidence: str, purpose: str, progress: ProgressCallback
    ) -> SeriesGrid:
        context = self._context
        series = max(1, await context.reader.count(evidence, context.ends))
        return await context.reader.grid(
            query, labels, self.begins, context.ends, REPLAY_STEP_S, series=series, purpose=purpose, progress=progress
        )


def _of_pods(grid: SeriesGrid, pods: Sequence[PodKey]) -> F64:
    """The columns of these pods; NaN for pods that the grid lacks."""
    place = {key: i for i, key in enumerate(grid.keys)}
    values = np.full((len(grid.values), len(pods)), np.nan)
    for column, pod in enumerate(pods):
        if pod in place:
            values[:, column] = grid.values[:, place[pod]]
    return values


def _highest(grid: SeriesGrid, pods: Sequence[PodKey], resource: str) -> F64:
    """The highest request of each pod for a resource; 0 for pods without one."""
    chosen = [i for i, key in enumerate(grid.keys) if key[3] == resource]
    part = SeriesGrid(tuple(grid.keys[i][:3] for i in chosen), grid.values[:, chosen])
    values: F64 = _of_pods(part, pods)
    known: Bool = np.isfinite(values)
    highest: F64 = np.where(known, values, 0.0).max(axis=0, initial=0.0)
    return highest
