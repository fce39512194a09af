"""The definition of CPU use for all sources of this project: local provider, node agent, Prometheus and InfluxDB.

A CPU is in use while it runs programs, the kernel or interrupts. It is not in use while it is idle, while it is idle
and a task waits for I/O (iowait), and while a hypervisor runs other machines on it (steal): the pods of the node use
none of this time, and lowering their quotas gives none of it back. The definition is that of the kube-prometheus rules.

    use = growth of USED / growth of (USED + UNUSED)                      summed over the CPUs, between two readings

/proc/stat is not a set of counters: idle and iowait of a CPU step back when it is switched off and on (node_exporter
issue 1903), and by a tick or two on tickless kernels, because the kernel attributes an unfinished idle period to one of
the two. Idle and iowait are therefore one value here, and each CPU is compared with itself.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

USED = ("user", "nice", "system", "irq", "softirq")
"""Modes of a CPU in use; user and nice include guest time."""
UNUSED = ("idle", "iowait", "steal")
"""Modes of a CPU that is not in use."""
ROUNDING_S = 0.05
"""Seconds by which idle time may step back without a reset."""
MOST_GROWTH = 2.0
MOST_GROWTH_S = 1.0
"""A CPU cannot have spent more than MOST_GROWTH * elapsed + MOST_GROWTH_S seconds between two readings. The allowance
is for the time between reading the clock and reading the counters on an overloaded machine."""


class CpuUseUnknown(Exception):
    """The CPU use between two readings is unknown; the message is the reason."""


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of one CPU since boot: in use, idle (with iowait), and stolen by the hypervisor."""

    used: float
    idle: float
    stolen: float = 0.0

    @classmethod
    def of(cls, modes: Mapping[str, float]) -> CpuTimes:
        """The times from seconds by mode; a mode that the system does not count is 0."""
        used = sum(modes.get(mode, 0.0) for mode in USED)
        return cls(used, modes.get("idle", 0.0) + modes.get("iowait", 0.0), modes.get("steal", 0.0))


def used_share(before: Mapping[str, CpuTimes], after: Mapping[str, CpuTimes], *, elapsed_s: float) -> float:
    """Share (0 to 1) of CPU use between two readings of CPUs by name, `elapsed_s` monotonic seconds apart. Raises
    CpuUseUnknown if the CPUs are not the same ones, a time decreased or grew by more than the elapsed time, or no time
    was counted."""
    if changed := sorted(before.keys() ^ after.keys()):
        state = "new" if changed[0] in after else "gone"
        raise CpuUseUnknown(f"the CPUs changed: {changed[0]} is {state}")
    used = total = 0.0
    for name, now in after.items():
        then = before[name]
        idle = now.idle - then.idle
        growth = (now.used - then.used, 0.0 if -ROUNDING_S <= idle < 0.0 else idle, now.stolen - then.stolen)
        if min(growth) < 0.0:
            raise CpuUseUnknown(f"a counter of {name} decreased: it was reset")
        if sum(growth) > MOST_GROWTH * elapsed_s + MOST_GROWTH_S:
            raise CpuUseUnknown(f"{name} counted {sum(growth):.0f} s in {elapsed_s:.0f} s")
        used, total = used + growth[0], total + sum(growth)
    if total <= 0.0:
        raise CpuUseUnknown("no CPU time was counted since the previous reading")
    return used / total
