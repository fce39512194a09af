"""`load-watcher qrm restore`: returns containers to the values that the container runtime would have set.

The checkpoint names the containers and the properties that were set. A container without a value of its own has all
CPUs and memory nodes, because the kubelet's CPU and memory managers are off. Values that differ are stored
(agent/qrm/store/originals.py); other properties with an unknown value remain, and are reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent.qrm import cpuset
from agent.qrm.kubelet.contact import is_served
from agent.qrm.main import CHECKPOINT, Checkpoint
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, CPUSETS, Allocations, Properties, Value
from agent.qrm.nri.restoring import NriRestorer
from agent.qrm.plugins.sysfs import NoTopology, read_machine
from agent.qrm.runtime.cgroup import CgroupRuntime, layout_finder
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.runtime.found import FoundContainer
from agent.qrm.settings import CGROUP, CRI, NRI, QrmSettings
from agent.qrm.store.originals import OriginalValues
from agent.qrm.telemetry import QrmMetrics
from agent.service.node_server import CannotRun


class Outcome(StrEnum):
    """What happened to a container."""

    RESTORED = "restored"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RestoredContainer:
    """One container that has allocations in the checkpoint. `name` is empty in the mode cgroup; `text` is the reason of
    a failure, or names the restored values."""

    pod: str
    name: str
    id: str
    outcome: Outcome
    text: str


async def run(settings: QrmSettings) -> list[RestoredContainer]:
    """Restore what the checkpoint in qrm.state_dir contains. Raises CannotRun."""
    checkpoint = Checkpoint(settings.state_dir / CHECKPOINT, QrmMetrics())
    return await restore(settings, await asyncio.to_thread(checkpoint.read))


async def restore(settings: QrmSettings, allocations: Allocations) -> list[RestoredContainer]:
    """Restore all running containers with allocations; running it again changes nothing. Raises CannotRun."""
    if await is_served(settings.state_dir / "kubelet.sock"):
        raise CannotRun(
            "load-watcher qrm is running, and would set the values again\n"
            "  stop it first, for example: kubectl delete daemonset load-watcher-qrm"
        )
    if not allocations.pods:
        return []
    if settings.mode == CGROUP:
        return await _cgroups(settings, allocations)
    if settings.mode not in (CRI, NRI):
        raise CannotRun(f"qrm.mode {settings.mode} sets nothing on containers\n  set the mode that did, with --mode")
    originals = _originals(settings.state_dir)
    async with AsyncExitStack() as stack:
        runtime: CriRuntime | NriRestorer
        if settings.mode == CRI:
            runtime = CriRuntime(settings.runtime_socket)
            stack.push_async_callback(runtime.close)
        else:
            runtime = NriRestorer(settings)
            stack.push_async_callback(runtime.close)
        try:
            found = await runtime.containers()
        except ApplyFailed as error:
            raise CannotRun(f"cannot list the containers: {error}\n  check the socket and the runtime") from None
        everything = _everything(settings)
        return [
            await _restore(runtime, each, allocations, {**everything, **originals.of(each.id)})
            for each in sorted(found, key=lambda each: (each.pod_uid, each.name, each.id))
            if each.pod_uid in allocations.pods
        ]


async def _restore(
    runtime: CriRuntime | NriRestorer, container: FoundContainer, allocations: Allocations, values: Properties
) -> RestoredContainer:
    """Set the values of the properties that the container's allocations set."""
    names = {each.oci_property_name for each in allocations.of(container.pod_uid, container.name).values()} - {""}
    wanted = {name: values[name] for name in sorted(names & values.keys())}
    unknown = sorted(names - values.keys())
    if container.has is not None and wanted == {name: container.has.get(name, _unset(name, values)) for name in wanted}:
        outcome, text = Outcome.UNCHANGED, "nothing to restore"
    else:
        outcome, text = Outcome.RESTORED, ", ".join(f"{name}={value}" for name, value in wanted.items())
        try:
            await runtime.set(container, wanted)
        except ApplyFailed as error:
            outcome, text = Outcome.FAILED, str(error)
    if unknown and outcome is not Outcome.FAILED:
        outcome, text = Outcome.FAILED, f"the earlier values of {', '.join(unknown)} are unknown; {text}"
    return RestoredContainer(container.pod, container.name, container.id, outcome, text)


def _unset(name: str, values: Properties) -> Value | None:
    """The value of a property that a container does not have: a container without a set of its own has everything."""
    return values[name] if name in CPUSETS else None


def _everything(settings: QrmSettings) -> Properties:
    """All CPUs and memory nodes of the machine. Raises CannotRun."""
    try:
        machine = read_machine(settings.sys)
    except NoTopology as error:
        raise CannotRun(str(error)) from None
    nodes = machine.memory or machine.nodes
    return {CPUSET_CPUS: cpuset.text(machine.all), CPUSET_MEMS: cpuset.text(nodes)}


def _originals(directory: Path) -> OriginalValues:
    """The stored values. Raises CannotRun."""
    originals = OriginalValues(directory)
    try:
        originals.read()
    except OSError as error:
        raise CannotRun(f"cannot read the stored values in {directory}: {error.strerror}") from None
    return originals


async def _cgroups(settings: QrmSettings, allocations: Allocations) -> list[RestoredContainer]:
    runtime = CgroupRuntime(layout_finder(settings))
    return await asyncio.to_thread(lambda: list(_groups(runtime, sorted(allocations.pods))))


def _groups(runtime: CgroupRuntime, uids: list[str]) -> Iterator[RestoredContainer]:
    for uid in uids:
        try:
            for container_id, changed in runtime.reset(uid):
                outcome = Outcome.RESTORED if changed else Outcome.UNCHANGED
                text = "the CPUs and memory nodes of the parent group" if changed else "nothing to restore"
                yield RestoredContainer(uid, "", container_id, outcome, text)
        except ApplyFailed as error:
            yield RestoredContainer(uid, "", "", Outcome.FAILED, str(error))
