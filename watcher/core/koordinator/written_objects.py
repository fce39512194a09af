"""NodeMetric objects of the cluster as who writes them sees them: whose they are, which policy they want, how old.

Who wrote a field of an object last, its managedFields say (metadata.managedFields; a write that gives a field another
value takes it over). So koordlet, or anything else that reports, is known by owning `status.updateTime`, and
koord-manager, or a person, by owning the policy.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import msgspec

from watcher.core.koordinator.collect_policy import PolicyPart
from watcher.core.kubernetes.times import read_duration, read_time
from watcher.core.kubernetes.wire import Metadata, Resource

MANAGER = "load-watcher"
"""What we are called in managedFields."""
REPORT_INTERVALS = 2
"""Who has not reported for so many is taken not to report any more."""


class _Owned(msgspec.Struct, frozen=True):
    """That a field is owned; what is in it does not matter here."""


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


class WrittenMetadata(Metadata, frozen=True, rename="camel"):
    """Who an object is, and who wrote what of it."""

    managed_fields: tuple[_ManagedFields, ...] | None = None


class _AggregatePolicy(msgspec.Struct, frozen=True):
    durations: tuple[str, ...] | None = None


class _Policy(msgspec.Struct, frozen=True, rename="camel"):
    report_interval_seconds: int | None = None
    aggregate_duration_seconds: int | None = None
    node_aggregate_policy: _AggregatePolicy | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    metric_collect_policy: _Policy | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    update_time: str | None = None


class WrittenNodeMetric(msgspec.Struct, frozen=True):
    """The custom resource, cut down to what its writers look at."""

    metadata: WrittenMetadata = WrittenMetadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def updated(self) -> float | None:
        """When it was reported (unix seconds), None where it never was, or nobody can read that."""
        return read_time(self.status.update_time or "")

    @property
    def reporter(self) -> str:
        """Who reported last; "" where that is not known."""
        owners = [each.manager for each in self._fields() if each.fields.status and each.fields.status.update_time]
        return owners[-1] if owners else ""

    def told_by_others(self) -> PolicyPart | None:
        """The policy, where it is not one that we wrote."""
        policy = self.spec.metric_collect_policy
        owners = {each.manager for each in self._fields() if each.fields.spec and each.fields.spec.policy}
        return None if policy is None or owners == {MANAGER} else self._policy(policy)

    @property
    def policy(self) -> PolicyPart | None:
        """Whoever wrote it."""
        policy = self.spec.metric_collect_policy
        return None if policy is None else self._policy(policy)

    def _policy(self, policy: _Policy) -> PolicyPart:
        told = policy.node_aggregate_policy
        durations = None
        if told is not None and told.durations is not None:
            # what is no duration of whole seconds is none that we have
            durations = tuple(int(seconds) for text in told.durations if (seconds := read_duration(text)))
        return PolicyPart(policy.report_interval_seconds, policy.aggregate_duration_seconds, durations)

    @property
    def has_pods_of_ours(self) -> bool:
        """Whether the usage of pods in it is what we wrote."""
        statuses = (each.fields.status for each in self._fields() if each.manager == MANAGER)
        return any(status is not None and status.pods_metric is not None for status in statuses)

    def reported_by_another(self, *, now: float, interval: float) -> bool:
        """Whether somebody else reports: has so lately, and was the last to do so. Where nobody says who it was, it was
        somebody else."""
        updated = self.updated
        return updated is not None and updated > now - REPORT_INTERVALS * interval and self.reporter != MANAGER

    def _fields(self) -> tuple[_ManagedFields, ...]:
        return self.metadata.managed_fields or ()


WRITTEN: Resource[WrittenNodeMetric] = Resource("slo.koordinator.sh", "v1alpha1", "nodemetrics", WrittenNodeMetric)
