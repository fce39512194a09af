"""The faults of Crane v0.11.0 that the emulator can leave out.

With `REPAIRED`, the emulator decides as the agent of this project does, which proves that the documented differences
are the only ones.
"""

from __future__ import annotations

from enum import Enum


class CraneFault(Enum):
    """A rule of Crane that the agent of this project does not follow. docs/reference/differences.md contains its
    `sentence`. If several faults affect an answer, the first one counts as the reason."""

    def __init__(self, sentence: str, citation: str, reason: str) -> None:
        self.sentence = sentence
        self.citation = citation
        self.reason = reason

    COOL_DOWN = (
        "a restore within the cool-down starts the cool-down again",
        "pkg/ensurance/analyzer/analyzer.go:541",
        "a restore within the cool-down keeps new pods away and starts the cool-down again; in the agent it does not",
    )
    COUNTING = (
        "samples below do not reset the count of samples above",
        "pkg/ensurance/analyzer/analyzer.go:285",
        "samples below do not reset the count of samples above; the agent counts samples in a row",
    )
    UNKNOWN_ACTION = (
        "a rule with an unknown action keeps new pods away",
        "pkg/ensurance/analyzer/analyzer.go:529",
        "a rule whose action does not exist keeps new pods away; the agent does not apply such a rule",
    )
    NO_GRACE = (
        "the action's grace period has no effect",
        "pkg/ensurance/executor/podinfo/pod_info.go:138",
        "terminationGracePeriodSeconds of an action has no effect; the agent uses it",
    )
    EMPTY_LABELS = (
        "a labelSelector with an empty list selects all pods",
        "pkg/ensurance/analyzer/podqos-fetcher.go:74",
        "only a list that does not exist selects no pods; for the agent an empty list selects none, either",
    )
    LAST_PRIORITY = (
        "of several priorities with NotIn, the last one counts",
        "pkg/ensurance/analyzer/podqos-fetcher.go:151",
        "of several priorities with NotIn only the last one is excluded; the agent excludes all",
    )
    NEGATIVE_PRIORITY = (
        "priorities below 0 match nothing",
        "pkg/ensurance/analyzer/podqos-fetcher.go:127",
        "a priority below 0 cannot be written; the agent reads it",
    )

    SHARED_GAPS = (
        "throttling to a gap never happens",
        "pkg/ensurance/executor/watermark.go:228",
        "the gap of throttling is deleted or overwritten by that of restoring; the agent throttles until it is closed",
    )
    RESTORE_INDEX = (
        "restoring panics without usage",
        "pkg/ensurance/executor/throttle.go:227",
        "without usage, Crane indexes the wrong list of pods and may panic; the agent restores the pods of the rules",
    )
    UNABLE = (
        "a metric that an action cannot reduce selects all pods",
        "pkg/ensurance/executor/watermark.go:84, pkg/ensurance/executor/evict.go:64",
        "a metric that is not registered, or that the action cannot reduce, makes it act on all pods; in the agent it "
        "selects none",
    )
    METRIC_ORDER = (
        "memory and CPU metrics have the same urgency",
        "pkg/ensurance/executor/mem_usage.go:20",
        "the order of the metrics is that of a Go map; the agent takes memory first",
    )
    PROTECTED = (
        "static and system-critical pods are candidates",
        "pkg/utils/pod.go:93, pkg/ensurance/executor/cpu_usage.go:205",
        "static and system-critical pods are throttled, and their refused eviction counts; the agent skips them",
    )
    FAILED_EVICTIONS = (
        "failed evictions count as released",
        "pkg/ensurance/executor/cpu_usage.go:205",
        "a failed eviction counts as released; the agent selects the next pod",
    )
    ANY_MISSED = (
        "a missing metric without a rule selects all pods",
        "pkg/ensurance/executor/watermark.go:151",
        "a missing metric that no rule names evicts all pods; for the agent only the metrics of the rules count",
    )
    RESTORE_EXCESS = (
        "the excess enlarges the gap of restoring",
        "pkg/ensurance/executor/watermark.go:232",
        "the excess gives back more than there is room for; the agent gives back less",
    )
    RESTORE_ORDER = (
        "pods are restored in the order of throttling",
        "pkg/ensurance/executor/throttle.go:198",
        "pods are restored in the order of throttling; the agent restores the most important pod first",
    )
    LAST_CONTAINER = (
        "only the last container's release counts",
        "pkg/ensurance/executor/cpu_usage.go:105, :190",
        "the release of a pod is that of its last container; the agent adds the releases",
    )
    MIN_RATIO = (
        "minCPURatio is a hundred times too high",
        "pkg/ensurance/executor/cpu_usage.go:89",
        "minCPURatio becomes a quota of a hundred times the percentage; the agent applies the percentage",
    )
    NO_EXTENDED_FLOOR = (
        "minCPURatio does not refer to the extended limit",
        "pkg/ensurance/executor/cpu_usage.go:87",
        "minCPURatio does not refer to an extended limit; for the agent it does",
    )
    RAISES = (
        "throttling may raise a quota",
        "pkg/ensurance/executor/cpu_usage.go:81",
        "throttling raises a quota below the request; the agent never raises a quota to throttle",
    )
    NO_RELEASE = (
        "containers get a quota that lowers nothing",
        "pkg/ensurance/executor/cpu_usage.go:96",
        "a quota is written although it lowers no usage; the agent does not write it",
    )
    NO_LEAST = (
        "quotas may be below the minimum of the kernel",
        "pkg/ensurance/executor/cpu_usage.go:97",
        "quotas below 1000 us, which the kernel refuses, are sent, and 0 means no change; the agent writes 1000",
    )
    NO_ORIGINAL = (
        "quotas that were not lowered are raised",
        "pkg/ensurance/executor/cpu_usage.go:157",
        "restoring raises quotas that were never lowered; the agent raises a quota up to its original value",
    )
    STEP_ZERO = (
        "step 0 restores nothing",
        "pkg/ensurance/executor/cpu_usage.go:153",
        "with stepCPURatio 0 nothing is restored; the agent restores the original value at once",
    )
    EXTENDED_JUMP = (
        "an extended limit is restored in one step",
        "pkg/ensurance/executor/cpu_usage.go:163",
        "a container with an extended limit gets it in one step; the agent restores it step by step",
    )
    NEVER_UNLIMITED = (
        "unlimited is never restored",
        "pkg/ensurance/executor/cpu_usage.go:165",
        "60 cores are compared as 60 times the period; the agent removes a quota above the cores of the node",
    )
    SMALL_STEPS = (
        "a small quota is restored in small steps",
        "pkg/ensurance/executor/cpu_usage.go:158",
        "a step is a percentage of the quota, whatever the gap; the agent gives back at least a share of the gap",
    )
    FUTILE = (
        "pods that release nothing are evicted",
        "pkg/ensurance/executor/evict.go:98",
        "pods that release nothing are evicted until the gap is closed; the agent spares them",
    )
    OWN_GAP = (
        "a release closes the gap of one metric only",
        "pkg/ensurance/executor/evict.go:106",
        "the agent subtracts the release of a pod from the gaps of all metrics, and spares needless evictions",
    )
    SHARES = (
        "shares of extended limits are equal up to a millionth",
        "pkg/ensurance/executor/sort/cpu_usage_sort.go:20, pkg/utils/pod.go:273",
        "cores are divided by millicores, so shares that differ by a millionth are equal; the agent divides by cores",
    )
    TIES = (
        "equal pods stay in the order of the cache",
        "pkg/ensurance/executor/sort/sort.go:123",
        "equal pods stay in the order of the cache; the agent sorts them by name",
    )


FATAL = frozenset({CraneFault.SHARED_GAPS, CraneFault.RESTORE_INDEX})
"""Without their repair, nothing is throttled or restored; the golden cases `head_gapfix` repair them."""
REPAIRED = frozenset(CraneFault)
