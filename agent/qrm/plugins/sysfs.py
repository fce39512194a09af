"""The machine as Linux describes it under /sys: topology of CPUs, memory of NUMA nodes, network cards.

What a kernel leaves out (no NUMA, no L3, a virtual machine without core numbers) has a defined stand-in: one node, one
cache per node, one core per CPU. Offline CPUs are not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from agent.qrm import cpuset
from agent.qrm.cpuset import CpuSet
from agent.qrm.plugins.cpu_topology import Cpu, Machine
from agent.qrm.plugins.nic import Nic

SYS = Path("/sys")


class NoTopology(RuntimeError):
    """The machine cannot be read; the message names the file."""


def read_machine(sys: Path = SYS) -> Machine:
    """CPUs that are online, and memory by NUMA node in bytes. Raises NoTopology."""
    online = _cpus(sys / "devices/system/cpu/online")
    if not online:
        raise NoTopology(f"{sys / 'devices/system/cpu/online'} cannot be read: which CPUs are there is not known")
    nodes = _nodes(sys, online)
    numa_of = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    cpus: dict[int, Cpu] = {}
    for cpu in sorted(online):
        at = sys / f"devices/system/cpu/cpu{cpu}"
        siblings = (_cpus(at / "topology/thread_siblings_list") or frozenset({cpu})) & online
        socket = _number(at / "topology/physical_package_id")
        numa = numa_of.get(cpu, min(nodes))
        shared = _cpus(at / "cache/index3/shared_cpu_list") or nodes[numa]
        # A core is named by its first thread and a cache by its first CPU: core_id repeats in every package.
        cpus[cpu] = Cpu(cpu, min(siblings | {cpu}), max(socket, 0), numa, min(shared & online or {cpu}))
    return Machine(cpus, {node: size for node in nodes if (size := _memory(sys, node))})


def _nodes(sys: Path, online: CpuSet) -> Mapping[int, CpuSet]:
    """CPUs by NUMA node, nodes without an online CPU left out; one node where the kernel knows of none."""
    found: dict[int, CpuSet] = {}
    for entry in sorted((sys / "devices/system/node").glob("node[0-9]*")):
        if entry.name[4:].isdecimal() and (own := (_cpus(entry / "cpulist") or frozenset()) & online):
            found[int(entry.name[4:])] = own
    return dict(sorted(found.items())) or {0: online}


def _memory(sys: Path, node: int) -> int:
    """Bytes of a NUMA node, 0 where the kernel does not say."""
    match = re.search(r"MemTotal:\s+([0-9]+) kB", _text(sys / f"devices/system/node/node{node}/meminfo"))
    return int(match[1]) << 10 if match else 0


def read_nics(sys: Path = SYS) -> tuple[Nic, ...]:
    """Network cards of the host's own namespace that are hardware and up, by name; without addresses."""
    return tuple(
        Nic(entry.name, _number(entry / "device/numa_node"))
        for entry in sorted((sys / "class/net").glob("*"))
        if (entry / "device").exists() and _text(entry / "operstate").strip() in {"up", "unknown"}
    )


def _cpus(path: Path) -> CpuSet | None:
    """None where the file is not there. Raises NoTopology for what is no list of CPUs."""
    text = _text(path)
    try:
        return cpuset.parse(text) if text else None
    except ValueError as error:
        raise NoTopology(f"{path}: {error}") from None


def _number(path: Path) -> int:
    """-1, which is how the kernel says that it does not know, also where the file is not there."""
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else -1


def _text(path: Path) -> str:
    """Empty where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
