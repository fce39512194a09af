"""The faults of Crane v0.11.0 that the emulator can do without, with their places in pkg/ensurance.

With `REPAIRED`, the emulator decides as the agent of this project does for one metric, which proves that the documented
differences are the only ones.
"""

from __future__ import annotations

from enum import StrEnum


class CraneFault(StrEnum):
    """A rule of Crane that the agent of this project does not follow."""

    SHARED_GAPS = "throttling to a gap never happens"
    """executor/watermark.go:228: throttling and restoring share one map, and its entry is deleted or overwritten."""
    RESTORE_INDEX = "restoring panics without usage"
    """executor/throttle.go:227: the pods of throttling are indexed with the places of the pods to restore."""
    PROTECTED = "static and system-critical pods are candidates"
    """executor/cpu_usage.go:205, pkg/utils/pod.go:93: their eviction is refused, but it counts as released."""
    FAILED_EVICTIONS = "failed evictions count as released"
    """executor/cpu_usage.go:205: the release is booked before the eviction, whose error is lost."""
    ANY_MISSED = "a missing metric without a rule selects all pods"
    """executor/watermark.go:151: all registered metrics are looked up."""
    FUTILE = "pods that release nothing are evicted"
    """executor/evict.go:98: pods are taken until the gap is closed."""
    TIES = "equal pods stay in the order of the cache"
    """executor/sort/sort.go:123: the last key is the start time."""
    SHARES = "shares of extended limits are equal up to a millionth"
    """executor/sort/cpu_usage_sort.go:20: cores are divided by millicores, and compared with a tolerance of 1e-9."""
    MIN_RATIO = "minCPURatio is a hundred times too high"
    """executor/cpu_usage.go:89: millicores times percent is divided by 1000."""
    NO_LEAST = "quotas may be below the minimum of the kernel"
    """executor/cpu_usage.go:97: the value is sent as it is, and 0 means no change."""
    NO_EXTENDED_FLOOR = "minCPURatio does not refer to the extended limit"
    """executor/cpu_usage.go:87: only the CPU limit is read."""
    RAISES = "throttling may raise a quota"
    """executor/cpu_usage.go:81: a request above the quota becomes the quota."""
    NO_RELEASE = "containers get a quota that lowers nothing"
    """executor/cpu_usage.go:96: any quota that differs is sent, also with step 0, and to close a gap that it does not
    reduce."""
    LAST_CONTAINER = "only the last container's release counts"
    """executor/cpu_usage.go:105, :190: the release is overwritten."""
    NO_ORIGINAL = "quotas that were not lowered are raised"
    """executor/cpu_usage.go:157: the limit is the only bound, and the original quota is not remembered."""
    STEP_ZERO = "step 0 restores nothing"
    """executor/cpu_usage.go:153: the step is the only increase."""
    EXTENDED_JUMP = "an extended limit is restored in one step"
    """executor/cpu_usage.go:163."""
    NEVER_UNLIMITED = "unlimited is never restored"
    """executor/cpu_usage.go:165: 60 is compared as 60 times the period."""
    RESTORE_EXCESS = "the excess enlarges the gap of restoring"
    """executor/watermark.go:232."""
    RESTORE_ORDER = "pods are restored in the order of throttling"
    """executor/throttle.go:198: the reversal is commented out."""

    COUNTING = "samples below do not reset the count of samples above"
    """analyzer/analyzer.go:285: only a restore sets the count to 0."""
    COOL_DOWN = "a restore within the cool-down starts the cool-down again"
    """analyzer/analyzer.go:541."""
    UNKNOWN_ACTION = "a rule with an unknown action keeps new pods away"
    """analyzer/analyzer.go:529: the action is looked up later."""
    NO_GRACE = "the action's grace period has no effect"
    """executor/podinfo/pod_info.go:138: only the ratios are copied."""
    LAST_PRIORITY = "of several priorities with NotIn, the last one counts"
    """analyzer/podqos-fetcher.go:151: each value overwrites the verdict."""
    NEGATIVE_PRIORITY = "priorities below 0 match nothing"
    """analyzer/podqos-fetcher.go:127: the value is split at the minus sign."""


FATAL = frozenset({CraneFault.SHARED_GAPS, CraneFault.RESTORE_INDEX})
"""Without their repair, nothing is throttled or restored; the golden cases `head_gapfix` repair them."""
REPAIRED = frozenset(CraneFault)
