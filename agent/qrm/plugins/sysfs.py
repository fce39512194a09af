"""Reads the hardware from sysfs: CPU topology, memory of NUMA nodes, network cards.

If the kernel does not provide a value (no NUMA, no L3 cache, a virtual machine without core numbers), the default is
one node, one cache per node, and one core per CPU. Offline CPUs are omitted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

from agent import cpuset
from agent.cpuset import CpuSet
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.plugins.nic import Nic

log = logging.getLogger(__name__)

SYS = Path("/sys")


class NoTopology(RuntimeError):
    """The topology cannot be read; the message names the file."""


def read_machine(sys: Path = SYS) -> CpuTopology:
    """The online CPUs, and memory by NUMA node in bytes. Raises NoTopology."""
    online = _cpus(sys / "devices/system/cpu/online")
    if not online:
        raise NoTopology(f"cannot read {sys / 'devices/system/cpu/online'}: the CPUs of this machine are unknown")
    nodes = _nodes(sys, online)
    numa_of = {cpu: node for node, cpus in nodes.items() for cpu in cpus}
    cpus: dict[int, LogicalCpu] = {}
    for cpu in sorted(online):
        at = sys / f"devices/system/cpu/cpu{cpu}"
        siblings = (_cpus(at / "topology/thread_siblings_list") or frozenset({cpu})) & online
        socket = _number(at / "topology/physical_package_id")
        numa = numa_of.get(cpu, min(nodes))
        shared = _cpus(at / "cache/index3/shared_cpu_list") or nodes[numa]
        # The first thread identifies a core, the first CPU a cache, because core_id is only unique within a package.
        cpus[cpu] = LogicalCpu(cpu, min(siblings | {cpu}), max(socket, 0), numa, min(shared & online or {cpu}))
    memory = {node: size for node in _node_numbers(sys) if (size := _memory(sys, node))}
    if only := sorted(memory.keys() - nodes.keys()):
        log.info("NUMA nodes with memory and without CPUs: %s", cpuset.text(only))
    return CpuTopology(cpus, memory)


def memory_nodes(sys: Path = SYS) -> CpuSet:
    """The NUMA nodes that have memory, also those without CPUs; empty if the kernel reports none. Raises NoTopology."""
    return _cpus(sys / "devices/system/node/has_memory") or frozenset()


def _nodes(sys: Path, online: CpuSet) -> Mapping[int, CpuSet]:
    """CPUs by NUMA node, without nodes that have no online CPU; a single node if the kernel reports none."""
    lists = {node: _cpus(sys / f"devices/system/node/node{node}/cpulist") for node in _node_numbers(sys)}
    return {node: own for node, cpus in lists.items() if (own := (cpus or frozenset()) & online)} or {0: online}


def _node_numbers(sys: Path) -> list[int]:
    """The NUMA nodes of the machine, ascending, with or without CPUs."""
    entries = (sys / "devices/system/node").glob("node[0-9]*")
    return sorted(int(entry.name[4:]) for entry in entries if entry.name[4:].isdecimal())


def _memory(sys: Path, node: int) -> int:
    """Memory of a NUMA node in bytes; 0 if the kernel does not report it."""
    match = re.search(r"MemTotal:\s+([0-9]+) kB", _text(sys / f"devices/system/node/node{node}/meminfo"))
    return int(match[1]) << 10 if match else 0


def read_nics(sys: Path = SYS) -> tuple[Nic, ...]:
    """The physical network cards of the host's network namespace that are up, sorted by name; without addresses."""
    return tuple(
        Nic(entry.name, _number(entry / "device/numa_node"))
        for entry in sorted((sys / "class/net").glob("*"))
        if (entry / "device").exists() and _text(entry / "operstate").strip() in {"up", "unknown"}
    )


def _cpus(path: Path) -> CpuSet | None:
    """The CPUs in a file; None if the file does not exist or is empty. Raises NoTopology if it is not a list of
    CPUs."""
    text = _text(path)
    try:
        return cpuset.parse(text) if text else None
    except ValueError as error:
        raise NoTopology(f"{path}: {error}") from None


def _number(path: Path) -> int:
    """The number in a file; -1 if the file does not exist. The kernel also uses -1 for unknown."""
    text = _text(path).strip()
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else -1


def _text(path: Path) -> str:
    """The content of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
