"""What a source of samples must offer, and how it may fail.

A provider answers `fetch(since, until)` with the samples it has between the two, at their true times. It keeps no
windows, judges no sample, and knows nothing of who asks. It may fail as a whole (ProviderError) or for one metric only
(a QueryFailure in the answer): one failing query costs its metric, not the tick.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from watcher.model import Finding, Provenance, SeriesBatch

if TYPE_CHECKING:
    from watcher.core.pods.table import PodOrigin, PodUsage


class ProviderError(Exception):
    """The source gave nothing. `hint` says what the operator can do, which where nothing is given is what is usual for
    the kind; the cause is chained. Never carries a secret."""

    kind = "provider"
    usual_hint = "The log of the source may say more."

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint or self.usual_hint


class ProviderUnreachable(ProviderError):
    """No connection, no answer in time, or an answer of the kind that passes (429, 502, 503, 504): worth a retry, and
    after `retry_after_s` seconds where the source says when."""

    kind = "unreachable"
    usual_hint = "Is it running, is provider.address right, and does a NetworkPolicy keep us out?"

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class ProviderRefused(ProviderError):
    """The source answered no: credentials, TLS, permission, or a query that it will not run. A retry will not help."""

    kind = "refused"
    usual_hint = "Check the settings of the source: provider.address, its credentials and its queries."


class ProviderMalformed(ProviderError):
    """The source answered something that is not what its protocol says."""

    kind = "malformed"
    usual_hint = "Is provider.address that of the source itself, or of a proxy or a login page before it?"


class NoPodUsage(ProviderError):
    """The source is well, and tells nothing of pods: it never does, or not here."""

    kind = "no_pods"


class ProviderPartial(ProviderError):
    """The source said that its answer lacks a part, and what is computed from a part would be a wrong number."""

    kind = "partial"
    usual_hint = "Are all the stores behind it up?"


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """One metric that could not be had this time."""

    metric: str  # Metric.name
    error: ProviderError


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What is asked for one metric, and why: shown in findings, on /metrics and in one log line."""

    metric: str  # Metric.name
    expression: str
    unit: str  # as declared by the source: a key of model.SOURCE_UNITS
    node_label: str
    smoothing_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """The answer: batches of the metrics that answered, failures of those that did not.

    `plans` are those in use, by metric name; `findings` what the source itself noticed (no node label, no series);
    `clock_offset_s` is the source's clock minus ours, None where it does not tell. `partial` has, by metric name, the
    source's own words where it said that its answer lacks a part: the samples that came are true, but nodes, or times,
    are missing, and they are to be asked for again.
    """

    batches: tuple[SeriesBatch, ...]
    failures: tuple[QueryFailure, ...] = ()
    plans: Mapping[str, QueryPlan] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    clock_offset_s: float | None = None
    partial: Mapping[str, str] = field(default_factory=dict)


class Provider(Protocol):
    """A source of samples."""

    @property
    def source(self) -> str:
        """The name on the wire: "Prometheus", "Host"."""
        ...

    @property
    def remembers(self) -> bool:
        """Whether it can be asked for times before it was first asked, so that backfill makes sense."""
        ...

    async def start(self) -> None:
        """Take up what it needs (threads, connections, background sampling). Does not ask the source, never fails
        because the source is away."""
        ...

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples with since <= time <= until (unix seconds); `only` names metrics (Metric.name), None means all.

        Raises ProviderError if the source gave nothing at all. Cancelling must be safe at any await.
        """
        ...

    async def close(self) -> None:
        """Release everything within a second, whatever still hangs."""
        ...


@dataclass(frozen=True, slots=True)
class PodFetch:
    """What a source knows of pods at the moment, not reviewed yet, and what it noticed itself."""

    usage: PodUsage
    origin: PodOrigin
    findings: tuple[Finding, ...] = ()


@runtime_checkable
class PodProvider(Protocol):
    """A Provider that also tells what pods use."""

    async def fetch_pods(self, now: float) -> PodFetch:
        """The newest reading of every pod at `now` (unix seconds), each at its own time.

        Raises NoPodUsage where the source has none, with what is missing and how it gets there, and any other
        ProviderError where it did not answer. Cancelling must be safe at any await.
        """
        ...


async def fetch_pods(provider: Provider, now: float) -> PodFetch:
    """What any source knows of pods; who wants to know whether it has any asks for them and looks at the error. Raises
    as PodProvider.fetch_pods does."""
    if isinstance(provider, PodProvider):
        return await provider.fetch_pods(now)
    raise NoPodUsage(
        f"{provider.source} tells nothing of pods",
        hint="Pod usage comes from metrics-server, from a Prometheus that scrapes the kubelets' cAdvisor, or from the "
        "node agents (agents.urls).",
    )


def provenance(plan: QueryPlan, origin: str, *, of_cluster: bool = False) -> Provenance:
    """The part of a plan that decides whether old samples may stay beside new ones; `origin` as model.origin_of makes
    it. How the nodes get their names is part of the expression: by another label, or as nodes `of_cluster`, the same
    series belong to other names."""
    named = f"{plan.node_label}, as nodes of the cluster" if of_cluster else plan.node_label
    return Provenance(origin, f"{plan.expression} by {named}", plan.unit, plan.smoothing_s)
