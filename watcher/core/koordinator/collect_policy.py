"""How nodes are reported as NodeMetrics: how often, and over how long their usage is taken (seed 001, "Custom
NodeMetric Update Period"; reference/koordinator.md, 2.1 and 2.2).

There is one policy for all nodes, and rules that change parts of it for some, by their names or labels; the first rule
that fits a node counts. Where we write to NodeMetric objects of the cluster, what their `spec.metricCollectPolicy` says
goes before both, part by part: that is where koord-manager puts its own settings, and koordlet obeys it too.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from watcher.model import Window

SHORTEST_INTERVAL_S = 30
SHORTEST_PERIOD_S = 60
"""koordlet reports no more often, and averages over no less, whatever the object says."""


@dataclass(frozen=True, slots=True)
class CollectPolicy:
    """A report is made every `report_interval_s`, with the mean over the last `aggregate_duration_s`, and with the mean
    and percentiles over each of `durations_s` (None: over each of the windows)."""

    report_interval_s: int = 60
    aggregate_duration_s: int = 300
    durations_s: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PolicyPart:
    """Parts of a policy; None leaves what is there."""

    report_interval_s: int | None = None
    aggregate_duration_s: int | None = None
    durations_s: tuple[int, ...] | None = None

    def over(self, policy: CollectPolicy) -> CollectPolicy:
        """The policy with these parts in it."""
        return CollectPolicy(
            policy.report_interval_s if self.report_interval_s is None else self.report_interval_s,
            policy.aggregate_duration_s if self.aggregate_duration_s is None else self.aggregate_duration_s,
            policy.durations_s if self.durations_s is None else self.durations_s,
        )


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """A part for the nodes whose name is like one of the patterns `names` ("gpu-*"; none: any) and which have all of
    these labels."""

    part: PolicyPart
    names: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def fits(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether it is about this node."""
        named = not self.names or any(fnmatchcase(node, pattern) for pattern in self.names)
        return named and all(labels.get(key) == value for key, value in self.labels)


@dataclass(frozen=True, slots=True)
class CollectPolicies:
    """Which policy each node has. `shortest_interval_s` is how often there is anything new, `windows` are those that
    are kept: durations that are none of them cannot be served."""

    default: CollectPolicy = field(default_factory=CollectPolicy)
    rules: tuple[PolicyRule, ...] = ()
    specs: Mapping[str, PolicyPart] = field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    shortest_interval_s: int = SHORTEST_INTERVAL_S

    def of(self, node: str, labels: Mapping[str, str]) -> CollectPolicy:
        """The policy of a node, as far as it can be served."""
        policy = self.default
        rule = next((each for each in self.rules if each.fits(node, labels)), None)
        if rule is not None:
            policy = rule.part.over(policy)
        if (spec := self.specs.get(node)) is not None:
            policy = spec.over(policy)
        return self._served(policy)

    def of_all(self, nodes: Sequence[str], labels: Callable[[str], Mapping[str, str]]) -> list[CollectPolicy]:
        """The policies of n nodes, in their order; `labels` has those of a node by its name."""
        if not self.rules and not self.specs:
            return [self.for_others] * len(nodes)
        return [self.of(node, labels(node)) for node in nodes]

    @property
    def for_others(self) -> CollectPolicy:
        """That of a node that no rule and no object is about."""
        return self._served(self.default)

    def unserved(self, durations: Iterable[int]) -> tuple[int, ...]:
        """Those that are no window of ours."""
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
