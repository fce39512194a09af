"""Pod usage from cAdvisor's series in Prometheus, with three queries for any number of pods.

cAdvisor, part of every kubelet, reports containers, the pause container of each pod and the cgroups above them, which
are sums of the containers. Summing all of them would count usage two or three times. The sum therefore includes only
real containers, and each container once, although two jobs may scrape the same kubelet and the series of a restarted
container may exist for a while.

CPU is a counter, so the result is a rate over a span, which is published with the values. The time of a reading is the
time of the counter's newest sample, which the third query returns. The series of a deleted pod may exist for five
minutes in Prometheus; its time no longer advances, which is how watcher/core/pods/table.py detects it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np

from watcher.core.messages import printable
from watcher.core.naming.name_resolver import without_port
from watcher.core.pods.table import PODS, PodOrigin, PodUsage
from watcher.core.queries.matchers import Matcher, narrowed
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.sources.config import InstantQuery
from watcher.platform.sources.errors import ProviderError, ProviderMalformed, ProviderPartial
from watcher.platform.sources.prometheus import PrometheusClient
from watcher.providers.base import NoPodUsage, PodFetch
from watcher.providers.prometheus.queries import (
    DEFAULT_SCRAPE_INTERVAL_S,
    PROFILE_LABELS,
    Labels,
    NodeLabel,
    NodeNames,
    PrometheusConfig,
    among,
    configured_label,
    direct_label,
    fallback_label,
    names_query,
    profile,
    read_names,
)
from watcher.providers.prometheus.responses import read_labels, scrape_interval

T = TypeVar("T")

CORES = "container_cpu_usage_seconds_total"
MEMORY = "container_memory_rss"
CONTAINERS = 'container!="",container!="POD",pod!=""'
"""Selects real containers: the series of a cgroup has no container label, and older container runtimes name the
pause container POD."""
SHORTEST_SPAN_S = 120.0
SCRAPES_IN_SPAN = 4
"""Scrapes in the span of the CPU rate. A rate exists even if two of them are missing."""
NAMES_READ_EVERY = 5
SAMPLED_INSTANCES = 3
SAMPLED_RANGE = "10m"

Series = tuple[str, str, str]
"""Namespace, pod and value of the node label."""


@dataclass(frozen=True, slots=True)
class PodPlan:
    """Parameters of the queries: the node label, the span of the CPU rate in seconds, and the matchers of this
    cluster."""

    label: NodeLabel
    span_s: int
    matchers: tuple[Matcher, ...] = ()

    @property
    def cores(self) -> str:
        # A cAdvisor outside of a kubelet may have one series per CPU.
        return self._summed(f"sum without (cpu) (rate({selector(CORES, self.matchers)}[{self.span_s}s]))")

    @property
    def memory(self) -> str:
        return self._summed(selector(MEMORY, self.matchers))

    @property
    def times(self) -> str:
        return f"max by (namespace, pod, {self.label.label}) (timestamp({selector(CORES, self.matchers)}))"

    def _summed(self, of_containers: str) -> str:
        label = self.label.label
        once = f"max by (namespace, pod, container, {label}) ({of_containers})"
        return f"sum by (namespace, pod, {label}) ({once})"


def selector(series: str, matchers: Sequence[Matcher] = ()) -> str:
    """Selector of the series of real containers in this cluster."""
    return narrowed(f"{series}{{{CONTAINERS}}}", *matchers)


@dataclass(slots=True)
class _PodFetchContext:
    """State of one running fetch. `now` is in unix seconds, `deadline` in event loop time."""

    now: float
    deadline: float
    findings: list[Finding] = field(default_factory=list)

    def find(self, kind: FindingKind, reason: str, remedy: Remedy) -> None:
        self.findings.append(Finding(kind, "", PODS, self.now, reason, remedy))


class PrometheusPodReader:
    """Queries pod usage through the transport of the Prometheus provider."""

    def __init__(self, config: PrometheusConfig, transport: PrometheusClient, *, source: str) -> None:
        self._config = config
        self._transport = transport
        self._source = source
        self._evidence = selector(CORES, config.matchers)
        self._plan: PodPlan | None = None
        self._names: NodeNames | None = None
        self._names_age = 0  # in fetches

    async def fetch(self, now: float) -> PodFetch:
        """Pod usage at `now` (unix seconds). Raises NoPodUsage if cAdvisor's series do not exist, and other
        ProviderErrors."""
        asking = _PodFetchContext(now, asyncio.get_running_loop().time() + self._config.fetch_deadline)
        plan = self._plan or await self._look(asking)
        self._plan = None  # search again at the next fetch if this one fails or returns nothing
        queries = (plan.times, plan.cores, plan.memory)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._values(query, plan, asking)) for query in queries]
        times, cores, memory = (task.result() for task in tasks)
        if isinstance(times, ProviderError):
            raise times
        if not times:
            raise NoPodUsage(f"{self._evidence} no longer has samples", hint=_HINT)
        columns = []
        for asked, answer in ((plan.cores, cores), (plan.memory, memory)):
            if isinstance(answer, ProviderError):
                asking.find(FindingKind.QUERY_FAILED, f"{asked}: {answer}. {answer.hint}".strip(), Remedy.LEFT_OUT)
                answer = {}
            columns.append(answer)
        nodes = await self._nodes_of(plan.label, {series[2] for series in times}, asking)
        usage = await asyncio.to_thread(joined, times, columns[0], columns[1], nodes)
        if any(usage.nodes):
            self._plan = plan
        origin = PodOrigin(self._source, plan.cores, float(plan.span_s), plan.memory, "rss")
        return PodFetch(usage, origin, tuple(asking.findings))

    async def find_plan(self, now: float) -> PodPlan:
        """The queries for the series at `now` (unix seconds). Raises NoPodUsage, and other ProviderErrors."""
        return await self._look(_PodFetchContext(now, asyncio.get_running_loop().time() + self._config.fetch_deadline))

    async def nodes_by_label(self, plan: PodPlan, values: Iterable[str], now: float) -> Mapping[str, str]:
        """Node by value of the plan's node label, "" if unknown. Raises ProviderError."""
        deadline = asyncio.get_running_loop().time() + self._config.fetch_deadline
        return await self._nodes_of(plan.label, values, _PodFetchContext(now, deadline))

    async def _values(self, query: str, plan: PodPlan, asking: _PodFetchContext) -> dict[Series, float] | ProviderError:
        """Value of each pod, or the error: a failed query affects only its column."""
        try:
            return await self._ask(query, asking, read=lambda rows: read_values(rows, label=plan.label.label))
        except ProviderError as error:
            return error

    async def _ask(
        self,
        query: str,
        asking: _PodFetchContext,
        *,
        read: Callable[[Iterable[msgspec.Raw]], T],
        expects: str = "vector",
    ) -> T:
        reply = await self._transport.ask(
            InstantQuery(query, asking.now), expects=expects, read=read, deadline=asking.deadline
        )
        for remark in reply.remarks:
            asking.find(FindingKind.QUERY_FAILED, f"warning of the source: {remark}", Remedy.REPORTED)
        if reply.missing:  # a sum over containers is wrong if some of them are missing
            raise ProviderPartial(f"{self._transport.address}: the response is partial: {reply.missing}")
        return reply.content

    # --- search for queries ------------------------------------------------------------------------------------------

    async def _look(self, asking: _PodFetchContext) -> PodPlan:
        given = self._config.node_label
        labels = (*PROFILE_LABELS, given) if given else PROFILE_LABELS
        rows = await self._ask(profile(self._evidence, labels=labels), asking, read=read_labels)
        if not rows:
            raise NoPodUsage(f"no series of {self._evidence}", hint=_HINT)
        label = (configured_label(given, rows, _NO_NAMES) if given else None) or direct_label(rows)
        if label is None:
            instances = {row["instance"] for row in rows if row.get("instance")}
            names = await self._read_names(asking)
            label = fallback_label(rows, names_at(instances, names))
        if label is None:
            raise NoPodUsage(
                f"no label of {self._evidence} names the nodes (tried {', '.join(labels)})",
                hint="Add a relabeling rule to the scrape job of the kubelets, so that their series have a label node.",
            )
        interval = await self._scrape_interval(rows, asking) or DEFAULT_SCRAPE_INTERVAL_S
        return PodPlan(label, math.ceil(max(SHORTEST_SPAN_S, SCRAPES_IN_SPAN * interval)), self._config.matchers)

    async def _scrape_interval(self, rows: Sequence[Labels], asking: _PodFetchContext) -> float | None:
        """Scrape interval in seconds, measured on a few kubelets; None if there are too few samples."""
        for label in ("instance", *PROFILE_LABELS):
            values = sorted({row[label] for row in rows if row.get(label)})[:SAMPLED_INSTANCES]
            if values:
                query = f"{narrowed(self._evidence, among(label, values))}[{SAMPLED_RANGE}]"
                return await self._ask(query, asking, read=scrape_interval, expects="matrix")
        return None

    # --- nodes -------------------------------------------------------------------------------------------------------

    async def _nodes_of(self, label: NodeLabel, values: Iterable[str], asking: _PodFetchContext) -> Mapping[str, str]:
        """Node by value of the node label, "" if unknown."""
        if label.joined:
            names = self._names
            self._names_age += 1
            if names is None or self._names_age >= NAMES_READ_EVERY:
                names = await self._read_names(asking)
            known = names_at(values, names).by_instance
            return {value: known.get(value, "") for value in values}
        return {value: without_port(value) if label.strip_port else value for value in values}

    async def _read_names(self, asking: _PodFetchContext) -> NodeNames:
        self._names = read_names(await self._ask(names_query(matchers=self._config.matchers), asking, read=read_labels))
        self._names_age = 0
        return self._names


_NO_NAMES = NodeNames("nodename", {})
_HINT = (
    "Configure Prometheus to scrape /metrics/cadvisor of the kubelets, with the labels namespace, pod and container."
)


# --- pure functions --------------------------------------------------------------------------------------------------


def names_at(instances: Iterable[str], names: NodeNames) -> NodeNames:
    """Node names of these instances, matched by host: the kubelet is at 10.0.0.1:10250, the node exporter with the
    name at 10.0.0.1:9100. A host with two names is ignored."""
    by_host: dict[str, set[str]] = {}
    for instance, node in names.by_instance.items():
        by_host.setdefault(without_port(instance), set()).add(node)
    known = {host: next(iter(nodes)) for host, nodes in by_host.items() if len(nodes) == 1}
    return NodeNames(names.label, {each: known[host] for each in instances if (host := without_port(each)) in known})


class _VectorRow(msgspec.Struct, frozen=True, gc=False):
    """A series of a vector. The value remains a string, because it may be "NaN"."""

    metric: dict[str, str] = {}
    value: tuple[float, str] = (0.0, "NaN")


_ROW = msgspec.json.Decoder(_VectorRow)


def read_values(rows: Iterable[msgspec.Raw], *, label: str) -> dict[Series, float]:
    """Value of each pod in a vector. Raises ProviderMalformed."""
    values: dict[Series, float] = {}
    texts: dict[str, str] = {}  # interned: namespaces and nodes repeat for every pod
    try:
        for raw in rows:
            row = _ROW.decode(raw)
            namespace, node = row.metric.get("namespace", ""), row.metric.get(label, "")
            series = (texts.setdefault(namespace, namespace), row.metric.get("pod", ""), texts.setdefault(node, node))
            values[series] = float(row.value[1])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProviderMalformed(f"a value of the series cannot be read: {printable(str(error))}") from error
    return values


def joined(
    times: Mapping[Series, float],
    cores: Mapping[Series, float],
    memory: Mapping[Series, float],
    nodes: Mapping[str, str],
) -> PodUsage:
    """Combine the three results, NaN for a pod without cores or memory. `times` are unix seconds, `cores` cores,
    `memory` bytes; `nodes` maps the node label's value to the node."""

    def column(values: Mapping[Series, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.fromiter((values.get(series, math.nan) for series in times), dtype=np.float64, count=len(times))

    return PodUsage(
        tuple((namespace, pod) for namespace, pod, _ in times),
        tuple(nodes[node] for _, _, node in times),
        column(times),
        column(cores),
        column(memory),
    )
