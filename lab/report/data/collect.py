"""Collects the history of a cluster from Prometheus. A part that is missing is named, and the others are collected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lab.report.collected import ClusterHistory, NodeLoads, NodeSizes
from lab.report.data.context import CollectContext, CollectOptions, Progress
from lab.report.data.nodes import PERIOD, NodeLoadReader, read_sizes
from lab.report.data.pod_requests import read_requests
from lab.report.data.pods import find_pods
from lab.report.data.reading import HistoryReader
from watcher.core.messages import shorten_names
from watcher.core.naming.labels import EXPORTED
from watcher.sources.errors import ProviderRefused
from watcher.sources.prometheus_api import PrometheusClient
from watcher.sources.settings import ProviderSettings

HOUR_S = 3600
STATE_METRICS = "scrape kube-state-metrics with honor_labels: true, as kube-prometheus does"
NAMES = "see docs/reference/node-names.md; load-watcher doctor shows the evidence for the names"
_RENAMED = (("kube_pod_info", "pod"), ("kube_pod_info", "node"), ("kube_node_info", "node"))
CADVISOR = (
    "scrape /metrics/cadvisor of the kubelets, with the labels namespace, pod and container, as kube-prometheus does"
)


async def collect(settings: ProviderSettings, options: CollectOptions, *, progress: Progress) -> ClusterHistory:
    """Send all queries. Raises ProviderError if the server or the utilization of nodes is not available, ValueError for
    an invalid address."""
    client = PrometheusClient(settings)
    client.start()
    try:
        ends = int(options.ends // HOUR_S) * HOUR_S
        begins = ends - max(1, round(options.days * 24)) * HOUR_S
        reader = HistoryReader(client, most_values=options.most_values, timeout=settings.timeout)
        context = CollectContext(settings, options, client, reader, begins, ends, progress)
        renamed = (context.narrowed(f'{series}{{{EXPORTED}{label}!=""}}') for series, label in _RENAMED)
        context.exported = bool(await reader.count(" or ".join(renamed), ends))
        return await _collect(context)
    finally:
        await client.close()


async def _collect(context: CollectContext) -> ClusterHistory:
    loads = await NodeLoadReader(context).read()
    if not len(loads.nodes) or not np.isfinite(loads.cpu.mean).any():
        if remarks := "; ".join(context.reader.remarks):
            raise ProviderRefused(f"{context.client.address}: no node has a load: {remarks}", hint=NAMES)
        raise ProviderRefused(f"{context.client.address}: no values of the nodes in this time", hint=PERIOD)
    sizes = await context.optional(
        "kube_node_status_allocatable of kube-state-metrics",
        "cores and bytes instead of percent, and what is above the bound",
        STATE_METRICS,
        lambda: read_sizes(context, loads.nodes),
    )
    requests = await context.optional(
        "kube_pod_container_resource_requests of kube-state-metrics",
        "requests beside peaks",
        STATE_METRICS,
        lambda: read_requests(context, loads.nodes),
    )
    history = ClusterHistory(
        context.client.address, context.begins, context.ends, loads, sizes or _unknown(loads), requests
    )
    return await _with_pods(context, history, complete=sizes is not None and requests is not None)


async def _with_pods(context: CollectContext, history: ClusterHistory, *, complete: bool) -> ClusterHistory:
    loads = history.loads
    shows = "which workloads make the load"
    cadvisor = "container_cpu_usage_seconds_total of cAdvisor"
    info = "kube_pod_info of kube-state-metrics, with the node names of the node exporter"
    reader = await context.optional(cadvisor, shows, CADVISOR, lambda: find_pods(context, loads))
    owners: Mapping[tuple[str, str], str] | None = None
    pods = recorded = None
    if reader is not None:
        pods = await context.optional(cadvisor, shows, CADVISOR, reader.loads)
    if reader is not None and pods is not None:
        by_owner = "workloads by owner instead of by the name of the pod"
        owners = await context.optional(info, by_owner, STATE_METRICS, reader.owners)
    if reader is not None and pods is not None and complete:
        known, placements = owners or {}, "what other placements would have changed"
        recorded = await context.optional(info, placements, STATE_METRICS, lambda: reader.recorded(known))
    _check_names(context, history.sizes, loads)
    return replace(
        history,
        pods=pods,
        owners=owners or {},
        recorded=recorded,
        missing=tuple(context.missing),
        remarks=tuple(context.reader.remarks),
        queries=tuple(sorted(context.reader.uses, key=lambda use: (use.purpose, use.expression))),
    )


def _check_names(context: CollectContext, sizes: NodeSizes, loads: NodeLoads) -> None:
    """Add a remark about nodes whose load is known and whose size is not."""
    unknown = [node for node, size in zip(loads.nodes, sizes.allocatable_cores.tolist(), strict=True) if size != size]
    if unknown and len(unknown) < len(loads.nodes):
        context.reader.remark(f"{len(unknown):,} nodes have a load and no size: {shorten_names(unknown)}")


def _unknown(loads: NodeLoads) -> NodeSizes:
    absent = np.full(len(loads.nodes), np.nan)
    return NodeSizes(absent, absent, absent, absent)
