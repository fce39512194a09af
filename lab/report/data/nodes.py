"""Collects the utilization of nodes and their sizes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from lab.report.collected import NodeLoads, NodeSizes, UtilizationGrid, utilization_grid
from lab.report.data.context import CollectContext
from lab.report.data.reading import STEPS, BudgetExceeded, ProgressCallback, SeriesGrid
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
from watcher.sources.prometheus.plans import DEFAULT_SCRAPE_INTERVAL_S, SMOOTH_S, PrometheusQueryPlan
from watcher.sources.prometheus.queries import candidates
from watcher.sources.prometheus.search import QuerySearch
from watcher.sources.prometheus.young import without_beginnings, young_slots

LONGEST_STEP_S = 3600
CPU_STEP_S = 60
"""The shortest step of CPU. Memory, which changes more slowly, is read once in a slot."""
MOST_NODE_VALUES = 4_000_000
"""Values of one resource that are held in memory."""
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
NodeUtilization = tuple[tuple[str, ...], UtilizationGrid]
"""Nodes and their columns of a grid."""


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
            cpu = await self._metric("CPU", context.share_of(2, 18, "CPU of nodes"))
        except BudgetExceeded as error:
            raise ProviderRefused(f"{context.client.address}: the budget is too small: {error}", hint=BUDGET) from error
        if cpu is None:
            raise await self._no_cpu()
        memory = await context.optional(
            "Memory utilization of nodes",
            "hot hours and peaks by memory, and overload by memory in the simulation",
            NODE_LOAD.replace("CPU", "Memory"),
            lambda: self._metric("Memory", context.share_of(18, 32, "memory of nodes")),
        )
        nodes = tuple(sorted({*cpu[0], *(memory[0] if memory else ())}))
        return NodeLoads(
            nodes,
            context.begins,
            _of_nodes(cpu, nodes),
            _of_nodes(memory, nodes) if memory else _absent(cpu[1], len(nodes)),
            context.options.hot,
        )

    async def _metric(self, key: str, progress: ProgressCallback) -> NodeUtilization | None:
        """Percent of capacity by node; None without series."""
        state, fetching = self._state(key), self._fetching(self._context.ends)
        state.plan = await self._search.find_plan(state, fetching)
        if state.plan is None:
            return None
        others = await self._search.find_others(state, fetching)
        read = [await self._with_plan(each, fetching, progress, 1 / (1 + len(others))) for each in (state, *others)]
        return side_by_side(read)

    async def _with_plan(
        self,
        state: PrometheusMetricState,
        fetching: FetchContext,
        progress: ProgressCallback,
        part: float,
    ) -> NodeUtilization:
        """The nodes of one query, with this part of the metric's share of the budget. A mean covers its whole step, so
        that no load between two values is left out."""
        context, plan = self._context, state.plan
        assert plan is not None
        nodes = await self._nodes_now(plan)
        series = await context.reader.cost_of(plan.expression, context.ends, nodes=nodes)
        step = self._step(plan, series=series, nodes=nodes, part=part)
        label, plain = plan.label.labels, is_plain(plan.expression)
        means = await context.reader.grid(
            _means(plan, step), label, context.begins + step, context.ends, step,
            series=series, purpose=f"{state.metric.key} of nodes", progress=progress,
        )  # fmt: skip
        named = await self._named(means, plan, state, step)
        values, peaks = named.values, None
        if plain:
            wide = max(step, SLOT_S)
            highest = await context.reader.grid(
                f"max_over_time({plan.expression}[{wide}s])", label, context.begins + wide, context.ends, wide,
                series=series, purpose=f"{state.metric.key} peaks of nodes",
            )  # fmt: skip
            peaks = _aligned(await self._named(highest, plan, state, wide), [key for (key,) in named.keys])
            peaks = self._percent(peaks, plan)
        slots = (context.ends - context.begins) // SLOT_S
        grid = utilization_grid(
            self._percent(values, plan),
            step,
            slots=slots,
            threshold=context.options.hot,
            smoothed=plan.candidate.smoothing_s >= SMOOTH_S,
            peaks=peaks,
        )
        return tuple(key for (key,) in named.keys), grid

    def _step(self, plan: PrometheusQueryPlan, *, series: int, nodes: int, part: float) -> int:
        """The seconds between two means, within the share of the budget and MOST_NODE_VALUES."""
        context, plain = self._context, is_plain(plan.expression)
        span = context.ends - context.begins
        smallest = CPU_STEP_S if plan.metric.key == "CPU" else SLOT_S
        cost = 2 * series if plain else series  # the means and the highest values
        step = context.reader.step_for(cost, span, smallest=smallest, share=part * (SHARE if plain else SHARE_OF_RATES))
        fits = next((each for each in STEPS if nodes * span / each <= MOST_NODE_VALUES), LONGEST_STEP_S)
        return min(max(step or LONGEST_STEP_S, fits), LONGEST_STEP_S)

    @staticmethod
    def _percent(values: F64, plan: PrometheusQueryPlan) -> F64:
        return np.clip(values * SOURCE_UNITS[plan.candidate.unit][1], 0.0, 100.0)

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
        step: int,
    ) -> SeriesGrid:
        """The grid by node name, without values that a new node has wrong; series without a node are left out with a
        remark. The nodes are those of the series at the end of the report, and of others by the same labels."""
        fetching = self._fetching(self._context.ends)  # the deadline of the search may have passed
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
                f"{len(unnamed):,} series of {state.metric.key} do not name a node by {plan.label.origin}: "
                f"{shorten_names(unnamed)}"
            )
        names = state.restricted(names)
        merged: dict[str, F64] = {}
        for column, name in enumerate(names):
            if name:
                values = grid.values[:, column]
                merged[name] = np.fmax(merged[name], values) if name in merged else values
        keys = sorted(merged)
        values = np.stack([merged[key] for key in keys], axis=1) if keys else np.empty((len(grid.values), 0))
        if full_s := plan.candidate.young_s:
            values = without_beginnings(values, young_slots(full_s, step))
        return SeriesGrid(tuple((key,) for key in keys), values)


def _means(plan: PrometheusQueryPlan, step: int) -> str:
    """Query for the mean of the `step` seconds before each time, or of the averaging time of the query, if that is
    longer. The window of a rate is longer than the step by one scrape interval: it then begins with the last sample
    before the step, and no growth of a counter is between two windows."""
    if is_plain(plan.expression):
        # The newest value of a rule that is a mean of the step, or of more, is enough.
        newest = step <= SLOT_S and plan.candidate.smoothing_s >= min(step, SMOOTH_S)
        return f"{'last' if newest else 'avg'}_over_time({plan.expression}[{step}s])"
    if plan.candidate.origin == "configured":
        return plan.expression
    window = math.ceil(max(SLOT_S, step) + (plan.scrape_interval or DEFAULT_SCRAPE_INTERVAL_S))
    return plan.expression.replace("[5m]", f"[{window}s]")


def side_by_side(parts: Sequence[NodeUtilization]) -> NodeUtilization:
    """The columns of grids with different nodes, in order of the nodes."""
    names = [node for nodes, _ in parts for node in nodes]
    order = sorted(range(len(names)), key=names.__getitem__)
    mean, peak, hot = (
        np.concatenate(columns, axis=1)[:, order]
        for columns in zip(*((grid.mean, grid.peak, grid.hot) for _, grid in parts), strict=True)
    )
    every = max(grid.sampled_every for _, grid in parts)
    return tuple(names[i] for i in order), UtilizationGrid(mean, peak, hot, every)


def _of_nodes(found: NodeUtilization, nodes: Sequence[str]) -> UtilizationGrid:
    place = {node: i for i, node in enumerate(found[0])}
    return found[1].of([place.get(node, -1) for node in nodes])


def _absent(like: UtilizationGrid, nodes: int) -> UtilizationGrid:
    absent = np.full((len(like.mean), nodes), np.nan)
    return UtilizationGrid(absent, absent, absent)


def _aligned(grid: SeriesGrid, nodes: Sequence[str]) -> F64:
    """The columns of these nodes; NaN for nodes that the grid lacks."""
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
        # The capacity of nodes that were removed is needed for their load; they have nothing to allocate.
        span = context.ends - context.begins
        times, count = (f"{span}s:1h", span // 3600) if part == "capacity" else ("1h", 1)
        query = f"max by (node, resource) ({context.of_objects(f'last_over_time({series}[{times}])')})"
        grid = await context.reader.grid(
            query, ("node", "resource"), context.ends, context.ends, 60,
            series=4 * count * len(nodes), purpose=f"node {part}",
        )  # fmt: skip
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
