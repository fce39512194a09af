"""Collect policies of NodeMetrics: how often a node is reported, and over which periods its usage is aggregated.

There is one default policy, and rules that override parts of it for some nodes, by name or labels; the first matching
rule applies. For NodeMetric objects in the cluster, `spec.metricCollectPolicy` overrides both, field by field: that is
where koord-manager writes its settings, and koordlet follows it too.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from watcher.model import Window

SHORTEST_INTERVAL_S = 30
SHORTEST_PERIOD_S = 60
"""Minimum report interval and aggregation period in seconds; koordlet has the same limits."""


@dataclass(frozen=True, slots=True)
class CollectPolicy:
    """A node is reported every `report_interval_s` seconds, with the mean over the last `aggregate_duration_s` seconds,
    and with mean and percentiles over each of `durations_s` (seconds; None: over each of the windows)."""

    report_interval_s: int = 60
    aggregate_duration_s: int = 300
    durations_s: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PolicyOverride:
    """Overrides for fields of a policy; None leaves the field unchanged."""

    report_interval_s: int | None = None
    aggregate_duration_s: int | None = None
    durations_s: tuple[int, ...] | None = None

    def apply_to(self, policy: CollectPolicy) -> CollectPolicy:
        """Return the policy with these overrides applied."""
        return CollectPolicy(
            policy.report_interval_s if self.report_interval_s is None else self.report_interval_s,
            policy.aggregate_duration_s if self.aggregate_duration_s is None else self.aggregate_duration_s,
            policy.durations_s if self.durations_s is None else self.durations_s,
        )


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Overrides for nodes whose name matches one of the patterns `names` ("gpu-*"; empty: any name) and which have all
    of `labels`."""

    part: PolicyOverride
    names: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def fits(self, node: str, labels: Mapping[str, str]) -> bool:
        """Return whether the rule applies to this node."""
        named = not self.names or any(fnmatchcase(node, pattern) for pattern in self.names)
        return named and all(labels.get(key) == value for key, value in self.labels)


@dataclass(frozen=True, slots=True)
class CollectPolicies:
    """The policies of all nodes. `shortest_interval_s` is the interval in seconds at which new data arrives; `windows`
    are the served windows: other durations cannot be served. `specs` are the policies in NodeMetric objects, by node.
    """

    default: CollectPolicy = field(default_factory=CollectPolicy)
    rules: tuple[PolicyRule, ...] = ()
    specs: Mapping[str, PolicyOverride] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    shortest_interval_s: int = SHORTEST_INTERVAL_S

    def of(self, node: str, labels: Mapping[str, str]) -> CollectPolicy:
        """Return the policy of a node, limited to values that can be served."""
        policy = self.default
        rule = next((each for each in self.rules if each.fits(node, labels)), None)
        if rule is not None:
            policy = rule.part.apply_to(policy)
        if (spec := self.specs.get(node)) is not None:
            policy = spec.apply_to(policy)
        return self._served(policy)

    def of_all(self, nodes: Sequence[str], labels: Callable[[str], Mapping[str, str]]) -> list[CollectPolicy]:
        """Return the policies of `nodes`, in the same order; `labels` returns the labels of a node by its name."""
        if not self.rules and not self.specs:
            return [self.default_policy] * len(nodes)
        return [self.of(node, labels(node)) for node in nodes]

    @property
    def default_policy(self) -> CollectPolicy:
        """Policy of a node without a matching rule or object."""
        return self._served(self.default)

    def unserved(self, durations: Iterable[int]) -> tuple[int, ...]:
        """Return the durations (seconds) that are not served windows, in ascending order."""
        return tuple(sorted(set(durations) - {window.seconds for window in self.windows}))

    def _served(self, policy: CollectPolicy) -> CollectPolicy:
        longest = self.windows[-1].seconds if self.windows else policy.aggregate_duration_s
        durations = policy.durations_s
        if durations is not None and self.windows:
            durations = tuple(sorted(set(durations) - set(self.unserved(durations))))
        return CollectPolicy(
            max(policy.report_interval_s, self.shortest_interval_s),
            min(max(policy.aggregate_duration_s, SHORTEST_PERIOD_S), longest),
            durations,
        )
