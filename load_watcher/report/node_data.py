"""Collects the utilization of nodes, their sizes, and the requests of their pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from load_watcher.report.collected import NodeLoads, NodeRequests, NodeSizes
from load_watcher.report.context import CollectContext
from load_watcher.report.reading import BudgetExceeded, ProgressCallback, SeriesGrid, repeated
from watcher.arrays import F64
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.messages import shorten_names
from watcher.core.naming.name_resolver import without_port
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS
from watcher.platform.sources.errors import ProviderRefused
from watcher.providers.prometheus.metric_client import MetricClient
from watcher.providers.prometheus.node_names import NodeNamesReader
from watcher.providers.prometheus.queries import PrometheusQueryPlan, candidates
from watcher.providers.prometheus.search import QuerySearch
from watcher.providers.prometheus.state import PrometheusFetchContext, PrometheusMetricState

LONGEST_STEP_S = 3600
MEMORY_STEP_S = 900
"""The shortest step of memory, which changes more slowly than CPU."""
SHARE, SHARE_OF_RATES = 0.4, 0.16
"""Shares of the budget: a value that the server computes from several samples costs several times as much."""
NODE_LOAD = (
    "scrape a node exporter on each node, or set the query with --set provider.queries.CPU.expression=… and "
    "provider.queries.CPU.unit=ratio; load-watcher doctor --provider prometheus --address URL lists what the server has"
)
WAIT = "run the report again after the next whole hour; a report ends with a whole hour"
BUDGET = (
    "raise --max-samples, lower --days, or create the recording rule instance:node_cpu_utilisation:rate5m of the node "
    "exporter's mixin, so that the server does not read the counters of all CPUs"
)
PERIOD = "check --days and --end, and that the server keeps data of this time (--storage.tsdb.retention.time)"
Resource = tuple[str, str]
"""Node, and cpu or memory."""


class NodeLoadReader:
    """Reads the utilization of nodes with the queries that the service would use."""

    def __init__(self, context: CollectContext) -> None:
        self._context = context
        self._metrics = MetricClient(context.client)
        self._names = NodeNamesReader(self._metrics, context.config.matchers)
        self._search = QuerySearch(self._metrics, self._names)

    async def read(self) -> NodeLoads:
        """Utilization over the range of the report. Raises ProviderError if there is no CPU utilization."""
        context = self._context
        try:
            cpu_grid = await self._metric("CPU", context.share_of(2, 18, "CPU of nodes"))
        except BudgetExceeded as error:
            raise ProviderRefused(f"{context.client.address}: the budget is too small: {error}", hint=BUDGET) from error
        if cpu_grid is None:
            raise await self._no_cpu()
        memory_grid = await context.optional(
            "Memory utilization of nodes",
            "hot hours and peaks by memory, and overload by memory in the simulation",
            NODE_LOAD.replace("CPU", "Memory"),
            lambda: self._metric("Memory", context.share_of(18, 32, "memory of nodes")),
        )
        grids = {key: grid for key, grid in (("CPU", cpu_grid), ("Memory", memory_grid)) if grid is not None}
        nodes = tuple(sorted({key for grid, _ in grids.values() for (key,) in grid.keys}))
        cpu, memory = (_aligned(grids[key][0] if key in grids else None, nodes) for key in ("CPU", "Memory"))
        rows = max(len(cpu), len(memory))
        cpu, memory = (each if len(each) else np.full((rows, len(nodes)), np.nan) for each in (cpu, memory))
        every = {key: step for key, (_, step) in grids.items()}
        return NodeLoads(nodes, context.begins, cpu, memory, every["CPU"], every.get("Memory", SLOT_S))

    async def _metric(self, key: str, progress: ProgressCallback) -> tuple[SeriesGrid, int] | None:
        """Percent of capacity by node, one row per slot, and the seconds between values; None without series."""
        context = self._context
        state, fetching = self._state(key), self._fetching(context.ends)
        plan = await self._search.find_plan(state, fetching)
        if plan is None:
            return None
        series = await context.reader.cost_of(plan.expression, context.ends, nodes=await self._nodes_now(plan))
        plain = is_plain(plan.expression)
        smallest = SLOT_S if key == "CPU" else MEMORY_STEP_S
        share = SHARE if plain else SHARE_OF_RATES
        step = context.reader.step_for(series, context.ends - context.begins, smallest=smallest, share=share)
        step = min(step or LONGEST_STEP_S, LONGEST_STEP_S)
        expression = f"max_over_time({plan.expression}[{step}s])" if plain else plan.expression
        grid = await context.reader.grid(
            expression,
            (plan.label.label,),
            context.begins + step,
            context.ends,
            step,
            series=series,
            purpose=f"{key} of nodes",
            progress=progress,
        )
        named = await self._named(grid, plan, state, fetching)
        slots = (context.ends - context.begins) // SLOT_S
        values = repeated(named.values * SOURCE_UNITS[plan.candidate.unit][1], step // SLOT_S, slots)
        return SeriesGrid(named.keys, np.clip(values, 0.0, 100.0)), step

    def _state(self, key: str) -> PrometheusMetricState:
        config, metric = self._context.config, METRIC_BY_KEY[key]
        query = config.queries.get(key)
        label = (query.node_label if query else None) or config.node_label
        return PrometheusMetricState(metric, candidates(metric, query, matchers=config.matchers), label)

    def _fetching(self, at: int) -> PrometheusFetchContext:
        deadline = asyncio.get_running_loop().time() + self._context.config.fetch_deadline
        return PrometheusFetchContext(1, at - 900.0, float(at), deadline, True, at)

    async def _no_cpu(self) -> ProviderRefused:
        """The error for a source without CPU utilization at the end of the report."""
        context, now = self._context, int(self._context.options.ends)
        if now > context.ends and await self._search.find_plan(self._state("CPU"), self._fetching(now)) is not None:
            return ProviderRefused(
                f"{context.client.address}: the CPU utilization of nodes begins after the last whole hour", hint=WAIT
            )
        today = int(time.time())
        if today > now and await self._search.find_plan(self._state("CPU"), self._fetching(today)) is not None:
            when = f"{datetime.fromtimestamp(context.ends, UTC):%Y-%m-%d %H:%M} UTC"
            return ProviderRefused(
                f"{context.client.address}: no CPU utilization of nodes at {when}, the end of the report", hint=PERIOD
            )
        return ProviderRefused(f"{context.client.address}: no CPU utilization of nodes", hint=NODE_LOAD)

    async def _nodes_now(self, plan: PrometheusQueryPlan) -> int:
        """The number of series of a stored series, or of the guard of an expression; at least 1."""
        return max(1, await self._context.reader.count(plan.candidate.evidence, self._context.ends))

    async def _named(
        self,
        grid: SeriesGrid,
        plan: PrometheusQueryPlan,
        state: PrometheusMetricState,
        fetching: PrometheusFetchContext,
    ) -> SeriesGrid:
        """The grid by node name; series without a node are left out with a remark."""
        known: Mapping[str, str] = {}
        if plan.label.joined:
            known = (await self._names.read(state, fetching, at_most_old=0)).by_instance
        names = [_node_of(key, plan, known) for (key,) in grid.keys]
        unnamed = sorted({key for (key,), name in zip(grid.keys, names, strict=True) if not name})
        if unnamed:
            self._context.reader.remark(
                f"{len(unnamed):,} series of {state.metric.key} do not name a node by {plan.label.shown}: "
                f"{shorten_names(unnamed)}"
            )
        merged: dict[str, F64] = {}
        for column, name in enumerate(names):
            if name:
                values = grid.values[:, column]
                merged[name] = np.fmax(merged[name], values) if name in merged else values
        keys = sorted(merged)
        empty = np.empty((len(grid.values), 0))
        return SeriesGrid(
            tuple((key,) for key in keys), np.stack([merged[key] for key in keys], axis=1) if keys else empty
        )


def _node_of(key: str, plan: PrometheusQueryPlan, known: Mapping[str, str]) -> str:
    if plan.label.joined:
        return known.get(key, "")
    return without_port(key) if plan.label.strip_port else key


def _aligned(grid: SeriesGrid | None, nodes: Sequence[str]) -> F64:
    """The columns of these nodes; NaN for nodes that the grid lacks, and no rows without a grid."""
    if grid is None:
        return np.empty((0, len(nodes)))
    place = {key: i for i, (key,) in enumerate(grid.keys)}
    values = np.full((len(grid.values), len(nodes)), np.nan)
    for column, node in enumerate(nodes):
        if node in place:
            values[:, column] = grid.values[:, place[node]]
    return values


# --- kube-state-metrics ----------------------------------------------------------------------------------------------


async def read_sizes(context: CollectContext, nodes: Sequence[str]) -> NodeSizes | None:
    """Sizes of the nodes; None if the server has none of them."""
    columns: dict[str, F64] = {}
    for part in ("capacity", "allocatable"):
        series = context.narrowed(f'kube_node_status_{part}{{resource=~"cpu|memory"}}')
        # The newest size within an hour, so that a node that was just removed still has one.
        query = f"max by (node, resource) (last_over_time({series}[1h]))"
        grid = await context.reader.grid(
            query, ("node", "resource"), context.ends, context.ends, 60, series=4 * len(nodes), purpose=f"node {part}"
        )
        for resource in ("cpu", "memory"):
            columns[f"{part} {resource}"] = _by_node(grid, nodes, resource)[0]
    if not np.isfinite(columns["allocatable cpu"]).any():
        return None
    return NodeSizes(
        columns["capacity cpu"], columns["capacity memory"], columns["allocatable cpu"], columns["allocatable memory"]
    )


async def read_requests(context: CollectContext, nodes: Sequence[str]) -> NodeRequests | None:
    """Requests of the pods that run on each node at the end; None if the server has none."""
    requests = context.narrowed('kube_pod_container_resource_requests{resource=~"cpu|memory",node!=""}')
    phases = context.narrowed('kube_pod_status_phase{phase=~"Pending|Running"}')
    once = f"max by (namespace, pod, container, node, resource) ({requests})"
    series, phased = [await context.reader.count(each, context.ends) for each in (requests, phases)]
    if not series:
        return None
    # Without the phase, pods that are completed would count until they are deleted.
    running = f" * on (namespace, pod) group_left () max by (namespace, pod) ({phases} == 1)" if phased else ""
    grid = await context.reader.grid(
        f"sum by (node, resource) ({once}{running})",
        ("node", "resource"),
        context.ends,
        context.ends,
        60,
        series=series + phased,
        purpose="requests by node",
        progress=context.share_of(34, 38, "requests"),
    )
    cores, size = (_by_node(grid, nodes, resource)[0] for resource in ("cpu", "memory"))
    return NodeRequests(cores, size) if np.isfinite(cores).any() else None


def _by_node(grid: SeriesGrid, nodes: Sequence[str], resource: str) -> F64:
    columns = tuple((node,) for node, kind in grid.keys if kind == resource)
    chosen = [i for i, (_, kind) in enumerate(grid.keys) if kind == resource]
    return _aligned(SeriesGrid(columns, grid.values[:, chosen]), nodes)
