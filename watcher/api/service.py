"""What the HTTP API needs of the service behind it, declared by the API because the API is who uses it.

The refresher satisfies `Service`, tests satisfy it with a dataclass, and neither has to import the web server. Nothing
here waits for the provider: what a request asks about was decided by the last tick. Only `history` and `samples` may
take their time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from watcher.core.koordinator.collect_policy import CollectPolicies
from watcher.core.koordinator.report import Capacity, PodClass
from watcher.core.pods.table import Pod, PublishedPods
from watcher.core.publishing.documents import Published
from watcher.core.publishing.wire import FindingsDocument
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import Operator, ProviderHealth, Window


class Service(Protocol):
    """The state of the running service. Everything but `history` and `samples` answers at once, from
    memory."""

    @property
    def published(self) -> Published | None:
        """The document of the last tick that had one; None before the first."""
        ...

    @property
    def pods(self) -> PublishedPods | None:
        """What is known of pods; None while nothing is."""
        ...

    def want_pods(self) -> str:
        """Somebody wants to know of pods, which is what has the source asked for them. Why there are none; "" if there
        are some, or may be after the next tick."""
        ...

    @property
    def provider_health(self) -> ProviderHealth: ...

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows that are served, ascending; never empty."""
        ...

    @property
    def max_staleness(self) -> float:
        """Seconds after which a document is not served any more."""
        ...

    @property
    def interval(self) -> float:
        """Seconds between two ticks."""
        ...

    def monotonic(self) -> float: ...

    def now(self) -> float: ...

    def alive(self) -> str:
        """Empty if the tick loop began or skipped a tick within 1.5 intervals, else what is wrong."""
        ...

    def warming_up(self) -> str:
        """Empty once what is published rests on windows, else what they wait for."""
        ...

    @property
    def collect_policies(self) -> CollectPolicies:
        """How often NodeMetrics of each node are made, and over how long they average; the same object as long as
        nothing of it changes."""
        ...

    def node_labels(self, node: str) -> Mapping[str, str]:
        """The labels of a node of the cluster, as far as they are known. May be called from any thread."""
        ...

    def pod_classes(self) -> Mapping[Pod, PodClass]:
        """Koordinator's classes of pods by namespace and name, as far as they are known."""
        ...

    async def capacities(self) -> Mapping[str, Capacity]:
        """How large nodes are, by name, as far as it is known."""
        ...

    async def samples(self) -> bytes | None:
        """The samples of the longest window as another replica takes them in; None if there are none."""
        ...

    def ready_detail(self) -> dict[str, object]:
        """What /readyz shows beside its verdict, JSON types only: state of the store, coverage, and so on."""
        ...

    def findings_document(self) -> FindingsDocument: ...

    async def history(
        self,
        *,
        host: str,
        metrics: Collection[str] | None,
        operators: Collection[Operator] | None,
        window: str,
        start: int,
        end: int,
    ) -> Sequence[StoredSeries]:
        """Stored values of one node with start <= time <= end (unix seconds); `metrics` are names, None means all.
        Raises HistoryUnavailable."""
        ...
