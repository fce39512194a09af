"""NodeMetric objects of the cluster as the publisher reads them: their reporter, their policy, and their age.

metadata.managedFields contains the last writer of each field of an object: a write that changes a field's value takes
over its ownership. The owner of `status.updateTime` is therefore the reporter, such as koordlet; the owner of the
policy is koord-manager or a user.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec

from watcher.core.koordinator.collect_policy import PolicyOverride
from watcher.core.kubernetes.times import read_duration, read_time
from watcher.core.kubernetes.wire import MinimalMetadata, Resource

MANAGER = "load-watcher"
"""Name of this program in managedFields."""
REPORT_INTERVALS = 2
"""Number of report intervals after which a program that has not reported is considered to have stopped."""


class _Owned(msgspec.Struct, frozen=True):
    """Marks an owned field; its content is not decoded."""


class _OwnedUsage(msgspec.Struct, frozen=True):
    system_usage: _Owned | None = msgspec.field(default=None, name="f:systemUsage")


class _OwnedStatus(msgspec.Struct, frozen=True):
    update_time: _Owned | None = msgspec.field(default=None, name="f:updateTime")
    pods_metric: _Owned | None = msgspec.field(default=None, name="f:podsMetric")
    node_metric: _OwnedUsage | None = msgspec.field(default=None, name="f:nodeMetric")


class _OwnedSpec(msgspec.Struct, frozen=True):
    policy: _Owned | None = msgspec.field(default=None, name="f:metricCollectPolicy")


class _OwnedFields(msgspec.Struct, frozen=True):
    spec: _OwnedSpec | None = msgspec.field(default=None, name="f:spec")
    status: _OwnedStatus | None = msgspec.field(default=None, name="f:status")


class _ManagedFields(msgspec.Struct, frozen=True):
    manager: str = ""
    fields: _OwnedFields = msgspec.field(default=_OwnedFields(), name="fieldsV1")


class WrittenMetadata(MinimalMetadata, frozen=True, rename="camel"):
    """Object metadata with the managed fields, that is, the last writer of each field."""

    managed_fields: tuple[_ManagedFields, ...] | None = None


class _AggregatePolicy(msgspec.Struct, frozen=True):
    durations: tuple[str, ...] | None = None


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    report_interval_seconds: int | None = None
    aggregate_duration_seconds: int | None = None
    node_aggregate_policy: _AggregatePolicy | None = None


class _NodeMetricSpec(msgspec.Struct, frozen=True, rename="camel"):
    metric_collect_policy: _Policy | None = None


class _NodeMetricStatus(msgspec.Struct, frozen=True, rename="camel"):
    update_time: str | None = None


class WrittenNodeMetric(msgspec.Struct, frozen=True):
    """The fields of a NodeMetric that the publisher reads."""

    metadata: WrittenMetadata = WrittenMetadata()
    spec: _NodeMetricSpec = _NodeMetricSpec()
    status: _NodeMetricStatus = _NodeMetricStatus()

    @property
    def updated(self) -> float | None:
        """Time of the last report (unix seconds), None if there is none or if it cannot be parsed."""
        return read_time(self.status.update_time or "")

    @property
    def reporter(self) -> str:
        """Name of the last reporter, "" if unknown."""
        owners = [each.manager for each in self._fields() if each.fields.status and each.fields.status.update_time]
        return owners[-1] if owners else ""

    def policy_of_others(self) -> PolicyOverride | None:
        """Return the policy unless load-watcher is its only writer; otherwise None."""
        policy = self.spec.metric_collect_policy
        owners = {each.manager for each in self._fields() if each.fields.spec and each.fields.spec.policy}
        return None if policy is None or owners == {MANAGER} else self._policy(policy)

    @property
    def policy(self) -> PolicyOverride | None:
        """The policy, from any writer; None if there is none."""
        policy = self.spec.metric_collect_policy
        return None if policy is None else self._policy(policy)

    def _policy(self, policy: _Policy) -> PolicyOverride:
        message = policy.node_aggregate_policy
        durations = None
        if message is not None and message.durations is not None:
            # durations that cannot be parsed cannot be served, so they are skipped
            durations = tuple(int(seconds) for text in message.durations if (seconds := read_duration(text)))
        return PolicyOverride(policy.report_interval_seconds, policy.aggregate_duration_seconds, durations)

    @property
    def has_own_pods(self) -> bool:
        """Whether load-watcher wrote the pod usage in this object."""
        statuses = (each.fields.status for each in self._fields() if each.manager == MANAGER)
        return any(status is not None and status.pods_metric is not None for status in statuses)

    def reported_by_another(self, *, now: float, interval: float) -> bool:
        """Return whether another program reported last, at most REPORT_INTERVALS intervals ago. An unknown reporter
        counts as another program. `now` is in unix seconds, `interval` in seconds."""
        updated = self.updated
        return updated is not None and updated > now - REPORT_INTERVALS * interval and self.reporter != MANAGER

    def _fields(self) -> tuple[_ManagedFields, ...]:
        return self.metadata.managed_fields or ()


WRITTEN: Resource[WrittenNodeMetric] = Resource("slo.koordinator.sh", "v1alpha1", "nodemetrics", WrittenNodeMetric)
