"""The base of the built-in resource plug-ins, whose state is one record per container with an allocation.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec

from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint


class ContainerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A container with an allocation; plug-ins add what it has. An adopted container has the role ""."""

    pod_uid: str
    container_name: str
    # With factories, role and request are written also if they are empty: earlier versions require them.
    pod_role: str = msgspec.field(default_factory=str)
    request: int = msgspec.field(default_factory=int)
    pod_namespace: str = ""
    pod_name: str = ""
    container_type: int = ContainerType.MAIN
    container_index: int = 0

    @classmethod
    def of(cls, request: ResourceRequest, /, **own: Any) -> Self:
        """The record of the container of a request, with the fields `own`."""
        return cls(**_names(request), **own)

    def named(self, request: ResourceRequest) -> Self:
        """The same allocation with the names of the request."""
        return msgspec.structs.replace(self, **_names(request))


def _names(request: ResourceRequest) -> dict[str, Any]:
    return {
        "pod_uid": request.pod_uid,
        "container_name": request.container_name,
        "pod_role": request.pod_role,
        "pod_namespace": request.pod_namespace,
        "pod_name": request.pod_name,
        "container_type": request.container_type,
        "container_index": request.container_index,
    }


RecordT = TypeVar("RecordT", bound=ContainerRecord)
DocumentT = TypeVar("DocumentT", bound=msgspec.Struct)
StoredRecords = dict[str, dict[str, RecordT]]
"""By pod UID and container name, as in a state document."""


class Adopted(NamedTuple):
    """By pod UID and name: the containers that keep the allocation of the checkpoint, and those whose value in the
    checkpoint is invalid, with the reason."""

    kept: Sequence[tuple[str, str]] = ()
    invalid: Mapping[tuple[str, str], str] = {}


class BuiltinPlugin(ABC, Generic[RecordT]):
    """A resource plug-in of this package: a `ResourcePlugin` (agent/qrm/plugins/base.py). `capacity` and `allocatable`
    are by NUMA node, in the unit of the resource."""

    name: str
    resource: str
    aligned = True
    reconciled = True

    def __init__(self, *, capacity: Mapping[int, float], allocatable: Mapping[int, float]) -> None:
        self._records: dict[tuple[str, str], RecordT] = {}
        self._capacity = capacity
        self._allocatable = allocatable

    # --- calls of the manager ------------------------------------------------------------------------------------

    @abstractmethod
    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """NUMA nodes for a container: None means no preference, empty means that no nodes fit."""

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """The allocation for a request; None for an init container, which gets nothing. An earlier allocation for the
        same request is returned unchanged, and replaced if the request has changed. Raises CannotAllocate; the
        container then keeps its earlier allocation."""
        if request.container_type == ContainerType.INIT:
            return None
        kept = self._satisfying(request)
        if kept is None:
            kept = self._new_record(request)
        elif not kept.pod_role:
            kept = kept.named(request)
        self._records[request.pod_uid, request.container_name] = kept
        return self._infos()(kept)

    def adopt(self, allocations: Iterable[tuple[str, str, AllocationInfo]]) -> Adopted:
        """Keep what containers have in the manager's checkpoint (pod UID, container, allocation) and this state lacks,
        because its file was lost."""
        return Adopted()

    def remove(self, pod_uid: str) -> None:
        """Release the allocations of a pod that has ended."""
        self._records = {key: record for key, record in self._records.items() if key[0] != pod_uid}

    def allocations(self) -> dict[str, dict[str, AllocationInfo]]:
        """The current allocations by pod UID and container."""
        info_of = self._infos()
        found: dict[str, dict[str, AllocationInfo]] = {}
        for (pod, container), record in sorted(self._records.items(), key=lambda item: item[0]):
            if (info := info_of(record)) is not None:
                found.setdefault(pod, {})[container] = info
        return found

    # --- queries -------------------------------------------------------------------------------------------------

    def by_node(self, pod_uid: str, container_name: str) -> dict[int, float]:
        """The quantity that a container has on each NUMA node; empty for an unknown container."""
        record = self._records.get((pod_uid, container_name))
        return {} if record is None else dict(self._quantities(record))

    def allocatable_by_node(self) -> dict[int, float]:
        """The quantity on each NUMA node that pods may use."""
        return dict(self._allocatable)

    def capacity_by_node(self) -> dict[int, float]:
        """The quantity on each NUMA node."""
        return dict(self._capacity)

    # --- storage -------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The complete state as JSON-compatible values."""
        stored: StoredRecords[RecordT] = {}
        for (pod, container), record in sorted(self._records.items(), key=lambda item: item[0]):
            stored.setdefault(pod, {})[container] = record
        plain: dict[str, Any] = msgspec.to_builtins(self._document(stored), str_keys=True)
        return plain

    @abstractmethod
    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state from `document`. Raises ValueError if it is invalid; the state then remains unchanged."""

    @staticmethod
    def _read(document: Mapping[str, Any], type: type[DocumentT], of: str) -> DocumentT:
        """Raises ValueError with the name of the plug-in, `of`."""
        try:
            return msgspec.convert(document, type, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a state of the {of} plug-in: {error}") from None

    # --- parts of each plug-in -----------------------------------------------------------------------------------

    @abstractmethod
    def _satisfying(self, request: ResourceRequest) -> RecordT | None:
        """The record of the container, if it satisfies the request."""

    @abstractmethod
    def _new_record(self, request: ResourceRequest) -> RecordT:
        """A new record for the request, which replaces that of the container. Raises CannotAllocate."""

    @abstractmethod
    def _infos(self) -> Callable[[RecordT], AllocationInfo | None]:
        """A function from records to allocations, None for a record that has nothing now. What all records share is
        computed once."""

    @abstractmethod
    def _quantities(self, record: RecordT) -> Mapping[int, float]:
        """The quantity of a container by NUMA node."""

    @abstractmethod
    def _document(self, pods: StoredRecords[RecordT]) -> msgspec.Struct: ...

    # --- shared parts --------------------------------------------------------------------------------------------

    def _record_of(self, request: ResourceRequest) -> RecordT | None:
        return self._records.get((request.pod_uid, request.container_name))

    def _without(self, request: ResourceRequest) -> list[RecordT]:
        """All records except that of the container itself, which a new allocation replaces."""
        own = (request.pod_uid, request.container_name)
        return [record for key, record in self._records.items() if key != own]


def by_container(pods: StoredRecords[RecordT]) -> dict[tuple[str, str], RecordT]:
    """The records of a state document by pod UID and container name."""
    return {(each.pod_uid, each.container_name): each for pod in pods.values() for each in pod.values()}
