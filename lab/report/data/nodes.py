"""Collects the utilization of nodes and their sizes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from lab.report.collected import NodeLoads, NodeSizes
from lab.report.data.context import CollectContext
from lab.report.data.reading import BudgetExceeded, ProgressCallback, SeriesGrid, repeated
from watcher.arrays import F64
from watcher.core.forecast.maxima import SLOT_S
from watcher.core.messages import shorten_names
from watcher.core.naming.labels import Labels
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS
from watcher.sources.errors import ProviderRefused
from watcher.sources.fetching import FetchContext
from watcher.sources.prometheus.metrics import NodeNamesReader, PrometheusMetricState
from watcher.sources.prometheus.node_names import NodeEvidenceReader
from watcher.sources.prometheus.plans import PrometheusQueryPlan
from watcher.sources.prometheus.queries import candidates
from watcher.sources.prometheus.search import QuerySearch
from watcher.sources.prometheus.young import without_beginnings, young_slots

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
        self._names = NodeNamesReader(context.client, NodeEvidenceReader(context.settings.matchers))
        self._search = QuerySearch(context.client, self._names)

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
        state, fetching = self._state(key), self._fetching(self._context.ends)
        state.plan = await self._search.find_plan(state, fetching)
        if state.plan is None:
            return None
        others = await self._search.find_others(state, fetching)
        read = [await self._with_plan(each, fetching, progress, 1 / (1 + len(others))) for each in (state, *others)]
        grids, steps = zip(*read, strict=True)
        return side_by_side(grids), max(steps)

    async def _with_plan(
        self,
        state: PrometheusMetricState,
        fetching: FetchContext,
        progress: ProgressCallback,
        part: float,
    ) -> tuple[SeriesGrid, int]:
        """The nodes of one query, with this part of the metric's share of the budget."""
        context, plan, key = self._context, state.plan, state.metric.key
        assert plan is not None
        series = await context.reader.cost_of(plan.expression, context.ends, nodes=await self._nodes_now(plan))
        plain = is_plain(plan.expression)
        smallest = SLOT_S if key == "CPU" else MEMORY_STEP_S
        share = SHARE if plain else SHARE_OF_RATES
        step = context.reader.step_for(series, context.ends - context.begins, smallest=smallest, share=part * share)
        step = min(step or LONGEST_STEP_S, LONGEST_STEP_S)
        expression = f"max_over_time({plan.expression}[{step}s])" if plain else plan.expression
        grid = await context.reader.grid(
            expression,
            plan.label.labels,
            context.begins + step,
            context.ends,
            step,
            series=series,
            purpose=f"{key} of nodes",
            progress=progress,
        )
        # The deadline of the search may have passed while the grid was read.
        named = await self._named(grid, plan, state, self._fetching(context.ends))
        if full_s := plan.candidate.young_s:
            named = SeriesGrid(named.keys, without_beginnings(named.values, young_slots(full_s, step)))
        slots = (context.ends - context.begins) // SLOT_S
        values = repeated(named.values * SOURCE_UNITS[plan.candidate.unit][1], step // SLOT_S, slots)
        return SeriesGrid(named.keys, np.clip(values, 0.0, 100.0)), step

    def _state(self, key: str) -> PrometheusMetricState:
        settings, metric = self._context.settings, METRIC_BY_KEY[key]
        query = settings.queries.get(key)
        label = (query.node_label if query else None) or settings.node_label
        return PrometheusMetricState(metric, candidates(metric, query, matchers=settings.matchers), label)

    def _fetching(self, at: int) -> FetchContext:
        deadline = asyncio.get_running_loop().time() + self._context.fetch_deadline
        return FetchContext(at - 900.0, float(at), deadline, present=True)

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

    async def _rows(
        self,
        earlier: Sequence[Labels],
        plan: PrometheusQueryPlan,
        state: PrometheusMetricState,
        fetching: FetchContext,
    ) -> Sequence[Labels]:
        """All labels of the series at the end of the report, and the labels of `earlier` series that have ended."""
        now = await self._search.profile(plan.candidate, state, fetching)
        there = {plan.label.key(row) for row in now}
        return [*now, *(row for row in earlier if plan.label.key(row) not in there)]

    async def _named(
        self,
        grid: SeriesGrid,
        plan: PrometheusQueryPlan,
        state: PrometheusMetricState,
        fetching: FetchContext,
    ) -> SeriesGrid:
        """The grid by node name; series without a node are left out with a remark. The nodes are those of the series
        at the end of the report, and of others by the same labels."""
        labels = plan.label.labels
        rows = [{label: text for label, text in zip(labels, key, strict=True) if text} for key in grid.keys]
        found = await self._names.of_profile(
            await self._rows(rows, plan, state, fetching), plan.candidate.evidence, state, fetching
        )
        nodes: dict[str, str | None] = {}
        for row, node in zip(state.names.rows, found.nodes, strict=True):
            if key := plan.label.key(row):
                nodes[key] = node if nodes.setdefault(key, node) == node else None
        names: Sequence[str | None] = [nodes.get(plan.label.key(row) or "") for row in rows]
        unnamed = sorted({", ".join(key) for key, name in zip(grid.keys, names, strict=True) if not name})
        for problem in found.problems:
            self._context.reader.remark(f"{problem.node}: {problem.reason}" if problem.node else problem.reason)
        if unnamed and not found.problems:
            self._context.reader.remark(
                f"{len(unnamed):,} series of {state.metric.key} do not name a node by {plan.label.shown}: "
                f"{shorten_names(unnamed)}"
            )
        names = state.restricted(names)
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


def side_by_side(grids: Sequence[SeriesGrid]) -> SeriesGrid:
    """The columns of grids with different nodes, in order of the nodes."""
    keys = [key for grid in grids for key in grid.keys]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return SeriesGrid(tuple(keys[i] for i in order), np.concatenate([grid.values for grid in grids], axis=1)[:, order])


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
        query = f"max by (node, resource) ({context.of_objects(f'last_over_time({series}[1h])')})"
        grid = await context.reader.grid(
            query, ("node", "resource"), context.ends, context.ends, 60, series=4 * len(nodes), purpose=f"node {part}"
        )
        for resource in ("cpu", "memory"):
            columns[f"{part} {resource}"] = by_node(grid, nodes, resource)[0]
    if not np.isfinite(columns["allocatable cpu"]).any():
        return None
    return NodeSizes(
        columns["capacity cpu"], columns["capacity memory"], columns["allocatable cpu"], columns["allocatable memory"]
    )


def by_node(grid: SeriesGrid, nodes: Sequence[str], resource: str) -> F64:
    """The values of a resource, by row and node, of a grid by node and resource; NaN for nodes that the grid lacks."""
    columns = tuple((node,) for node, kind in grid.keys if kind == resource)
    chosen = [i for i, (_, kind) in enumerate(grid.keys) if kind == resource]
    return _aligned(SeriesGrid(columns, grid.values[:, chosen]), nodes)
