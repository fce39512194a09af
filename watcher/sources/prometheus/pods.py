"""Pod usage from cAdvisor's series in Prometheus, with three queries (pod_queries.py) for any number of pods.

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

from watcher.core.messages import printable, shorten_names
from watcher.core.naming.identity import Identities
from watcher.core.naming.labels import EXPORTED, Labels
from watcher.core.pods.coverage import PodGaps
from watcher.core.pods.table import PODS, PodOrigin, PodUsage
from watcher.core.queries.matchers import label_text, narrowed
from watcher.decoding.json_text import JsonDecoder
from watcher.model import Finding, FindingKind, MetricType, Remedy
from watcher.sources.base import NoPodUsage, PodFetch
from watcher.sources.config import InstantQuery
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderPartial
from watcher.sources.prometheus.evidence_queries import PROFILE_LABELS, profile, target_labels_query
from watcher.sources.prometheus.node_names import REMEDIES, NodeEvidenceReader
from watcher.sources.prometheus.plans import DEFAULT_SCRAPE_INTERVAL_S, NodeLabel, among, labels_of
from watcher.sources.prometheus.pod_queries import (
    PRESSURE,
    SCRAPED,
    PodLabels,
    PodPlan,
    Target,
    renamed_series,
    usual_series,
    without_targets,
)
from watcher.sources.prometheus.responses import read_labels, scrape_interval
from watcher.sources.prometheus_api import PrometheusClient, PrometheusResponse
from watcher.sources.settings import ProviderSettings

T = TypeVar("T")

SHORTEST_SPAN_S = 120.0
SCRAPES_IN_SPAN = 4
"""Scrapes in the span of the CPU rate. A rate exists even if two of them are missing."""
NAMES_READ_EVERY = 5
TARGET_LABELS = ("job", "exported_job")
"""Labels of the scrape of a kubelet. Its other labels, which may distinguish clusters, are read from the series."""
SAMPLED_INSTANCES = 3
SAMPLED_RANGE = "10m"

Series = tuple[str, str, str]
"""Namespace, pod and value of the node label."""


@dataclass(slots=True)
class _PodFetchContext:
    """State of one running fetch. `now` is in unix seconds, `deadline` in event loop time."""

    now: float
    deadline: float
    findings: list[Finding] = field(default_factory=list)

    def find(self, kind: FindingKind, reason: str, remedy: Remedy) -> None:
        self.findings.append(Finding(kind, "", PODS, self.now, reason, remedy))


class PrometheusPodReader:
    """Queries pod usage through the transport of the Prometheus provider, for at most `fetch_deadline` seconds."""

    def __init__(
        self, settings: ProviderSettings, transport: PrometheusClient, *, source: str, fetch_deadline: float
    ) -> None:
        self._settings = settings
        self._fetch_deadline = fetch_deadline
        self._transport = transport
        self._source = source
        self._labels = PodLabels()
        self._plan: PodPlan | None = None
        self._pressure_wanted = any(metric.type is MetricType.PRESSURE for metric in settings.wanted)
        self.evidence = NodeEvidenceReader(settings.matchers)
        self._rows: Sequence[Labels] = ()
        self._nodes: Mapping[str, str] = {}
        self._read_at, self._number = 0, 0  # in fetches

    async def fetch(self, now: float) -> PodFetch:
        """Pod usage at `now` (unix seconds). Raises NoPodUsage if cAdvisor's series do not exist, and other
        ProviderErrors."""
        asking = _PodFetchContext(now, asyncio.get_running_loop().time() + self._fetch_deadline)
        plan = self._plan or await self._look(asking)
        self._plan = None  # search again at the next fetch if this one fails or returns nothing
        queries = (plan.times, plan.cores, plan.memory, *(plan.pressure if self._pressure_wanted else ()))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._values(query, plan, asking)) for query in queries]
        times, *answers = (task.result() for task in tasks)
        if isinstance(times, ProviderError):
            raise times
        if not times:
            raise NoPodUsage(f"{self._evidence} no longer has samples", hint=_HINT)
        columns = []
        for asked, answer in zip(queries[1:], answers, strict=True):
            if isinstance(answer, ProviderError):
                asking.find(FindingKind.QUERY_FAILED, f"{asked}: {answer}. {answer.hint}".strip(), Remedy.LEFT_OUT)
                answer = {}
            columns.append(answer)
        self._number += 1
        nodes = await self._nodes_of(plan.label, {series[2] for series in times}, asking)
        if self._pressure_wanted and not any(columns[2:]):
            asking.find(FindingKind.NO_SERIES, f"{PRESSURE.format('*')}: {_NO_PRESSURE}", Remedy.LEFT_OUT)
        usage = await asyncio.to_thread(joined, times, columns[0], columns[1], nodes, columns[2:])
        if any(usage.nodes):
            self._plan = plan
        origin = PodOrigin(self._source, plan.cores, float(plan.span_s), plan.memory, "rss")
        return PodFetch(usage, origin, tuple(asking.findings))

    async def find_plan(self, now: float) -> PodPlan:
        """The queries for the series at `now` (unix seconds). Raises NoPodUsage, and other ProviderErrors."""
        return await self._look(_PodFetchContext(now, asyncio.get_running_loop().time() + self._fetch_deadline))

    async def nodes_by_label(self, plan: PodPlan, values: Iterable[str], now: float) -> Mapping[str, str]:
        """Node by value of the plan's node label, "" if unknown. Raises ProviderError."""
        deadline = asyncio.get_running_loop().time() + self._fetch_deadline
        return await self._nodes_of(plan.label, values, _PodFetchContext(now, deadline))

    async def _values(self, query: str, plan: PodPlan, asking: _PodFetchContext) -> dict[Series, float] | ProviderError:
        """Value of each pod, or the error: a failed query affects only its column."""
        try:
            return await self._ask(query, asking, read=lambda rows: read_values(rows, label=plan.label))
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

    @property
    def _evidence(self) -> str:
        return self._labels.evidence(self._settings.matchers)

    async def _look(self, asking: _PodFetchContext) -> PodPlan:
        self._labels = await self._find_labels(asking)
        rows = await self._profile(asking)
        if not rows:
            raise await self._nothing(asking)
        found = await self._decide(rows, asking)
        label = labels_of(rows, found, most=1)
        if label is None:
            tried = self._settings.node_label or ", ".join(PROFILE_LABELS)
            why = "; ".join(problem.reason for problem in found.problems) or f"tried {tried}"
            raise NoPodUsage(
                f"no label of {self._evidence} names the nodes ({why})",
                hint="" if found.problems else _RELABEL_HINT,
            )
        self._nodes = self._by_key(label, rows, found)
        interval = await self._scrape_interval(rows, asking) or DEFAULT_SCRAPE_INTERVAL_S
        span = math.ceil(max(SHORTEST_SPAN_S, SCRAPES_IN_SPAN * interval))
        return PodPlan(label, span, self._settings.matchers, self._labels, math.ceil(interval))

    async def _find_labels(self, asking: _PodFetchContext) -> PodLabels:
        """The labels of pods in the series: exported_LABEL only without series that have the usual labels."""
        renamed = await self._targets(renamed_series(self._settings.matchers), asking)
        if not renamed:
            return PodLabels()
        usual = await self._targets(usual_series(self._settings.matchers), asking)
        if not usual:
            return PodLabels(EXPORTED)
        jobs = shorten_names(sorted({job for job, _ in renamed}))
        reason = f"the labels namespace and pod of series of job {jobs} {_NOT_OF_PODS}"
        asking.find(FindingKind.DUPLICATE_SERIES, reason, Remedy.LEFT_OUT)
        return PodLabels("", without_targets(renamed, usual))

    async def _targets(self, series: str, asking: _PodFetchContext) -> set[Target]:
        rows = await self._ask(f"group by (job, instance) ({series})", asking, read=read_labels)
        return {(row.get("job", ""), row.get("instance", "")) for row in rows}

    async def _nothing(self, asking: _PodFetchContext) -> NoPodUsage:
        """The error without series of pods: cAdvisor is not scraped, or its series have no pods."""
        others = self._labels.above_pods(self._settings.matchers)
        if await self._ask(f"group ({others})", asking, read=read_labels):
            return NoPodUsage(f"no series of {self._evidence}, although {others} has series", hint=_LABELS_HINT)
        return NoPodUsage(f"no series of {self._evidence}", hint=_HINT)

    async def gaps(self, now: float, plan: PodPlan | None = None) -> PodGaps:
        """Why nodes without pod usage have none at `now` (unix seconds): for each node whose cAdvisor is scraped, and
        for all others. The plan is that of the last fetch if not given. Raises ProviderError."""
        asking = _PodFetchContext(now, asyncio.get_running_loop().time() + self._fetch_deadline)
        if (plan := plan or self._plan) is None:
            return PodGaps(_NOT_SCRAPED)
        scraped = (narrowed(SCRAPED, *plan.matchers), plan.labels.above_pods(plan.matchers))
        query = " or ".join(f"group by ({plan.label.text}) ({each})" for each in scraped)
        rows = await self._ask(query, asking, read=read_labels)
        nodes = self._by_key(plan.label, rows, await self._decide(rows, asking))
        return PodGaps(_NOT_SCRAPED, {node: _NO_PODS for node in nodes.values() if node})

    async def _scrape_interval(self, rows: Sequence[Labels], asking: _PodFetchContext) -> float | None:
        """Scrape interval in seconds, measured on a few kubelets; None if there are too few samples."""
        for label in ("instance", *PROFILE_LABELS):
            values = sorted({row[label] for row in rows if row.get(label)})[:SAMPLED_INSTANCES]
            if values:
                query = f"{narrowed(self._evidence, among(label, values))}[{SAMPLED_RANGE}]"
                return await self._ask(query, asking, read=scrape_interval, expects="matrix")
        return None

    # --- nodes -------------------------------------------------------------------------------------------------------

    async def _profile(self, asking: _PodFetchContext) -> Sequence[Labels]:
        given = self._settings.node_label
        # Prometheus before 3 refuses other label names.
        known = (label for label in PROFILE_LABELS if label == label_text(label))
        targets: Sequence[Labels] = ()
        for evidence in (narrowed(SCRAPED, *self._settings.matchers), self._evidence):
            targets = targets or await self._ask(target_labels_query(evidence), asking, read=read_labels)
        others = sorted({label for row in targets for label in row})
        labels = (*known, *TARGET_LABELS, *others, *((given,) if given else ()))
        self._rows = await self._ask(profile(self._evidence, labels=labels), asking, read=read_labels)
        self._read_at = self._number
        return self._rows

    async def _decide(self, rows: Sequence[Labels], asking: _PodFetchContext) -> Identities:
        """The nodes of these series. The configured label may be one of the node exporter's series alone."""

        async def ask(query: str, read: Callable[[Iterable[msgspec.Raw]], T]) -> PrometheusResponse[T]:
            return await self._transport.ask(
                InstantQuery(query, asking.now), expects="vector", read=read, deadline=asking.deadline
            )

        given = self._settings.node_label
        configured = given if given and any(row.get(given) for row in rows) else None
        decision = await self.evidence.decide(
            rows, self._evidence, ask, number=self._number, at_most_old=0, configured=configured, pods=False
        )
        for reason in decision.failures:
            asking.find(FindingKind.QUERY_FAILED, reason, Remedy.REPORTED)
        for problem in decision.found.problems:
            remedy = REMEDIES[problem.kind]
            asking.findings.append(Finding(problem.kind, problem.node, PODS, asking.now, problem.reason, remedy))
        return decision.found

    def _by_key(self, label: NodeLabel, rows: Sequence[Labels], found: Identities) -> Mapping[str, str]:
        """Node by the value of the label; without values that series of several nodes have."""
        nodes = found.names if self.evidence.translates else found.nodes
        known: dict[str, str] = {}
        for row, node in zip(rows, nodes, strict=True):
            if key := label.key(row):
                known[key] = node or "" if known.setdefault(key, node or "") == (node or "") else ""
        return known

    async def _nodes_of(self, label: NodeLabel, values: Iterable[str], asking: _PodFetchContext) -> Mapping[str, str]:
        """Node by value of the node label, "" if unknown. Decided again for new values, and every few fetches."""
        values = list(values)
        new = any(value and value not in self._nodes for value in values)
        if new or self._number - self._read_at >= NAMES_READ_EVERY:
            rows = await self._profile(asking)
            self._nodes = {
                **dict.fromkeys(values, ""),
                **self._by_key(label, rows, await self._decide(rows, asking)),
            }
        return {value: self._nodes.get(value, "") for value in values}


_NO_PRESSURE = (
    "no series, so the pressure of pods is unknown: kubelets have these series from Kubernetes 1.34 on (before, with "
    "the feature gate KubeletPSI), on nodes with cgroup 2 and pressure stall information (psi=1)"
)
_NOT_OF_PODS = (
    "are those of its target, and not of the measured pods; they are left out, because other series have the usual"
    " labels: set honor_labels: true for this job, or remove it"
)
_RELABEL_HINT = "Add a relabeling rule to the scrape job of the kubelets, so that their series have a label node."
_HINT = (
    "Configure Prometheus to scrape /metrics/cadvisor of the kubelets, with the labels namespace, pod and container."
)
_LABELS_HINT = (
    "cAdvisor is scraped, but the series of pods are missing: check that the metric_relabel_configs of its job keep "
    "series with the labels namespace and pod, and that the container runtime reports the names of pods to the kubelet."
)
_NOT_SCRAPED = (
    "cAdvisor of the kubelet is not scraped or did not respond; see the target /metrics/cadvisor of the node in "
    "Prometheus"
)
_NO_PODS = "cAdvisor of the kubelet is scraped, but has no series with a label pod; or the node runs no pods"


# --- pure functions --------------------------------------------------------------------------------------------------


class _VectorRow(msgspec.Struct, frozen=True, gc=False):
    """A series of a vector. The value remains a string, because it may be "NaN"."""

    metric: dict[str, str] = {}
    value: tuple[float, str] = (0.0, "NaN")


_ROW = JsonDecoder(_VectorRow)


def read_values(rows: Iterable[msgspec.Raw], *, label: NodeLabel) -> dict[Series, float]:
    """Value of each pod in a vector. Raises ProviderMalformed."""
    values: dict[Series, float] = {}
    texts: dict[str, str] = {}  # interned: namespaces and nodes repeat for every pod
    try:
        for raw in rows:
            row = _ROW.decode(raw)
            namespace, node = row.metric.get("namespace", ""), label.key(row.metric) or ""
            series = (texts.setdefault(namespace, namespace), row.metric.get("pod", ""), texts.setdefault(node, node))
            values[series] = float(row.value[1])
    except ValueError as error:
        raise ProviderMalformed(f"a value of the series cannot be read: {printable(str(error))}") from error
    return values


def joined(
    times: Mapping[Series, float],
    cores: Mapping[Series, float],
    memory: Mapping[Series, float],
    nodes: Mapping[str, str],
    pressure: Sequence[Mapping[Series, float]] = (),
) -> PodUsage:
    """Combine the results, NaN for a pod without a value. `times` are unix seconds, `cores` cores, `memory` bytes,
    `pressure` percent by resource; `nodes` maps the node label's value to the node."""

    def column(values: Mapping[Series, float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.fromiter((values.get(series, math.nan) for series in times), dtype=np.float64, count=len(times))

    return PodUsage(
        tuple((namespace, pod) for namespace, pod, _ in times),
        tuple(nodes[node] for _, _, node in times),
        column(times),
        column(cores),
        column(memory),
        np.stack([column(each) for each in pressure]) if pressure else None,
    )
