"""The metrics of this installation: built-in metrics, user-defined metrics, and metrics of other packages.

A package adds metrics through the entry-point group `load_watcher.agent_metrics`: a function that takes the sorters
(`Chains`) and returns a tuple of metrics, like the functions in agent/metrics (docs/learn/own-metric.md)."""

from __future__ import annotations

from collections.abc import Iterable

from agent.metrics.action_metric import ActionMetric
from agent.metrics.registry import Metrics
from agent.metrics.sorters import CHAINS
from watcher.platform import entry_points
from watcher.platform.entry_points import ExtensionError

ENTRY_POINT_GROUP = "load_watcher.agent_metrics"


def installed_metrics(extra: Iterable[ActionMetric] = ()) -> Metrics:
    """The registry with built-in and packaged metrics, and `extra` ones (`agent.metrics.trigger_only.triggering`).
    Raises Refused."""
    metrics = Metrics()
    for metric in extra:
        _register(metrics, metric, "the settings", "Give it another name.")
    for name in sorted(entry_points.names(ENTRY_POINT_GROUP)):
        package = entry_points.packages_of(ENTRY_POINT_GROUP, name)
        for metric in _of_package(name):
            _register(metrics, metric, f"the package {package}", f"Uninstall {package}, or report this to its authors.")
    return metrics


def _register(metrics: Metrics, metric: ActionMetric, source: str, hint: str) -> None:
    try:
        metrics.register(metric)
    except ValueError as error:
        raise ExtensionError(f"cannot register a metric of {source}: {error}", hint) from error


def _of_package(name: str) -> tuple[ActionMetric, ...]:
    """The metrics that an entry point returns. Raises Refused."""
    made = entry_points.build(ENTRY_POINT_GROUP, name, CHAINS, what="metric")
    if not isinstance(made, tuple) or not all(isinstance(metric, ActionMetric) for metric in made):
        package = entry_points.packages_of(ENTRY_POINT_GROUP, name)
        raise ExtensionError(
            f"entry point {name} of package {package} must return a tuple of metrics, not {type(made).__name__}",
            "See docs/learn/own-metric.md for the return value.",
        )
    return made
