"""The checkpoint of the pod resources as bytes: Katalyst's file, with its checksum.

    {"Data": {"PodResourceEntries": [{"PodUID": …, "ContainerName": …, "ResourceName": …, "AllocationInfo": …}]},
     "Checksum": …}

`AllocationInfo` is JSON as a text within the JSON, as Katalyst's resource manager writes it. The patched kubelet writes
the bytes of the protobuf message there, which Go's JSON damages where they are no UTF-8 (reference/qrm.md §3.11); so
far as they are whole, they are read too.

Pure: no I/O, no clock. `files.py` puts it on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from agent.qrm.manager.allocation import AllocationInfo, Allocations, from_json, to_json


class BadCheckpoint(ValueError):
    """Not a checkpoint, or not as it was written. The message says what is wrong, not where the file is."""


class Entry(msgspec.Struct, frozen=True, rename="pascal"):
    """One allocation, as the file has it."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    allocation_info: str


class _Data(msgspec.Struct, frozen=True, rename="pascal"):
    pod_resource_entries: tuple[Entry, ...] | None


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: _Data
    checksum: int


def encode(allocations: Allocations) -> bytes:
    """Sorted by pod, container and resource, so that equal allocations are equal bytes."""
    entries = tuple(Entry(pod, container, resource, to_json(info)) for pod, container, resource, info in allocations)
    return msgspec.json.encode(_File(_Data(entries), checksum(entries)))


def decode(data: bytes, *, from_message: Callable[[bytes], AllocationInfo] | None = None) -> Allocations:
    """What `encode` or either upstream wrote. `from_message` reads a protobuf message; without it the patched
    kubelet's form is refused.

    Raises BadCheckpoint.
    """
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.MsgspecError as error:
        raise BadCheckpoint(f"it is no checkpoint of pod resources: {error}") from None
    entries = file.data.pod_resource_entries
    expected = checksum(entries)
    if file.checksum != expected:
        raise BadCheckpoint(f"its checksum is {file.checksum}, and its content's {expected}: it was damaged or edited")
    allocations = Allocations()
    for entry in entries or ():
        try:
            info = _info(entry.allocation_info, from_message)
        except ValueError as error:
            where = f"pod {entry.pod_uid}, container {entry.container_name}, resource {entry.resource_name}"
            raise BadCheckpoint(f"{where}: {error}") from None
        allocations.set(entry.pod_uid, entry.container_name, entry.resource_name, info)
    return allocations


def _info(text: str, from_message: Callable[[bytes], AllocationInfo] | None) -> AllocationInfo:
    if text.startswith("{"):  # the first byte of such a message is 0x0a, 0x10, 0x18, …
        return from_json(text)
    if "\ufffd" in text:
        raise ValueError("a protobuf message that was damaged when the kubelet wrote it as text")
    if from_message is None:
        raise ValueError("a protobuf message, which needs the extra: pip install 'load-watcher[qrm]'")
    return from_message(text.encode())


def checksum(entries: Sequence[Entry] | None) -> int:
    """FNV-1a of what Go's spew prints of the data: entries in the order of the file."""
    printed = "<nil>"
    if entries is not None:
        printed = "[" + " ".join(map(_printed, entries)) + "]"
    whole = f"(checkpoint.checkpointData){{PodResourceEntries:([]checkpoint.PodResourcesEntry){printed}}}"
    return fnv1a(whole.encode())


def _printed(entry: Entry) -> str:
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container_name} "
        f"ResourceName:(string){entry.resource_name} AllocationInfo:(string){entry.allocation_info}}}"
    )


def fnv1a(data: bytes) -> int:
    """The 32-bit hash of Fowler, Noll and Vo, variant 1a."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
