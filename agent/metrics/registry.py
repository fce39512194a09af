"""The metrics that the agent acts on, by name, and the table of the modules that define them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from agent.metrics import cpu_total, device_rates, extended_cpu, memory_total, trigger_only
from agent.metrics.action_metric import ActionMetric
from agent.metrics.sorters import CHAINS, Chains

TABLE: tuple[Callable[[Chains], tuple[ActionMetric, ...]], ...] = (
    cpu_total.metrics,
    memory_total.metrics,
    extended_cpu.metrics,
    device_rates.metrics,
)


class Metrics(Mapping[str, ActionMetric]):
    """The registry of metrics by name; the watcher's windows are found by their name prefix. `extra` are user-defined
    metrics and metrics of other packages, `chains` the sorters. Raises ValueError if two metrics have the same name."""

    def __init__(self, extra: Iterable[ActionMetric] = (), *, chains: Chains = CHAINS) -> None:
        self.chains = chains
        self._metrics: dict[str, ActionMetric] = {}
        for metric in (*(metric for make in TABLE for metric in make(chains)), *extra):
            self.register(metric)

    def register(self, metric: ActionMetric) -> None:
        """Add a metric. Raises ValueError if its name is taken or has the prefix of window metrics."""
        if metric.name in self._metrics or metric.name.startswith(trigger_only.WINDOW_PREFIX):
            raise ValueError(f"the metric name {metric.name} is already in use; choose another name")
        self._metrics[metric.name] = metric

    def __getitem__(self, name: str) -> ActionMetric:
        if name not in self._metrics and name.startswith(trigger_only.WINDOW_PREFIX):
            return trigger_only.window(name)
        return self._metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self._metrics or (isinstance(name, str) and name.startswith(trigger_only.WINDOW_PREFIX))

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)
