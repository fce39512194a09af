"""`load-watcher qrm restore`: returns containers to the values that the container runtime would have set.

The checkpoint names the containers and the properties that were set. Their values are, in this order:

1. CPUs and memory nodes that the kubelet's own managers assign, if they are on
2. the stored values that the containers had before (agent/qrm/store/originals.py)
3. all CPUs and memory nodes of the machine, as for any container without a cpuset

Other properties without a stored value remain, and are reported. Only values that differ are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from agent import cpuset
from agent.qrm.kubelet.messages import info_from_bytes
from agent.qrm.kubelet.own_managers import BadKubeletState, KubeletSets, read_kubelet_sets
from agent.qrm.kubelet.socket_server import CannotServe, SocketClaim, SocketInUse
from agent.qrm.main import CHECKPOINT
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, CPUSETS, Allocations, Properties
from agent.qrm.nri.messages import OOM_SCORE
from agent.qrm.nri.restoring import NriRestorer
from agent.qrm.plugins.sysfs import NoTopology, memory_nodes, read_machine
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.runtime.found import ContainerGone, FoundContainer, RestoringRuntime
from agent.qrm.settings import APPLYING, CRI, NRI, REMOVED_MODE, QrmSettings
from agent.qrm.store.checkpoint import BadCheckpoint, decode
from agent.qrm.store.files import BadState
from agent.qrm.store.last_mode import FILE as LAST_MODE
from agent.qrm.store.last_mode import recorded_mode
from agent.qrm.store.originals import OriginalValues
from agent.service.node_server import CannotRun

AGAIN = "create the container again to restore them"


class RestoreOutcome(StrEnum):
    """What happened to a container."""

    DONE = "done"
    NOT_NEEDED = "not needed"
    """The container has these values already."""
    GONE = "gone"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RestoredContainer:
    """One container of the checkpoint. `pod` is namespace/name, or the UID if only that is known; `container` is the
    name, "" if only the id is known."""

    pod: str
    container: str
    id: str
    outcome: RestoreOutcome
    text: str

    @property
    def called(self) -> str:
        """Pod and container, for messages."""
        container = self.container or self.id[:12]
        return f"{self.pod}, container {container}" if container else self.pod


@dataclass(frozen=True, slots=True)
class BeforeAllocation:
    """The values that containers have without allocations."""

    kubelet: KubeletSets
    originals: OriginalValues
    everything: Properties

    def of(self, uid: str, name: str, container_id: str) -> Properties:
        """The known values of a container."""
        return {**self.everything, **self.originals.of(container_id), **self.kubelet.of(uid, name)}


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The containers, sorted by pod and container, and a summary."""

    containers: tuple[RestoredContainer, ...]
    text: str


async def restore(settings: QrmSettings) -> RestoreReport:
    """Restore the containers of the checkpoint in qrm.state_dir. Raises CannotRun."""
    path = settings.state_dir / CHECKPOINT
    if not path.exists():
        raise CannotRun(f"the checkpoint {path} does not exist: no containers are known to restore")
    with _without_manager(settings.state_dir):
        mode = _mode(settings)
        if mode not in APPLYING:
            return RestoreReport((), "the manager has set nothing on containers: nothing to restore")
        names = names_by_container(_read_checkpoint(path))
        before = _before_allocation(settings)
        runtime = CriRuntime(settings.runtime_socket) if mode == CRI else NriRestorer(settings)
        try:
            found = await _in_runtime(runtime, names, before, other=NRI if mode == CRI else CRI)
        finally:
            await runtime.close()
    counted = "1 container" if len(found) == 1 else f"{len(found)} containers"
    text = f"{counted} processed" if found else "no containers with allocations: nothing to restore"
    return RestoreReport(tuple(sorted(found, key=lambda each: (each.pod, each.container, each.id))), text)


def _mode(settings: QrmSettings) -> str:
    """A mode that sets properties: that of the settings, otherwise the last one of the manager. Both set them through
    the container runtime, which shows in each of them what was set in the other. A mode that sets nothing if the
    manager never had another. Raises CannotRun."""
    file = settings.state_dir / LAST_MODE
    try:
        recorded = recorded_mode(settings.state_dir)
    except (BadState, OSError) as error:
        raise CannotRun(
            f"{file}, with the mode of the manager, is unusable: {error}\n  move it away, and set --mode to that mode"
        ) from None
    if recorded == REMOVED_MODE:
        raise CannotRun(
            f"the manager had the mode {REMOVED_MODE}, which was removed in load-watcher 0.1.0\n"
            f"  run load-watcher qrm restore of the earlier version; or restart the pods, and delete {file}"
        )
    if recorded not in (None, *APPLYING):
        raise CannotRun(f"{file} has the unknown mode {recorded!r}\n  set --mode to that of the manager, and delete it")
    return settings.mode if recorded is None or settings.mode in APPLYING else recorded


@contextmanager
def _without_manager(directory: Path) -> Iterator[None]:
    """Hold the lock that each manager needs. Raises CannotRun."""
    claim = SocketClaim(directory / "kubelet.sock")
    try:
        claim.take()
    except SocketInUse:
        raise CannotRun(
            f"load-watcher qrm, or another restore, is running with the state in {directory}\n"
            "  stop the manager first, because it would set the values again"
        ) from None
    except CannotServe as error:
        raise CannotRun(str(error)) from None
    try:
        yield
    finally:
        claim.release()


# --- what was set, and what was there before -------------------------------------------------------------------------

Names = Mapping[tuple[str, str], frozenset[str]]
"""The properties that allocations set, by pod UID and container."""


def names_by_container(allocations: Allocations) -> Names:
    """Containers without properties are left out: environment and annotations of a running container cannot change."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for uid, container, _, info in allocations:
        if info.oci_property_name:
            found[uid, container] = found.get((uid, container), frozenset()) | {info.oci_property_name}
    return found


def _read_checkpoint(path: Path) -> Allocations:
    try:
        return decode(path.read_bytes(), from_message=info_from_bytes)
    except OSError as error:
        raise CannotRun(f"cannot read the checkpoint {path}: {error.strerror}") from None
    except BadCheckpoint as error:
        raise CannotRun(
            f"the checkpoint {path} is unusable: {error}\n"
            "  start load-watcher qrm with the same mode until it has written a new one, stop it, and restore again"
        ) from None


def _before_allocation(settings: QrmSettings) -> BeforeAllocation:
    """Read everything that determines the values. Raises CannotRun."""
    originals = OriginalValues(settings.state_dir)
    try:
        originals.read(replace_damaged=False)
        machine = read_machine(settings.sys)
        nodes = memory_nodes(settings.sys) or machine.memory or machine.nodes
        everything = {CPUSET_CPUS: cpuset.text(machine.all), CPUSET_MEMS: cpuset.text(nodes)}
        return BeforeAllocation(read_kubelet_sets(settings.kubelet_dir), originals, everything)
    except OSError as error:
        raise CannotRun(f"cannot read {originals.path}: {error.strerror}") from None
    except BadState as error:
        raise CannotRun(
            f"{originals.path}, with the values before the allocations, is unusable: {error}\n"
            "  move it away: cpusets are then restored, other properties are reported"
        ) from None
    except NoTopology as error:
        raise CannotRun(f"{error}\n  check qrm.sys") from None
    except BadKubeletState as error:
        raise CannotRun(f"{error}\n  check qrm.kubelet_dir") from None


# --- through the container runtime -----------------------------------------------------------------------------------


async def _in_runtime(
    runtime: RestoringRuntime, names: Names, before: BeforeAllocation, *, other: str
) -> list[RestoredContainer]:
    """Restore through a runtime that knows containers by name. `other` is another mode that can do this. Raises
    CannotRun."""
    try:
        found = await runtime.containers()
    except ApplyFailed as error:
        raise CannotRun(
            f"cannot list the containers: {error}\n"
            f"  check the runtime and its socket (qrm.nri_socket, qrm.runtime_socket), or set --mode {other}"
        ) from None
    pods = {each.pod_uid: each.pod for each in found}
    there = {(each.pod_uid, each.name) for each in found}
    results = [_gone(pods.get(uid, uid), name) for uid, name in names if (uid, name) not in there]
    allocated = [(each, names[each.pod_uid, each.name]) for each in found if (each.pod_uid, each.name) in names]
    return results + [await _restored(runtime, each, own, before) for each, own in allocated]


async def _restored(
    runtime: RestoringRuntime, container: FoundContainer, names: frozenset[str], before: BeforeAllocation
) -> RestoredContainer:
    def ended(outcome: RestoreOutcome, text: str) -> RestoredContainer:
        return RestoredContainer(container.pod, container.name, container.id, outcome, text)

    values = before.of(container.pod_uid, container.name, container.id)
    try:
        has = await runtime.properties(container, names)
        unset = {name: value for name, value in before.everything.items() if name in CPUSETS}
        due = {
            name: values[name]
            for name in sorted(names & values.keys())
            if has is None or has.get(name, unset.get(name)) != values[name]
        }
        if due:
            await runtime.set(container, due)
    except ContainerGone:
        return _gone(container.pod, container.name, container.id)
    except ApplyFailed as error:
        return ended(RestoreOutcome.FAILED, f"not restored: {error}")
    # Mode nri sets the score at the creation only, and records no value; the runtime may not report the score.
    unrecorded = before.originals.missing(container.id, names & {OOM_SCORE})
    unknown = sorted(name for name in names - values.keys() if has is None or name in has or name in unrecorded)
    if unknown:
        text = f"the values of {', '.join(unknown)} before the allocation are unknown: {AGAIN}"
        return ended(RestoreOutcome.FAILED, "; ".join(filter(None, (_set_text(due), text))))
    return ended(RestoreOutcome.DONE, _set_text(due)) if due else ended(RestoreOutcome.NOT_NEEDED, "nothing to restore")


def _set_text(values: Properties) -> str:
    return "restored: " + ", ".join(f"{name} is {value}" for name, value in values.items()) if values else ""


def _gone(pod: str, container: str, container_id: str = "") -> RestoredContainer:
    return RestoredContainer(pod, container, container_id, RestoreOutcome.GONE, "has ended, nothing to restore")
