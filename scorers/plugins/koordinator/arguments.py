"""The arguments of LoadAwareScheduling: Koordinator's names, defaults and rules, and load-watcher's additions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Literal

import msgspec

from scorers.cluster.columns import GPU_RESOURCES
from scorers.cluster.node_metrics import METRIC_OF, Aggregation
from scorers.plugins.forecast_arguments import ForecastArguments
from scorers.plugins.koordinator.workload_usage import OwnerHistoryArgs
from watcher.core.kubernetes.pod_resources import CPU, MEMORY
from watcher.core.kubernetes.times import read_duration
from watcher.core.messages import nearest
from watcher.model import Window

Source = Literal["windows", "windowsAndPods", "cluster"]
DEFAULT_THRESHOLDS = {CPU: 65, MEMORY: 95}
DEFAULT_FACTORS = {CPU: 85, MEMORY: 70}
DEFAULT_WEIGHTS = {CPU: 1, MEMORY: 1}
DEFAULT, OWNER_HISTORY = "defaultEstimator", "ownerHistoryEstimator"
ESTIMATORS = (DEFAULT, OWNER_HISTORY)

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class AggregatedArgs(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Percentiles to use instead of means. Filtering uses them if thresholds and a type are given, scoring if a type is
    given. Durations are Go durations ("5m"); an empty one means the longest window."""

    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: Aggregation | Literal[""] = ""
    usage_aggregated_duration: str = ""
    score_aggregation_type: Aggregation | Literal[""] = ""
    score_aggregated_duration: str = ""


class LoadAwareSchedulingArgs(
    ForecastArguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, dict=True
):
    """Thresholds and factors are in percent. load-watcher's additions:

    * `nodeMetricSource`: the watcher's windows ("windows"), these and the watcher's pod usage ("windowsAndPods"), or
      the cluster's NodeMetric objects ("cluster");
    * `reportIntervalSeconds`: time until windows contain a new pod; default: the collect policy's;
    * `comparison`: whether a node at the threshold passes ("gt", as Koordinator since 1.6) or not ("ge", as in its
      documentation);
    * the `estimator` "ownerHistoryEstimator" with `ownerHistory`: estimates by the usage of pods of the same workload.

    Percentiles are computed like koordlet's, and every window of the watcher is a valid duration for them.
    """

    filter_expired_node_metrics: bool = True
    node_metric_expiration_seconds: Positive = 180
    enable_schedule_when_node_metrics_expired: bool = False
    resource_weights: dict[str, int] = msgspec.field(default_factory=dict)
    dominant_resource_weight: int = 0
    usage_thresholds: dict[str, int] = msgspec.field(default_factory=lambda: dict(DEFAULT_THRESHOLDS))
    prod_usage_thresholds: dict[str, int] = msgspec.field(default_factory=dict)
    prod_usage_include_sys: bool = False
    score_according_prod_usage: bool = False
    estimator: str = ""
    estimated_scaling_factors: dict[str, int] = msgspec.field(default_factory=lambda: dict(DEFAULT_FACTORS))
    estimated_seconds_after_pod_scheduled: NotNegative | None = None
    estimated_seconds_after_initialized: NotNegative | None = None
    allow_customize_estimation: bool = False
    aggregated: AggregatedArgs | None = None
    supported_resources: tuple[str, ...] = ()
    node_metric_source: Source = "windows"
    report_interval_seconds: Positive | None = None
    comparison: Literal["gt", "ge"] = "gt"
    owner_history: OwnerHistoryArgs | None = None

    @cached_property
    def thresholds(self) -> Mapping[str, int]:
        """Percent by resource; Koordinator's defaults if none are given."""
        return self.usage_thresholds or DEFAULT_THRESHOLDS

    @cached_property
    def factors(self) -> Mapping[str, int]:
        """Percent by resource; cpu and memory always have a factor."""
        return {**DEFAULT_FACTORS, **self.estimated_scaling_factors}

    @cached_property
    def weights(self) -> Mapping[str, int]:
        """Weights of the score; Koordinator's defaults if neither weights nor a weight of the dominant resource are
        given."""
        return self.resource_weights or ({} if self.dominant_resource_weight else DEFAULT_WEIGHTS)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """All resources used in thresholds, weights or factors, sorted."""
        named = (self.thresholds, self.prod_usage_thresholds, self.aggregation.usage_thresholds, self.weights)
        return tuple(
            sorted({CPU, MEMORY, *(each for part in named for each in part), *self.factors, *self.supported_resources})
        )

    @cached_property
    def aggregation(self) -> AggregatedArgs:
        """The aggregation arguments; empty if not given."""
        return self.aggregated or AggregatedArgs()

    @cached_property
    def history(self) -> OwnerHistoryArgs:
        """Arguments of the ownerHistoryEstimator; defaults if not given."""
        return self.owner_history or OwnerHistoryArgs()

    def problems(self) -> list[str]:
        """Arguments that Koordinator rejects, thresholds of prod pods outside 0 to 100, and arguments that the source
        cannot serve."""
        found = [
            *super().problems(),
            *_within("usageThresholds", self.usage_thresholds, 0),
            *_within("prodUsageThresholds", self.prod_usage_thresholds, 0),
            *_within("aggregated.usageThresholds", self.aggregation.usage_thresholds, 0),
            *_within("resourceWeights", self.resource_weights, 1),
            *_within("estimatedScalingFactors", self.estimated_scaling_factors, 1),
            *_within("dominantResourceWeight", {"": self.dominant_resource_weight}, 0),
        ]
        found += [
            f"estimatedScalingFactors.{name}: is missing, but resourceWeights has {name}"
            for name in self.resource_weights
            if name not in self.factors
        ]
        for name in ("usage_aggregated_duration", "score_aggregated_duration"):
            text = getattr(self.aggregation, name)
            if text and read_duration(text) is None:
                found.append(f'aggregated.{_camel(name)}: must be a duration like "5m", not negative (given: {text!r})')
        if self.estimator and self.estimator not in ESTIMATORS:
            near = nearest(self.estimator, ESTIMATORS)
            message = f"did you mean {near}?" if near else f"known: {', '.join(sorted(ESTIMATORS))}"
            found.append(f"estimator: unknown estimator {self.estimator!r}; {message}")
        if self.owner_history is not None and self.estimator != OWNER_HISTORY:
            named = self.estimator or DEFAULT
            found.append(f'ownerHistory: {named} does not use it; set estimator to "{OWNER_HISTORY}"')
        return [*found, *self._not_measured()]

    def window_problems(self, windows: Sequence[Window]) -> list[str]:
        """Durations that are not a window of the watcher, if its windows are the source."""
        if self.node_metric_source == "cluster":
            return []
        return [
            f"aggregated.{_camel(name)}: {unserved(text, windows)}"
            for name in ("usage_aggregated_duration", "score_aggregated_duration")
            if (text := getattr(self.aggregation, name)) and not is_served(text, windows)
        ]

    def _not_measured(self) -> Iterable[str]:
        """Problems of arguments for which the source of metrics has no values."""
        if self.node_metric_source == "cluster":
            if self.ahead:
                yield (
                    "use: NodeMetrics of the cluster have no forecasts; set nodeMetricSource to "
                    '"windows" or "windowsAndPods"'
                )
            return
        if self.node_metric_source == "windows":
            for name in ("prod_usage_thresholds", "score_according_prod_usage", "prod_usage_include_sys"):
                if getattr(self, name):
                    yield (
                        f"{_camel(name)}: needs the usage of each pod, which windows of nodes do not have; "
                        'set nodeMetricSource to "windowsAndPods" or "cluster"'
                    )
            if self.estimator == OWNER_HISTORY:
                yield (
                    f"estimator: {OWNER_HISTORY} needs the usage of each pod, which windows of nodes do not have; "
                    'set nodeMetricSource to "windowsAndPods" or "cluster"'
                )
        prod = {**self.prod_usage_thresholds, **(self.weights if self.score_according_prod_usage else {})}
        if of_prod := [each for each in prod if each in GPU_RESOURCES]:
            yield (
                f"{', '.join(of_prod)}: the GPU usage of each pod is unknown to the watcher; remove it from "
                "prodUsageThresholds, and from resourceWeights with scoreAccordingProdUsage, or set "
                'nodeMetricSource to "cluster"'
            )
        if beyond := [each for each in self.resources if each not in METRIC_OF]:
            yield (
                f"{', '.join(beyond)}: the watcher does not measure it as a share of a resource of the node; measured "
                f'are {", ".join(METRIC_OF)}; for other resources, set nodeMetricSource to "cluster"'
            )


def is_served(duration: str, windows: Sequence[Window]) -> bool:
    """Whether a Go duration is one of the windows; 0 means the longest of them."""
    return read_duration(duration) in {0.0, *(float(window.seconds) for window in windows)}


def unserved(duration: str, windows: Sequence[Window]) -> str:
    """The problem text for a duration that is not served."""
    there = ", ".join(window.label for window in windows)
    return f"{duration[:40]!r} is not served; served windows: {there} (add more in refresh.windows of the watcher)"


def _within(path: str, values: Mapping[str, int], lowest: int) -> Iterable[str]:
    for name, value in values.items():
        if not lowest <= value <= 100:
            yield f"{path}{'.' if name else ''}{name}: must be {lowest} to 100 (given: {value})"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
