"""The metrics that the agent acts on, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from agent.metrics.action_metric import ActionMetric
from agent.metrics.builtin import builtin_metrics
from agent.metrics.sorters import CHAINS, Chains
from agent.metrics.trigger_only import WINDOW_PREFIX


class Metrics(Mapping[str, ActionMetric]):
    """The registry of metrics by name; the watcher's windows are found by their name prefix. `extra` are user-defined
    metrics and metrics of other packages, `chains` the sorters. Raises ValueError if two metrics have the same name."""

    def __init__(self, extra: Iterable[ActionMetric] = (), *, chains: Chains = CHAINS) -> None:
        self.chains = chains
        self._metrics: dict[str, ActionMetric] = {}
        for metric in (*builtin_metrics(chains), *extra):
            self.register(metric)

    def register(self, metric: ActionMetric) -> None:
        """Add a metric. Raises ValueError if its name is taken or has the prefix of window metrics."""
        if metric.name in self._metrics or metric.name.startswith(WINDOW_PREFIX):
            raise ValueError(f"the metric name {metric.name} is already in use; choose another name")
        self._metrics[metric.name] = metric

    def __getitem__(self, name: str) -> ActionMetric:
        if name not in self._metrics and name.startswith(WINDOW_PREFIX):
            return ActionMetric(name=name)  # a window of the watcher, which no action reduces
        return self._metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self._metrics or (isinstance(name, str) and name.startswith(WINDOW_PREFIX))

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)
