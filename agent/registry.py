"""The metrics of this installation: ours, the user's, and those of other packages.

A package adds metrics through the entry-point group `load_watcher.agent_metrics`: a function from the sorters
(`Chains`) to a tuple of metrics, as those in agent/metrics have it (docs/own-metric.md)."""

from __future__ import annotations

from collections.abc import Iterable

from agent.metrics import Metrics
from agent.metrics.attributes import Metric
from agent.options import Order
from agent.sorters import CHAINS
from watcher import extensions

ENTRY_POINT_GROUP = "load_watcher.agent_metrics"


class MetricRefused(ValueError):
    """A metric of another package or of the user cannot be taken; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


def installed_metrics(order: Order = Order.SEED, extra: Iterable[Metric] = ()) -> Metrics:
    """The registry, with the user's own metrics (`agent.metrics.trigger.triggering`). Raises MetricRefused."""
    metrics = Metrics(order)
    for metric in extra:
        _register(metrics, metric, "the settings", "Give it another name.")
    for name in sorted(extensions.names(ENTRY_POINT_GROUP)):
        package = extensions.home(ENTRY_POINT_GROUP, name)
        for metric in _of_package(name, order):
            _register(metrics, metric, f"the package {package}", f"Uninstall {package}, or have it mended.")
    return metrics


def _register(metrics: Metrics, metric: Metric, source: str, hint: str) -> None:
    try:
        metrics.register(metric)
    except ValueError as error:
        raise MetricRefused(f"a metric of {source} cannot be taken: {error}", hint) from error


def _of_package(name: str, order: Order) -> tuple[Metric, ...]:
    """What an entry point brings."""
    try:
        made = extensions.load(ENTRY_POINT_GROUP, name)(CHAINS[order])
    except extensions.InSeveralPackages as error:
        raise MetricRefused(
            f"the metric {name} is in several packages: {error.homes}", "Uninstall all but one."
        ) from error
    except Exception as error:  # whatever foreign code may raise, when it is imported or asked
        package = extensions.home(ENTRY_POINT_GROUP, name)
        reason = error if isinstance(error, extensions.CannotBeLoaded) else f"{type(error).__name__}: {error}"
        raise MetricRefused(
            f"the metric {name} cannot be had from the package {package}: {reason}",
            f"Is {package} made for this version of load-watcher, and are its dependencies installed?",
        ) from error
    if not isinstance(made, tuple) or not all(isinstance(metric, Metric) for metric in made):
        package = extensions.home(ENTRY_POINT_GROUP, name)
        raise MetricRefused(
            f"the metric {name} of the package {package} is no tuple of metrics but {type(made).__name__}",
            "docs/own-metric.md says what the function returns.",
        )
    return made
