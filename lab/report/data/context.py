"""What all parts of a collection share: the connection, the options, and what was found to be missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from lab.report.collected import MissingData
from lab.report.data.reading import BudgetExceeded, HistoryReader
from watcher.core.naming.labels import EXPORTED
from watcher.core.queries.matchers import Matcher, narrowed
from watcher.sources.errors import ProviderError
from watcher.sources.prometheus.plans import among
from watcher.sources.prometheus_api import PrometheusClient
from watcher.sources.settings import ProviderSettings

T = TypeVar("T")
OF_OBJECTS = ("namespace", "pod", "container", "node")
Progress = Callable[[int, str], None]
"""Called with the percentage of the report that is done, and the current part."""


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """`ends` in unix seconds. `most_values` is the budget of values that the server computes. `hot` is the threshold in
    percent, by which the hottest nodes are chosen; other placements are simulated for `replay_nodes` nodes."""

    ends: float
    days: float = 7.0
    most_values: int = 50_000_000
    hot: float = 80.0
    replay_nodes: int = 30


@dataclass(slots=True)
class CollectContext:
    """State of one collection. `begins` and `ends` are whole hours."""

    settings: ProviderSettings
    options: CollectOptions
    client: PrometheusClient
    reader: HistoryReader
    begins: int
    ends: int
    progress: Progress
    missing: list[MissingData] = field(default_factory=list)
    exported: bool = False
    """Whether a job scrapes kube-state-metrics without honor_labels: labels of objects that its target has too are
    exported_LABEL."""

    @property
    def fetch_deadline(self) -> float:
        """Timeout of several queries together, with their retries, in seconds."""
        return 3.0 * self.settings.timeout

    def narrowed(self, text: str, *more: Matcher) -> str:
        """A selector with the matchers of this cluster and more."""
        return narrowed(text, *self.settings.matchers, *more)

    def of_objects(self, vector: str) -> str:
        """A vector of kube-state-metrics with the labels of the objects, and not those of the target."""
        if self.exported:
            for label in OF_OBJECTS:
                vector = f'label_replace({vector}, "{label}", "$1", "{EXPORTED}{label}", "(.+)")'
        return vector

    def among_nodes(self, nodes: Sequence[str]) -> tuple[Matcher, ...]:
        """Matchers for the objects of these nodes; none where their label node may be that of the target."""
        return () if self.exported else (among("node", nodes),)

    def share_of(self, low: int, high: int, part: str) -> Callable[[float], None]:
        """Progress of a part that leads from `low` to `high` percent of the report."""
        self.progress(low, part)
        return lambda share: self.progress(round(low + share * (high - low)), part)

    def shares_of(self, low: int, high: int, part: str, count: int) -> list[Callable[[float], None]]:
        """Progress of `count` equal pieces of a part, which are read at the same time."""
        whole = self.share_of(low, high, part)
        shares = [0.0] * count

        def piece(i: int, share: float) -> None:
            shares[i] = share
            whole(sum(shares) / count)

        return [partial(piece, i) for i in range(count)]

    async def optional(self, what: str, shows: str, cure: str, ask: Callable[[], Awaitable[T | None]]) -> T | None:
        """The result of `ask`; None, with an entry in `missing`, if there is no data or the query fails."""
        try:
            found = await ask()
        except BudgetExceeded as error:
            more = "raise --max-samples, or lower --days"
            self.missing.append(MissingData(f"{what}: the budget of --max-samples is used up ({error})", shows, more))
            return None
        except ProviderError as error:
            self.missing.append(MissingData(f"{what}: {error}", shows, error.hint))
            return None
        if found is None:
            self.missing.append(MissingData(what, shows, cure))
        return found
