"""`load-watcher qrm restore`, which returns containers to the values that the container runtime would have set, and
what the manager stores for it.

The checkpoint names the containers and the properties that were set. Their values are, in this order:

1. CPUs and memory nodes that the kubelet's own managers assign, if they are on
2. the stored values that the containers had before
3. all CPUs and memory nodes of the machine, as for any container without a cpuset

Other properties without a stored value remain, and are reported. Only values that differ are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from agent import cpuset
from agent.qrm.cluster.own_managers import BadKubeletState, KubeletSets, read_kubelet_sets
from agent.qrm.grpc.messages import info_from_bytes
from agent.qrm.grpc.socket_server import CannotServe, SocketClaim, SocketInUse
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, CPUSETS, Allocations, Properties, Value
from agent.qrm.plugins.sysfs import NoTopology, memory_nodes, read_machine
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.runtime import ContainerGone, FoundContainer, Runtime
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.runtime.nri.messages import OOM_SCORE, properties_in, update
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.table import EXISTING, SynchronizedParts
from agent.qrm.runtime.nri.ttrpc import CallFailed, NriSession
from agent.qrm.settings import APPLYING, CRI, NRI, REMOVED_MODE, QrmSettings
from agent.qrm.store.checkpoint import CHECKPOINT, BadCheckpoint, decode
from agent.qrm.store.files import BadState, StateFile, set_aside
from agent.service.node_server import CannotRun

AGAIN = "create the container again to restore them"

# --- what the manager stores ------------------------------------------------------------------------------------------

LAST_MODE = "last_mode"
_KEY = "mode"


def record_mode(directory: Path, mode: str) -> None:
    """Store the mode. Raises OSError."""
    StateFile(directory / LAST_MODE).write({_KEY: mode})


def recorded_mode(directory: Path) -> str | None:
    """The stored mode; None if no manager has set properties. Raises BadState and OSError."""
    document = StateFile(directory / LAST_MODE).read()
    if document is None:
        return None
    mode = document.get(_KEY)
    if not isinstance(mode, str):
        raise BadState(f"it has no {_KEY}")
    return mode


ORIGINALS = "original_values"
UNKNOWN = ""
"""Stored for a property whose value was not known."""


class OriginalValues:
    """The values by container id."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / ORIGINALS
        self._file = StateFile(self.path)
        self._values: dict[str, dict[str, Value]] = {}
        self._lock = asyncio.Lock()

    def read(self, *, replace_damaged: bool = True) -> None:
        """Read the stored values. A damaged file is renamed, or BadState raised. Raises OSError."""
        try:
            document: dict[str, Any] = self._file.read() or {}
        except BadState as error:
            if not replace_damaged:
                raise
            set_aside(self.path, str(error))
            return
        self._values = dict(document.get("containers", {}))

    def of(self, container_id: str) -> Properties:
        """The known values of a container that differ from the default."""
        stored = self._values.get(container_id, {})
        return {name: value for name, value in stored.items() if value != UNKNOWN}

    def missing(self, container_id: str, names: Iterable[str]) -> set[str]:
        """Those of the properties for which nothing is stored."""
        return set(names) - self._values.get(container_id, {}).keys()

    async def record(self, container_id: str, values: Mapping[str, Value]) -> None:
        """Store values of a container, except those that are stored already. Raises OSError."""
        if self.missing(container_id, values):
            self._values[container_id] = {**values, **self._values.get(container_id, {})}
            await self._write()

    def drop(self, container_id: str) -> None:
        """Remove the values of a container that has ended; the next write stores this."""
        self._values.pop(container_id, None)

    async def keep(self, container_ids: Collection[str]) -> None:
        """Remove the values of all other containers, which have ended. Raises OSError."""
        kept = {id: values for id, values in self._values.items() if id in container_ids}
        if kept != self._values:
            self._values = kept
            await self._write()

    async def _write(self) -> None:
        async with self._lock:
            document = {"containers": {id: dict(values) for id, values in self._values.items()}}
            await asyncio.to_thread(self._file.write, document)


class RecordingApply:
    """Applies properties through `runtime`, and stores the values that they replace. Cpusets are not stored: with the
    kubelet's own managers off, containers have none before. `pods` returns the pods of the node: the values of other
    containers are removed."""

    def __init__(self, runtime: Runtime, originals: OriginalValues, pods: Callable[[], Collection[QrmPod]]) -> None:
        self._runtime = runtime
        self._originals = originals
        self._pods = pods

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Set properties on a running container, unless their values cannot be stored. Raises ApplyFailed."""
        found = FoundContainer(container.id, container.name, pod.key, pod.uid)
        names = self._originals.missing(container.id, properties.keys() - CPUSETS)
        if names:
            try:
                values = await self._runtime.values(found, names) or {}
                await self._originals.keep({each.id for pod in self._pods() for each in pod.containers})
                await self._originals.record(container.id, {name: values.get(name, UNKNOWN) for name in sorted(names)})
            except ContainerGone:
                raise ApplyFailed(f"{found.called} has ended") from None
            except OSError as error:
                raise ApplyFailed(f"{found.called}: cannot write {self._originals.path}: {error.strerror}") from None
        await self._runtime.set(found, properties)


# --- restore ----------------------------------------------------------------------------------------------------------


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
        runtime: Runtime = CriRuntime(settings.runtime_socket) if mode == CRI else NriRestorer(settings)
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
            f"the manager had the mode {REMOVED_MODE}, which was removed in this version\n"
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
    runtime: Runtime, names: Names, before: BeforeAllocation, *, other: str
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
    runtime: Runtime, container: FoundContainer, names: frozenset[str], before: BeforeAllocation
) -> RestoredContainer:
    def ended(outcome: RestoreOutcome, text: str) -> RestoredContainer:
        return RestoredContainer(container.pod, container.name, container.id, outcome, text)

    values = before.of(container.pod_uid, container.name, container.id)
    try:
        has = await runtime.values(container, names)
        unset = {name: value for name, value in before.everything.items() if name in CPUSETS}
        due = {
            name: values[name]
            for name in sorted(names & values.keys())
            if has is None or has.get(name, unset.get(name)) != values[name]
        }
        if due:
            await _set(runtime, container, due)
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


async def _set(runtime: Runtime, container: FoundContainer, values: Properties) -> None:
    """Raises ApplyFailed, and ContainerGone if the container has ended meanwhile."""
    try:
        await runtime.set(container, values)
    except ApplyFailed:
        await runtime.values(container, values)
        raise


def _set_text(values: Properties) -> str:
    return "restored: " + ", ".join(f"{name} is {value}" for name, value in values.items()) if values else ""


def _gone(pod: str, container: str, container_id: str = "") -> RestoredContainer:
    return RestoredContainer(pod, container, container_id, RestoreOutcome.GONE, "has ended, nothing to restore")


# --- the mode nri -----------------------------------------------------------------------------------------------------

LIST_S = 10.0
"""Seconds to wait for the runtime's lists."""
ONE_EVENT = 1 << (pb.REMOVE_CONTAINER - 1)
"""Subscription to one event, because no events mean all events."""


class NriRestorer:
    """Connects on the first use. Updates are requested, and not returned in the answer to Synchronize, because the
    runtime then reports which of them failed."""

    def __init__(self, settings: QrmSettings) -> None:
        self._parts = SynchronizedParts()
        self._refusal: CallFailed | None = None
        self._complete = asyncio.Event()  # the lists, or their refusal
        self._containers: dict[str, pb.Container] = {}
        self._session = NriSession(
            settings.nri_socket,
            lambda: {
                "Configure": self._configure,
                "Synchronize": self._synchronize,
                "RemoveContainer": _ignore,
                "StateChange": _ignore,  # runtimes with an NRI before 0.12 send RemoveContainer in this form
                "Shutdown": _ignore,
            },
            name=settings.nri_name,
            index=settings.nri_index,
            failed=lambda _kind, _message: None,
        )
        self._connection: asyncio.Task[tuple[str, str]] | None = None

    async def close(self) -> None:
        """Close the connection to the runtime."""
        if self._connection is not None:
            self._connection.cancel()
            await asyncio.gather(self._connection, return_exceptions=True)

    async def containers(self) -> list[FoundContainer]:
        """The containers of all pods that are created or started. Raises ApplyFailed."""
        self._connection = asyncio.create_task(self._session.once(), name="nri-restore")
        listed = asyncio.create_task(self._complete.wait(), name="nri-lists")
        await asyncio.wait({self._connection, listed}, timeout=LIST_S, return_when=asyncio.FIRST_COMPLETED)
        listed.cancel()
        if not self._complete.is_set():
            lost = self._connection.done()
            raise ApplyFailed(self._connection.result()[1] if lost else f"no lists within {LIST_S:g} s")
        if self._refusal is not None:
            raise ApplyFailed(f"{self._session.socket}: Synchronize: {self._refusal}")
        pods = {each.id: each for each in self._parts.pods}
        self._containers = {each.id: each for each in self._parts.containers}
        return [
            FoundContainer(each.id, each.name, f"{pod.namespace}/{pod.name}", pod.uid)
            for each in self._containers.values()
            if each.state in EXISTING and (pod := pods.get(each.pod_sandbox_id)) is not None
        ]

    async def values(self, container: FoundContainer, names: Iterable[str]) -> Properties | None:
        """Those of the properties that a container has."""
        return properties_in(self._containers[container.id].linux.resources, names)

    async def set(self, container: FoundContainer, properties: Properties) -> None:
        """Set properties on a container. Raises ApplyFailed."""
        try:
            failed = await self._session.update([update(container.id, properties)])
        except CallFailed as error:
            raise ApplyFailed(f"UpdateContainers: {error}") from None
        if failed:
            raise ApplyFailed("UpdateContainers: the runtime could not update the container; see its log")

    async def _configure(self, _payload: bytes) -> bytes:
        return pb.ConfigureResponse(events=ONE_EVENT).SerializeToString()

    async def _synchronize(self, payload: bytes) -> bytes:
        request = pb.SynchronizeRequest.FromString(payload)
        try:
            self._parts.add(request)
        except CallFailed as error:
            self._refusal = error
            self._complete.set()
            raise
        if not request.more:
            asyncio.get_running_loop().call_soon(self._complete.set)
        return pb.SynchronizeResponse(more=request.more).SerializeToString()


async def _ignore(_payload: bytes) -> bytes:
    return b""
