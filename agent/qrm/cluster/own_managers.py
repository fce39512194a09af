"""The kubelet's own CPU Manager and Memory Manager, from their state files: their policies, and the CPUs and memory
nodes that they assign to containers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from agent import cpuset
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, Properties
from watcher.decoding.json_text import decode_json

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
CPU_STATE, MEMORY_STATE = "cpu_manager_state", "memory_manager_state"
OFF = {CPU_STATE: "none", MEMORY_STATE: "None"}
"""The policy in each state file with which the kubelet sets no cpusets."""
StateT = TypeVar("StateT", bound="ManagerState")


class BadKubeletState(ValueError):
    """A state file of the kubelet cannot be read; the message names the file and the reason."""


class ManagerState(msgspec.Struct, frozen=True, rename="camel"):
    """What both state files have in common."""

    policy_name: str = ""


class _CpuState(ManagerState, frozen=True, rename="camel"):
    default_cpu_set: str = ""
    entries: dict[str, dict[str, str]] = {}


class _MemoryBlock(msgspec.Struct, frozen=True, rename="camel"):
    numa_affinity: tuple[int, ...] = ()


class _MemoryState(ManagerState, frozen=True, rename="camel"):
    entries: dict[str, dict[str, tuple[_MemoryBlock, ...]]] = {}


@dataclass(frozen=True, slots=True)
class KubeletSets:
    """The sets by pod UID and container. `shared` is the set of CPUs of all other containers, empty if the CPU Manager
    is off."""

    cpus: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    mems: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shared: str = ""

    def of(self, uid: str, container: str) -> Properties:
        """The properties that the kubelet sets on a container; empty if its managers are off."""
        found = {
            CPUSET_CPUS: self.cpus.get(uid, {}).get(container, self.shared),
            CPUSET_MEMS: self.mems.get(uid, {}).get(container, ""),
        }
        return {name: text for name, text in found.items() if text}


def read_policy(path: Path) -> str:
    """The policy in a state file, "" if there is none. Raises BadKubeletState."""
    state = _read(path, ManagerState)
    return "" if state is None else state.policy_name


def switched_on(directory: Path) -> dict[Path, str]:
    """The policies of the managers that are on, by state file. A file that cannot be read is ignored, because only the
    kubelet knows its format."""
    found = {}
    for name, off in OFF.items():
        try:
            policy = read_policy(directory / name)
        except BadKubeletState:
            continue
        if policy not in (off, ""):
            found[directory / name] = policy
    return found


def objection(directory: Path) -> str:
    """Why cpusets must not be set, with the remedy; "" if the kubelet's managers are off."""
    return "; ".join(
        f"the kubelet of this node sets cpusets itself: {path} contains the policy {policy}; {_remedy(path)}"
        for path, policy in switched_on(directory).items()
    )


class ManagerReport:
    """Logs once when the kubelet's managers are switched on, and once when they are off again, after the state at the
    start."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._before = objection(directory)

    def check(self) -> None:
        """Log the change since the last check."""
        why = objection(self._directory)
        if why and why != self._before:
            log.warning("%s", why)
        elif self._before and not why:
            log.info("the kubelet of this node does not set cpusets itself any more")
        self._before = why

    async def run(self) -> None:
        """Check every CHECK_INTERVAL_S seconds until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            await asyncio.to_thread(self.check)


def _remedy(path: Path) -> str:
    what = "cpuManagerPolicy: none" if path.name == CPU_STATE else "memoryManagerPolicy: None"
    return f"configure the kubelet with {what}, remove the file and restart the kubelet; or set qrm.force"


def read_kubelet_sets(directory: Path) -> KubeletSets:
    """What the managers that are on assign. Raises BadKubeletState."""
    cpus, mems = _read(directory / CPU_STATE, _CpuState), _read(directory / MEMORY_STATE, _MemoryState)
    if cpus is None or cpus.policy_name in ("", OFF[CPU_STATE]):
        cpus = _CpuState()
    if mems is None or mems.policy_name in ("", OFF[MEMORY_STATE]):
        mems = _MemoryState()
    try:
        return KubeletSets(
            {uid: {name: cpuset.canonical(text) for name, text in own.items()} for uid, own in cpus.entries.items()},
            {uid: {name: _nodes(blocks) for name, blocks in own.items()} for uid, own in mems.entries.items()},
            cpuset.canonical(cpus.default_cpu_set),
        )
    except ValueError as error:
        raise BadKubeletState(f"{directory / CPU_STATE}: {error}") from None


def _read(path: Path, kind: type[StateT]) -> StateT | None:
    try:
        return decode_json(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadKubeletState(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise BadKubeletState(f"{path} is not a state file of the kubelet: {error}") from None


def _nodes(blocks: tuple[_MemoryBlock, ...]) -> str:
    return cpuset.text(node for block in blocks for node in block.numa_affinity)
