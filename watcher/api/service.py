"""What the HTTP API needs of the service behind it, declared by the API because the API is who uses it.

The refresher satisfies `Service`, tests satisfy it with a dataclass, and neither has to import the web server. Nothing
here waits for the provider: what a request asks about was decided by the last tick. Only `history` and `samples` may
take their time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from watcher.collect_policy import CollectPolicies
from watcher.model import F32, I64, FindingsDocument, Operator, ProviderHealth, Window
from watcher.node_metrics import Capacity, PodClass
from watcher.pods import Pod, PublishedPods
from watcher.publish import Published


class HistoryUnavailable(Exception):
    """The store cannot answer: switched off, damaged, or too busy. `hint` says what the operator can do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoredSeries(Protocol):
    """One metric and operator of one node as the store kept it: `time` [k] unix seconds, ascending; `value` [k] in the
    metric's unit, NaN where the window was not known."""

    @property
    def metric(self) -> str: ...
    @property
    def operator(self) -> Operator: ...
    @property
    def window(self) -> str: ...
    @property
    def time(self) -> I64: ...
    @property
    def value(self) -> F32: ...


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
