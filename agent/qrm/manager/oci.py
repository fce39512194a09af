"""What a plug-in may set of a container: the fields of the CRI's LinuxContainerResources, by their Go names.

A fixed table, and never a name that a plug-in makes up: `Unified.<key>` goes into the map of cgroup v2 files, which is
how what has no field of its own is set (reference/qrm.md §3.8).

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from agent.qrm import cpuset
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, AllocationInfo

Value = int | str
Properties = Mapping[str, Value]
"""By Go field name, sorted."""

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
"""Go names and the names of the messages' fields."""
CPUSETS = frozenset({CPUSET_CPUS, CPUSET_MEMS})
UNIFIED = "Unified."

_KEY = re.compile(r"[a-z]+(\.[a-z0-9_]+)+")
_WHOLE = re.compile(r"-?[0-9]{1,19}")


class BadProperty(ValueError):
    """A plug-in's answer cannot be set on a container."""


def properties_of(infos: Mapping[str, AllocationInfo]) -> Properties:
    """What a container's allocations set, resources in their order; nothing for those without a property.

    Raises BadProperty for an unknown property, a value that is none of it, and two resources that want different
    values of one.
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
                f"{claimed[name]} sets {name} to {found[name]}, and {resource} to {value}: one of the plug-ins must "
                "leave it alone"
            )
        found[name] = value
        claimed.setdefault(name, resource)
    return dict(sorted(found.items()))


def _value(resource: str, name: str, text: str) -> Value:
    """As the runtime takes it."""
    if name in CPUSETS:
        try:
            cpus = cpuset.parse(text)
        except ValueError as error:
            raise BadProperty(f"{resource} sets {name} to what is no set: {error}") from None
        if not cpus:
            raise BadProperty(f"{resource} sets {name} to the empty set, with which nothing can run")
        return cpuset.text(cpus)
    if name.startswith(UNIFIED):
        if not _KEY.fullmatch(name.removeprefix(UNIFIED)):
            raise BadProperty(f"{resource} sets {name}, which is no file of a control group")
        return text
    if name not in FIELDS:
        raise BadProperty(f"{resource} sets {name!r}, which is no property of a container: {', '.join(FIELDS)}")
    if not _WHOLE.fullmatch(text) or abs(int(text)) >= 1 << 63:
        raise BadProperty(f"{resource} sets {name} to {text[:40]!r}, which is no whole number")
    return int(text)
