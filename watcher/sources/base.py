"""Interface of the providers (sources of samples).

`fetch(since, until)` returns the source's samples in that range at their original timestamps. A provider stores no
windows and does not judge samples. A fetch fails as a whole (ProviderError) or for one metric (a QueryFailure in the
result): a failed query affects its metric, not the tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.pods.coverage import PodGaps
from watcher.core.pods.table import PodOrigin, PodUsage
from watcher.model import Finding, Provenance, SeriesBatch
from watcher.sources.errors import ProviderError


class NoPodUsage(ProviderError):
    """The source is available but provides no pod usage, either never or not in this installation."""

    kind = "no_pods"


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """A metric that could not be fetched this time."""

    metric: str  # Metric.name
    error: ProviderError


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The query for one metric and the reason for its selection; shown in findings, on /metrics and in one log line."""

    metric: str  # Metric.name
    expression: str
    unit: str  # as declared by the source: a key of model.SOURCE_UNITS
    node_label: str
    smoothing_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Result of a fetch: batches of the metrics that succeeded, failures of the others.

    `plans` are the queries in use, by metric name. `findings` are problems that the provider noticed (for example a
    missing node label or missing series). `clock_offset_s` is the source's clock minus the local clock in seconds, None
    if unknown. `partial` maps a metric name to the source's message that its response is incomplete: the returned
    samples are correct, but nodes or times are missing and must be fetched again. `naming` maps a metric name to a text
    about what the candidates for the names of its nodes map to. `known` are the names of the nodes of the cluster, as
    far as the provider knows them.
    """

    batches: tuple[SeriesBatch, ...]
    failures: tuple[QueryFailure, ...] = ()
    plans: Mapping[str, QueryPlan] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    clock_offset_s: float | None = None
    partial: Mapping[str, str] = field(default_factory=dict)
    naming: Mapping[str, str] = field(default_factory=dict)
    known: Collection[str] = ()


class Provider(Protocol):
    """A source of samples. Implementations may be stateful and run background tasks."""

    @property
    def source(self) -> str:
        """Source name as published, for example "Prometheus" or "Host"."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether the source has samples from before the first fetch, so that backfill is possible."""
        ...

    async def start(self) -> None:
        """Start threads, connections and background sampling. Sends no request and does not fail if the source is
        unavailable."""
        ...

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds). `only` restricts the metrics (Metric.name); None: all.

        Raises ProviderError if the source returned no data at all. Must be safe to cancel at any await.
        """
        ...

    async def close(self) -> None:
        """Release all resources within one second, even while requests are pending."""
        ...


@runtime_checkable
class NodeAwareProvider(Protocol):
    """A Provider whose series have several candidates for the name of their node, and that chooses with the nodes of
    the cluster."""

    def know_nodes(self, index: NodeIndex | None) -> None:
        """Use the nodes of the cluster from the next fetch on; None: they are unknown."""
        ...


@runtime_checkable
class MaximaProvider(Protocol):
    """A Provider whose server computes maxima. The past of other providers is fetched sample by sample."""

    @property
    def maxima_pace(self) -> float:
        """Seconds between two such requests."""
        ...

    async def fetch_maxima(self, since: float, until: float, *, metric: str) -> Fetch:
        """The maximum of each five minutes between two times (unix seconds, multiples of 300) of one metric
        (Metric.name), each with the time of the middle of its five minutes. Raises ProviderError. Must be safe to
        cancel at any await."""
        ...


@dataclass(frozen=True, slots=True)
class PodFetch:
    """Current pod usage of a source, not yet reviewed, and the provider's findings. `nodes` are nodes that the source
    measures although they may run no pods; every node of a reading is measured."""

    usage: PodUsage
    origin: PodOrigin
    findings: tuple[Finding, ...] = ()
    nodes: frozenset[str] = frozenset()


@runtime_checkable
class PodProvider(Protocol):
    """A Provider that also provides pod usage."""

    async def fetch_pods(self, now: float) -> PodFetch:
        """The latest reading of every pod as of `now` (unix seconds), each with its own timestamp.

        Raises NoPodUsage (what is missing and how to provide it) if the source has no pod usage, and other
        ProviderErrors if the request fails. Must be safe to cancel at any await.
        """
        ...


@runtime_checkable
class PodGapProvider(Protocol):
    """A PodProvider that knows why a node has no pod usage."""

    async def pod_gaps(self, now: float) -> PodGaps:
        """The causes as of `now` (unix seconds). Raises ProviderError. Must be safe to cancel at any await."""
        ...


async def pod_gaps(provider: Provider, now: float, *, deadline: float) -> PodGaps:
    """The causes of any provider as of `now` (unix seconds), a general one if the provider knows none or does not
    respond before `deadline` (event loop time)."""
    if isinstance(provider, PodGapProvider):
        try:
            async with asyncio.timeout_at(deadline):
                return await provider.pod_gaps(now)
        except (ProviderError, TimeoutError) as error:
            return PodGaps(f"the cause is unknown: {str(error) or 'no response in time'}")
    return PodGaps(f"{provider.source} has no pods of the node, or the node runs none")


async def fetch_pods(provider: Provider, now: float) -> PodFetch:
    """Pod usage of any provider as of `now` (unix seconds). Raises like PodProvider.fetch_pods, and NoPodUsage for a
    provider without pod usage."""
    if isinstance(provider, PodProvider):
        return await provider.fetch_pods(now)
    raise NoPodUsage(
        f"{provider.source} provides no pod usage",
        hint="Pod usage comes from metrics-server, from a Prometheus that scrapes the kubelets' cAdvisor, or from the "
        "node agents (agents.urls).",
    )


def provenance(plan: QueryPlan, origin: str, *, of_cluster: bool = False) -> Provenance:
    """Identity of a plan's samples: samples with different provenances must not share a window. `origin` is created
    by model.origin_of. The node label and `of_cluster` (names mapped to cluster nodes) are part of the expression,
    because they decide which node a series belongs to."""
    named = f"{plan.node_label}, as nodes of the cluster" if of_cluster else plan.node_label
    return Provenance(origin, f"{plan.expression} by {named}", plan.unit, plan.smoothing_s)
