"""Control groups of pods and containers: where they are, what they use, and what holds them back.

Linux has two interfaces for one thing. Version 1 has a tree of directories for each controller (cpu, cpuacct, memory),
version 2 one tree for all; a *hybrid* machine has version 1's, and an empty one of version 2 beside them, which tells
of pressure. The kubelet lays its groups out in two ways, by its *driver*: cgroupfs has `/kubepods/burstable/podUID/ID`,
systemd has `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope`.

None of that is seen by who uses this room. `find_layout` looks what there is, `open_tree` gives the one interface
(`base.Tree`, `base.Group`), `paths` knows the names, `errors` says what can go wrong, once, by name.

What is here reads and writes files and decides nothing.
"""

from agent.cgroups.base import Cpu, Group, Memory, Pressure, Quota, Tree
from agent.cgroups.detection import Layout, NoCgroups, find_layout, open_tree, top_of
from agent.cgroups.errors import (
    CgroupBusy,
    CgroupDenied,
    CgroupError,
    CgroupGarbled,
    CgroupGone,
    CgroupRefused,
    CgroupUnapplied,
    CgroupUnsupported,
)
from agent.cgroups.ordering import QuotaChange, in_order
from agent.cgroups.paths import Driver, PodGroup

__all__ = [
    "CgroupBusy",
    "CgroupDenied",
    "CgroupError",
    "CgroupGarbled",
    "CgroupGone",
    "CgroupRefused",
    "CgroupUnapplied",
    "CgroupUnsupported",
    "Cpu",
    "Driver",
    "Group",
    "Layout",
    "Memory",
    "NoCgroups",
    "PodGroup",
    "Pressure",
    "Quota",
    "QuotaChange",
    "Tree",
    "find_layout",
    "in_order",
    "open_tree",
    "top_of",
]
