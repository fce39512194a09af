"""Collects what pods used, from cAdvisor, and which pods existed with which requests, from kube-state-metrics.

In a large cluster, pods are read on a sample of the nodes: the hottest, and others by a hash of their names.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lab.fleet.noise import key_of
from lab.report.collected import NodeLoads, NodeSample, PodKey, PodLoads, RecordedPods
from lab.report.data.context import CollectContext
from lab.report.data.pod_requests import POD, RequestQueries
from lab.report.data.reading import STEPS, ProgressCallback, SeriesGrid, all_of
from lab.report.names import controller_of
from watcher.arrays import F64, Bool
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.messages import shorten_names
from watcher.core.pods.coverage import PodCoverage
from watcher.core.queries.matchers import Matcher
from watcher.sources.base import NoPodUsage
from watcher.sources.prometheus.plans import among
from watcher.sources.prometheus.pod_queries import PodPlan
from watcher.sources.prometheus.pods import PrometheusPodReader

DAY_S = 86400
REPLAY_STEP_S = SLOT_S
REPLAY_DAYS = 5
WARM_UP_S = DAY_S
LABELS = ("namespace", "pod")
SHARE_OF_PODS = 0.03
"""Share of the whole budget for the usage of pods: a value costs the server about ten times as much as one of a
recording rule."""
PODS_PER_VALUES = 4000 / 50_000_000
"""Pods that run at a time on the sampled nodes, per value of the whole budget."""
NODES_PER_QUERY = 40
"""Names of this many nodes fit into the URL of a request."""


class PodDataReader:
    """Reads pods of the nodes in `loads` through cAdvisor's series of `plan`."""

    def __init__(
        self,
        context: CollectContext,
        finder: PrometheusPodReader,
        plan: PodPlan,
        loads: NodeLoads,
        by_node: Mapping[str, str],
        series: int,
    ) -> None:
        self._context, self._finder, self._plan, self._loads = context, finder, plan, loads
        self._series = series
        self._by_node = by_node  # cAdvisor's node label of each node
        per_node = series / max(1, len(by_node))
        pods = PODS_PER_VALUES * context.options.most_values
        most = max(context.options.replay_nodes, int(pods / max(per_node, 1.0)))
        self.sample = choose_nodes(loads, sorted(by_node), most=most)

    async def loads(self) -> PodLoads | None:
        """Cores of the pods of the sampled nodes, at equal distances. None without values."""
        context, sample = self._context, self.sample
        series = max(1, round(self._series * len(sample.nodes) / max(1, sample.total)))
        share = SHARE_OF_PODS * context.options.most_values / max(1, context.reader.left)
        span = context.ends - context.begins
        step = (
            context.reader.step_for(series, span, smallest=whole_step(self._plan.interval_s), share=share) or 6 * 3600
        )
        label = self._plan.label.label
        groups = self._groups(label, [self._by_node[node] for node in sample.nodes])
        progress = context.shares_of(38, 52, "pods", len(groups))

        def read(i: int) -> Coroutine[None, None, SeriesGrid]:
            query = replace(self._plan, matchers=(*self._plan.matchers, *groups[i])).mean_cores(step)
            return context.reader.grid(
                query,
                (*LABELS, label),
                context.begins + step,
                context.ends,
                step,
                series=max(1, series // len(groups)),
                purpose="cores of pods",
                progress=progress[i],
            )

        grids = await all_of([read(i) for i in range(len(groups))])
        keys = [key for grid in grids for key in grid.keys]
        if not keys:
            return None
        # Nodes that were removed before the end are not in the sample, but in a query for all nodes.
        named = await self._finder.nodes_by_label(self._plan, sorted({value for _, _, value in keys}), context.ends)
        pods = tuple((namespace, pod, named[value]) for namespace, pod, value in keys)
        cores = np.hstack([grid.values for grid in grids])
        return PodLoads(pods, context.begins, step, whole_steps(cores, step, self._plan.interval_s), sample)

    def _groups(self, label: str, values: Sequence[str]) -> list[tuple[Matcher, ...]]:
        """Matchers that select the sampled nodes by these values of a label; one without, if all nodes are sampled."""
        if self.sample.is_complete:
            return [()]
        ordered = sorted(values)
        firsts = range(0, len(ordered), NODES_PER_QUERY)
        return [(among(label, ordered[first : first + NODES_PER_QUERY]),) for first in firsts]

    async def owners(self) -> Mapping[tuple[str, str], str] | None:
        """KIND/NAME of the controller of each pod on the sampled nodes; None without kube-state-metrics."""
        context = self._context
        groups = [()] if context.exported else self._groups("node", self.sample.nodes)
        progress = context.shares_of(52, 55, "owners", len(groups))
        grids = await all_of([self._owners_of(groups[i], progress[i]) for i in range(len(groups))])
        keys = [key for grid in grids for key in grid.keys]
        return {(namespace, pod): controller_of(kind, name) for namespace, pod, kind, name in keys} or None

    async def _owners_of(self, matchers: Sequence[Matcher], progress: ProgressCallback) -> SeriesGrid:
        context = self._context
        step = min(DAY_S, context.ends - context.begins)
        pods = context.narrowed("kube_pod_info", *matchers)
        series = await context.reader.count(pods, context.ends)
        labels = (*LABELS, "created_by_kind", "created_by_name")
        return await context.reader.grid(
            f"group by ({', '.join(labels)}) ({context.of_objects(f'last_over_time({pods}[{step}s])')})",
            labels,
            context.begins + step,
            context.ends,
            step,
            series=max(1, series),
            purpose="owners of pods",
            progress=progress,
        )

    async def recorded(self, owners: Mapping[tuple[str, str], str]) -> RecordedPods | None:
        """The pods of some sampled nodes with their usage and requests; None if kube-state-metrics does not have
        them. A pod exists until its last usage, so that completed pods do not count."""
        sample = choose_nodes(self._loads, sorted(self._by_node), most=self._context.options.replay_nodes)
        asked = _RecordedQueries(self._context, self._plan)
        info = await asked.existence(sample.nodes)
        if not info.keys:
            return None
        cores, size = await asked.usage({self._by_node[node]: node for node in sample.nodes})
        pods: tuple[PodKey, ...] = tuple((key[0], key[1], key[2]) for key in info.keys)
        requests = await asked.requests(sample.nodes, pods)
        used = whole_steps(_of_pods(cores, pods), REPLAY_STEP_S, self._plan.interval_s)
        later: Bool = np.logical_or.accumulate(np.isfinite(used)[::-1], axis=0)[::-1]
        return RecordedPods(
            sample,
            pods,
            tuple(owners.get(pod[:2], "") for pod in pods),
            asked.begins,
            REPLAY_STEP_S,
            np.isfinite(info.values) & later,
            used,
            _of_pods(size, pods),
            *requests,
        )


async def find_pods(context: CollectContext, loads: NodeLoads) -> PodDataReader | None:
    """A reader of the pods on the nodes of `loads`; None if the server has no series of cAdvisor for them."""
    finder = PrometheusPodReader(
        context.settings, context.client, source="Prometheus", fetch_deadline=context.fetch_deadline
    )
    try:
        plan = await finder.find_plan(context.ends)
    except NoPodUsage:
        return None
    label = plan.label.label
    counted = await context.reader.grid(
        f"count by ({plan.label.text}) ({plan.evidence})",
        (label,),
        context.ends,
        context.ends,
        60,
        series=1,
        purpose="pods by node",
    )
    values = sorted(key for (key,) in counted.keys)
    named = await finder.nodes_by_label(plan, values, context.ends)
    known = set(loads.nodes)
    by_node = {named[value]: value for value in values if named[value] in known}
    unknown = [value for value in values if named[value] not in known]
    if unknown:
        context.reader.remark(
            f"{len(unknown):,} nodes have pods and no load, and their pods are left out: {shorten_names(unknown)}"
        )
    if not by_node:
        return None
    await _remark_gaps(context, finder, plan, [node for node in loads.nodes if node not in by_node], len(loads.nodes))
    return PodDataReader(context, finder, plan, loads, by_node, int(np.nansum(counted.values)))


async def _remark_gaps(
    context: CollectContext, finder: PrometheusPodReader, plan: PodPlan, missing: Sequence[str], total: int
) -> None:
    """Say on which nodes the usage of pods is unknown, and why."""
    if not missing:
        return
    gaps = await finder.gaps(context.ends, plan)
    coverage = PodCoverage({}).completed(missing, gaps, now=context.ends)
    context.reader.remark(
        f"{coverage.message(total)}. Their pods are missing from the workloads and from the simulation"
    )


def whole_step(interval: int) -> int:
    """The shortest step of SLOT_S seconds or more that is a multiple of the scrape interval: otherwise, some steps have
    more samples than others."""
    fits = (each for each in STEPS if each >= SLOT_S and (each % interval == 0 or each >= 10 * interval))
    return next(fits, STEPS[-1])


def whole_steps(values: F64, step: int, interval: int) -> F64:
    """Mean cores of each step [steps, pods] from rates over the step and the scrape interval before it. Only a pod that
    was there before has values in that interval: a pod that begins used its cores in less time, and one that ends used
    a part of them before the step."""
    known = np.isfinite(values)
    first, last = known.copy(), known.copy()
    first[1:] &= ~known[:-1]
    last[:-1] &= ~known[1:]
    first[:1], last[-1:] = False, False
    longer = (step + interval) / step
    before = np.vstack([values[:1], values[:-1]])
    ending = np.maximum(values * longer - before * (interval / step), 0.0)
    return np.where(first, values * longer, np.where(last, ending, values))


# --- pods for the simulation ------------------------------------------------------------------------------------------


def choose_nodes(loads: NodeLoads, candidates: Sequence[str], *, most: int) -> NodeSample:
    """At most `most` of the candidates: a third by the most hot time, and others by a hash of their names."""
    if len(candidates) <= most:
        return NodeSample(tuple(sorted(candidates)), (), len(candidates))
    place = {node: i for i, node in enumerate(loads.nodes)}
    slots = np.nansum(loads.cpu.hot, axis=0)
    by_heat = sorted(candidates, key=lambda node: (-float(slots[place[node]]), node))
    hottest = [node for node in by_heat[: most // 3] if slots[place[node]]]
    others = sorted(set(candidates) - set(hottest), key=lambda node: (key_of(1, "report", node), node))
    chosen = hottest + others[: most - len(hottest)]
    return NodeSample(tuple(sorted(chosen)), tuple(sorted(hottest)), len(candidates))


class _RecordedQueries:
    """The queries for the pods of some nodes over the last days, with values every REPLAY_STEP_S."""

    def __init__(self, context: CollectContext, plan: PodPlan) -> None:
        self._context, self._plan = context, plan
        self.begins = max(context.begins, context.ends - REPLAY_DAYS * DAY_S - WARM_UP_S)

    async def existence(self, nodes: Sequence[str]) -> SeriesGrid:
        """Where kube-state-metrics knows the pods, by namespace, pod and node."""
        context = self._context
        info = context.narrowed("kube_pod_info", *context.among_nodes(nodes))
        progress = self._context.share_of(55, 58, "recorded pods")
        query = f"group by (namespace, pod, node) ({context.of_objects(info)})"
        grid = await self._grid(query, ("namespace", "pod", "node"), info, "recorded pods", progress)
        chosen = [i for i, (_, _, node) in enumerate(grid.keys) if node in nodes]
        return SeriesGrid(tuple(grid.keys[i] for i in chosen), grid.values[:, chosen])

    async def usage(self, labels: Mapping[str, str]) -> tuple[SeriesGrid, SeriesGrid]:
        """Cores and bytes by namespace, pod and node."""
        label = self._plan.label.label
        own = replace(self._plan, matchers=(*self._plan.matchers, among(label, sorted(labels))))
        found = []
        for query, purpose, low in ((own.mean_cores(REPLAY_STEP_S), "cores", 58), (own.memory, "memory", 60)):
            progress = self._context.share_of(low, low + 2, "recorded pods")
            grid = await self._grid(query, (*LABELS, label), own.evidence, f"{purpose} of recorded pods", progress)
            keys = tuple((namespace, pod, labels[value]) for namespace, pod, value in grid.keys)
            found.append(SeriesGrid(keys, grid.values))
        return found[0], found[1]

    async def requests(self, nodes: Sequence[str], pods: Sequence[PodKey]) -> tuple[F64, F64]:
        """The highest requests of these pods in cores and bytes; 0 for pods without requests."""
        step = min(DAY_S, self._context.ends - self.begins)
        queries = RequestQueries(
            self._context, self._context.among_nodes(nodes), lambda selector: f"max_over_time({selector}[{step}s])"
        )
        of_containers, of_inits, _, of_pods = queries.selectors
        progress = self._context.share_of(62, 64, "recorded pods")
        by_pod = (
            (f"sum by ({POD}) ({queries.containers})", of_containers),
            (f"sum by ({POD}) ({queries.sidecars})", of_inits),
            (queries.inits, of_inits),
            (queries.whole, of_pods),
        )
        grids = [
            await self._grid(query, POD.split(", "), evidence, "requests of recorded pods", progress, every=step)
            for query, evidence in by_pod
        ]
        found = []
        for resource in ("cpu", "memory"):
            query = queries.overhead(resource)
            overhead = await self._grid(query, LABELS, query, "overhead of recorded pods", progress, every=step)
            containers, sidecars, inits, whole = (_highest(grid, pods, resource) for grid in grids)
            total = np.maximum(containers, inits) + sidecars + _highest_overhead(overhead, pods)
            found.append(np.where(whole > 0, whole, total))
        return found[0], found[1]

    async def _grid(
        self,
        query: str,
        labels: Sequence[str],
        evidence: str,
        purpose: str,
        progress: ProgressCallback,
        *,
        every: int = REPLAY_STEP_S,
    ) -> SeriesGrid:
        context = self._context
        begins = self.begins if every == REPLAY_STEP_S else self.begins + every
        series = max(1, await context.reader.count(evidence, context.ends))
        return await context.reader.grid(
            query, labels, begins, context.ends, every, series=series, purpose=purpose, progress=progress
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
    return _most(SeriesGrid(tuple(grid.keys[i][:3] for i in chosen), grid.values[:, chosen]), pods)


def _highest_overhead(grid: SeriesGrid, pods: Sequence[PodKey]) -> F64:
    """The overhead of each pod of a grid by namespace and pod; 0 for pods without."""
    place = {key: i for i, key in enumerate(grid.keys)}
    there = [(pod, place[pod[:2]]) for pod in pods if pod[:2] in place]
    return _most(SeriesGrid(tuple(pod for pod, _ in there), grid.values[:, [i for _, i in there]]), pods)


def _most(grid: SeriesGrid, pods: Sequence[PodKey]) -> F64:
    values: F64 = _of_pods(grid, pods)
    known: Bool = np.isfinite(values)
    highest: F64 = np.where(known, values, 0.0).max(axis=0, initial=0.0)
    return highest
