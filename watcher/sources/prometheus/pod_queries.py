"""Queries for the usage of pods from cAdvisor's series.

cAdvisor, part of every kubelet, reports containers, the pause container of each pod and the cgroups above them, which
are sums of the containers. Summing all of them would count usage two or three times. The sum therefore includes only
real containers, and each container once, although two jobs may scrape the same kubelet and the series of a restarted
container may exist for a while. A pod without series of containers, as with cri-dockerd, is the series of its own
cgroup; this is decided for each pod, because nodes of one cluster may have different runtimes.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from watcher.core.naming.labels import EXPORTED
from watcher.core.pods.table import PRESSURES
from watcher.core.queries.matchers import Matcher, narrowed
from watcher.sources.prometheus.plans import NodeLabel

CORES = "container_cpu_usage_seconds_total"
MEMORY = "container_memory_rss"
PRESSURE = "container_pressure_{}_waiting_seconds_total"
SCRAPED = "machine_cpu_cores"
"""A series of each cAdvisor, however many pods there are."""

Target = tuple[str, str]
"""Job and instance."""


@dataclass(frozen=True, slots=True)
class PodLabels:
    """The labels of the measured pod in cAdvisor's series. If the target has labels namespace and pod of its own, as
    those of a federated server or of cAdvisor in a pod, those of the series are exported_namespace and exported_pod
    without honor_labels. `matchers` leave out such series beside series with the usual labels."""

    prefix: str = ""
    matchers: tuple[Matcher, ...] = ()

    @property
    def namespace(self) -> str:
        return f"{self.prefix}namespace"

    @property
    def pod(self) -> str:
        return f"{self.prefix}pod"

    @property
    def container(self) -> str:
        return f"{self.prefix}container"

    @property
    def containers(self) -> str:
        """Selects real containers: the series of a cgroup has no container label, and older container runtimes name the
        pause container POD."""
        return f'{self.container}!="",{self.container}!="POD",{self.pod}!=""'

    @property
    def own_cgroups(self) -> str:
        """Selects the cgroups of pods. The pause containers of containerd match too; the maximum of a pod is its
        cgroup."""
        return f'{self.container}="",{self.pod}!=""'

    def select(self, series: str, which: str, matchers: Sequence[Matcher]) -> str:
        return narrowed(f"{series}{{{which}}}", *matchers, *self.matchers)

    def evidence(self, matchers: Sequence[Matcher]) -> str:
        """The series of pods: of real containers and of the pods' own cgroups."""
        return self.select(CORES, f'{self.container}!="POD",{self.pod}!=""', matchers)

    def above_pods(self, matchers: Sequence[Matcher]) -> str:
        """The series of the cgroups above the pods, and of pods whose labels are missing."""
        return self.select(CORES, f'{self.pod}=""', matchers)


@dataclass(frozen=True, slots=True)
class PodPlan:
    """Parameters of the queries: the node label, the span of the CPU rate and the scrape interval in seconds, the
    matchers of this cluster, and the labels of pods. Results have the labels namespace, pod and that of the node."""

    label: NodeLabel
    span_s: int
    matchers: tuple[Matcher, ...] = ()
    labels: PodLabels = PodLabels()
    interval_s: int = 60

    @property
    def cores(self) -> str:
        # A cAdvisor outside of a kubelet may have one series per CPU.
        return self._by_pod(lambda which: f"sum without (cpu) (rate({self._select(CORES, which)}[{self.span_s}s]))")

    def mean_cores(self, seconds: int) -> str:
        """Cores over the last `seconds`. The span is longer by one scrape interval, so that consecutive spans leave no
        growth of the counters out. A container that started again is another series, and both count."""
        span = seconds + self.interval_s
        return self._by_pod(
            lambda which: f"sum without (cpu) (rate({self._select(CORES, which)}[{span}s]))", "id", "name"
        )

    @property
    def memory(self) -> str:
        return self._by_pod(lambda which: self._select(MEMORY, which))

    @property
    def pressure(self) -> tuple[str, ...]:
        """Percentage of the time in which a task of the pod waits, by resource (PRESSURES). The cgroup of a pod waits
        at least as often as each of its containers."""
        of_pods = f'{self.labels.pod}!=""'
        series = (self._select(PRESSURE.format(each), of_pods) for each in PRESSURES)
        return tuple(self._named(f"max by ({self._pod}) (100 * rate({each}[{self.span_s}s]))") for each in series)

    @property
    def times(self) -> str:
        return self._named(f"max by ({self._pod}) (timestamp({self.evidence}))")

    @property
    def evidence(self) -> str:
        return self.labels.evidence(self.matchers)

    @property
    def _pod(self) -> str:
        return f"{self.labels.namespace}, {self.labels.pod}, {self.label.text}"

    def _by_pod(self, values: Callable[[str], str], *more: str) -> str:
        """The sum over the containers of a pod, which differ in the label container and `more`."""
        labels = self.labels
        container = ", ".join((labels.namespace, labels.pod, labels.container, self.label.text, *more))
        once = f"max by ({container}) ({values(labels.containers)})"
        own = f"max by ({self._pod}) ({values(labels.own_cgroups)})"
        return self._named(f"sum by ({self._pod}) ({once}) or {own}")

    def _named(self, vector: str) -> str:
        """The vector with the labels namespace and pod of the measured pod."""
        if not self.labels.prefix:
            return vector
        for label in ("namespace", "pod"):
            vector = f'label_replace({vector}, "{label}", "$1", "{EXPORTED}{label}", "(.*)")'
        return vector

    def _select(self, series: str, which: str) -> str:
        return self.labels.select(series, which, self.matchers)


# --- series whose labels are those of the target ----------------------------------------------------------------------


def renamed_series(matchers: Sequence[Matcher]) -> str:
    """The series whose labels of pods are exported_LABEL."""
    return narrowed(f'{CORES}{{{EXPORTED}pod!=""}}', *matchers)


def usual_series(matchers: Sequence[Matcher]) -> str:
    """The series with the usual labels of pods. In a target with a label pod, the series of the cgroups above the pods
    have that label, too."""
    usual = narrowed(f'{CORES}{{pod!="",{EXPORTED}pod=""}}', *matchers)
    return f"{usual} unless on (job, instance, namespace, pod) {renamed_series(matchers)}"


def without_targets(renamed: Set[Target], usual: Set[Target]) -> tuple[Matcher, ...]:
    """Matchers for the series with the usual labels: without those whose labels are exported_LABEL, and without the
    targets that have only such series. A job of which no target has usual series is left out as a whole."""
    jobs = {job for job, _ in renamed} - {job for job, _ in usual}
    instances = {of for job, of in renamed - usual if job not in jobs} - {of for _, of in usual}
    matchers = [Matcher(f"{EXPORTED}pod", "=", "")]
    matchers += (Matcher("job", "!=", job) for job in sorted(jobs))
    matchers += (Matcher("instance", "!=", instance) for instance in sorted(instances))
    return tuple(matchers)
