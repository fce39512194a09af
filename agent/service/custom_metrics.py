"""The metrics of this installation: ours, the user's, and those of other packages.

A package adds metrics through the entry-point group `load_watcher.agent_metrics`: a function from the sorters
(`Chains`) to a tuple of metrics, as those in agent/metrics have it (docs/own-metric.md)."""

from __future__ import annotations

from collections.abc import Iterable

from agent.metrics.action_metric import Metric
from agent.metrics.options import Order
from agent.metrics.registry import Metrics
from agent.metrics.sorters import CHAINS
from watcher.platform import entry_points
from watcher.platform.entry_points import Refused

ENTRY_POINT_GROUP = "load_watcher.agent_metrics"


def installed_metrics(order: Order = Order.SEED, extra: Iterable[Metric] = ()) -> Metrics:
    """The registry, with the user's own metrics (`agent.metrics.trigger_only.triggering`). Raises Refused."""
    metrics = Metrics(order)
    for metric in extra:
        _register(metrics, metric, "the settings", "Give it another name.")
    for name in sorted(entry_points.names(ENTRY_POINT_GROUP)):
        package = entry_points.home(ENTRY_POINT_GROUP, name)
        for metric in _of_package(name, order):
            _register(metrics, metric, f"the package {package}", f"Uninstall {package}, or have it mended.")
    return metrics


def _register(metrics: Metrics, metric: Metric, source: str, hint: str) -> None:
    try:
        metrics.register(metric)
    except ValueError as error:
        raise Refused(f"a metric of {source} cannot be taken: {error}", hint) from error


def _of_package(name: str, order: Order) -> tuple[Metric, ...]:
    """What an entry point brings."""
    made = entry_points.made(ENTRY_POINT_GROUP, name, CHAINS[order], what="metric")
    if not isinstance(made, tuple) or not all(isinstance(metric, Metric) for metric in made):
        package = entry_points.home(ENTRY_POINT_GROUP, name)
        raise Refused(
            f"the metric {name} of the package {package} is no tuple of metrics but {type(made).__name__}",
            "docs/own-metric.md says what the function returns.",
        )
    return made
