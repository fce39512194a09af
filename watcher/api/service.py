"""The interface that the service behind the HTTP API implements.

The refresher implements `WatcherService`, tests implement it with a dataclass, and neither imports the web server. No
method waits for the provider: requests are served from the data of the last tick. Only the coroutines may take long.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from watcher.core.koordinator.collect_policy import CollectPolicies
from watcher.core.koordinator.report import Capacity, NodeUsages, PodClass
from watcher.core.pods.table import Pod, PublishedPods
from watcher.core.publishing.documents import Published
from watcher.core.publishing.wire import FindingsDocument
from watcher.core.windows.stored_series import StoredSeriesLike
from watcher.model import Operator, ProviderHealth, Snapshot, Window


class WatcherService(Protocol):
    """The state of the running service. All methods except the coroutines return immediately, from memory."""

    @property
    def published(self) -> Published | None:
        """The documents of the last tick that published some; None before the first."""
        ...

    @property
    def pods(self) -> PublishedPods | None:
        """The published pod usage; None if not available."""
        ...

    def request_pods(self) -> str:
        """Request the collection of pod usage. Returns the reason why none can be collected; "" if pod usage is
        available or may be after the next tick."""
        ...

    def no_pods_reason(self) -> str:
        """Why pod usage cannot be collected with these settings and this source; "" if it can, or if that is unknown.
        Does not request the collection."""
        ...

    @property
    def provider_health(self) -> ProviderHealth: ...

    @property
    def windows(self) -> tuple[Window, ...]:
        """The served windows in ascending order of length; never empty."""
        ...

    @property
    def max_staleness(self) -> float:
        """Maximum age of a served document in seconds."""
        ...

    @property
    def interval(self) -> float:
        """The refresh interval: seconds between two ticks."""
        ...

    def monotonic(self) -> float: ...

    def now(self) -> float: ...

    def alive(self) -> str:
        """Empty if the tick loop began or skipped a tick within 1.5 intervals; otherwise the problem."""
        ...

    def warming_up(self) -> str:
        """Empty once windows are published; otherwise the reason why they are not yet available."""
        ...

    @property
    def collect_policies(self) -> CollectPolicies:
        """The report interval and averaging period of each node's NodeMetric. Returns the same object until a policy
        changes."""
        ...

    def node_labels(self, node: str) -> Mapping[str, str]:
        """The labels of a cluster node; empty if unknown. May be called from any thread."""
        ...

    def pod_classes(self) -> Mapping[Pod, PodClass]:
        """Koordinator's pod classes by (namespace, name); unknown pods are missing."""
        ...

    def measure(self, snapshot: Snapshot) -> NodeUsages:
        """The usage of a snapshot's nodes by their collect policies. Slow; may be called from any thread."""
        ...

    async def capacities(self) -> Mapping[str, Capacity]:
        """The capacity of nodes by name; nodes with unknown capacity are missing."""
        ...

    async def samples(self) -> bytes | None:
        """The samples of the longest window, encoded for transfer to another replica; None if there are none."""
        ...

    def ready_detail(self) -> dict[str, object]:
        """The diagnostic data shown by /readyz (JSON types only): state of the store, coverage, and so on."""
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
    ) -> Sequence[StoredSeriesLike]:
        """Stored values of one node with start <= time <= end (unix seconds). `metrics` are metric names; None means
        all. Raises HistoryUnavailable."""
        ...
