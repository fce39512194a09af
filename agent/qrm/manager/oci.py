"""The container properties that a plug-in may set: the fields of the CRI's LinuxContainerResources, by their Go names.

The table is fixed; other names are rejected. `Unified.<key>` is an entry in the map of cgroup v2 files, for values
without a field in the message.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from agent.qrm import cpuset
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, AllocationInfo

Value = int | str
Properties = Mapping[str, Value]
"""Values by Go field name, sorted by name."""

FIELDS = {
    "CpuPeriod": "cpu_period",
    "CpuQuota": "cpu_quota",
    "CpuShares": "cpu_shares",
    "MemoryLimitInBytes": "memory_limit_in_bytes",
    "OomScoreAdj": "oom_score_adj",
    CPUSET_CPUS: "cpuset_cpus",
    CPUSET_MEMS: "cpuset_mems",
    "MemorySwapLimitInBytes": "memory_swap_limit_in_bytes",
}
"""Go field names, and the field names of the protobuf message."""
CPUSETS = frozenset({CPUSET_CPUS, CPUSET_MEMS})
UNIFIED = "Unified."

_KEY = re.compile(r"[a-z]+(\.[a-z0-9_]+)+")
_WHOLE = re.compile(r"-?[0-9]{1,19}")


class BadProperty(ValueError):
    """An allocation of a plug-in cannot be set on a container."""


def properties_of(infos: Mapping[str, AllocationInfo]) -> Properties:
    """The properties that a container's allocations set, in the order of the resources. Allocations without a property
    are ignored.

    Raises BadProperty for an unknown property, an invalid value, and two resources with different values for one
    property.
    """
    found: dict[str, Value] = {}
    claimed: dict[str, str] = {}
    for resource, info in sorted(infos.items()):
        name = info.oci_property_name
        if not name:
            continue
        value = _value(resource, name, info.allocation_result)
        if name in found and found[name] != value:
            raise BadProperty(
                f"{claimed[name]} sets {name} to {found[name]}, but {resource} sets it to {value}: only one "
                "plug-in may set it"
            )
        found[name] = value
        claimed.setdefault(name, resource)
    return dict(sorted(found.items()))


def checked_properties(infos: Mapping[str, AllocationInfo], *, cpus: cpuset.CpuSet | None) -> Properties:
    """The properties that the allocations set, after a check of CPUs and quantities. Raises BadProperty."""
    for resource, info in infos.items():
        if not 0 <= info.allocated_quantity < math.inf:
            raise BadProperty(f"{resource} has the invalid quantity {info.allocated_quantity}")
    found = properties_of(infos)
    if cpus is not None and (strange := cpuset.parse(str(found.get(CPUSET_CPUS, ""))) - cpus):
        raise BadProperty(f"{CPUSET_CPUS} {cpuset.text(strange)} does not exist on this machine or is offline")
    return found


def _value(resource: str, name: str, text: str) -> Value:
    """The value in the type that the container runtime expects."""
    if name in CPUSETS:
        try:
            cpus = cpuset.parse(text)
        except ValueError as error:
            raise BadProperty(f"{resource} sets {name} to an invalid set: {error}") from None
        if not cpus:
            raise BadProperty(f"{resource} sets {name} to the empty set")
        return cpuset.text(cpus)
    if name.startswith(UNIFIED):
        if not _KEY.fullmatch(name.removeprefix(UNIFIED)):
            raise BadProperty(f"{resource} sets {name}, which is not a cgroup file")
        return text
    if name not in FIELDS:
        raise BadProperty(
            f"{resource} sets {name!r}, which is not a container property; use one of {', '.join(FIELDS)}"
        )
    if not _WHOLE.fullmatch(text) or abs(int(text)) >= 1 << 63:
        raise BadProperty(f"{resource} sets {name} to {text[:40]!r}, which is not a whole number")
    return int(text)
