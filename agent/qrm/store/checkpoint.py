"""The checkpoint of pod resources: encodes and decodes Katalyst's file format, with its checksum.

    {"Data": {"PodResourceEntries": [{"PodUID": …, "ContainerName": …, "ResourceName": …, "AllocationInfo": …}]},
     "Checksum": …}

`AllocationInfo` is JSON as a string within the JSON, as written by Katalyst's resource manager. The patched kubelet
instead writes the bytes of the protobuf message, which Go's JSON encoder damages if they are not valid UTF-8; undamaged
messages can be read.

Pure: no I/O, no clock. `files.py` writes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from agent.qrm.manager.allocation import AllocationInfo, Allocations, from_json, to_json
from watcher.decoding.json_text import decode_json

CHECKPOINT = "kubelet_qrm_checkpoint"
"""Name of the checkpoint file, as in Katalyst's kubelet."""


class BadCheckpoint(ValueError):
    """The data is not a checkpoint, or was changed after it was written. The message does not contain the file name."""


class Entry(msgspec.Struct, frozen=True, rename="pascal"):
    """One allocation in the format of the file."""

    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    allocation_info: str


class _CheckpointData(msgspec.Struct, frozen=True, rename="pascal"):
    pod_resource_entries: tuple[Entry, ...] | None


class _File(msgspec.Struct, frozen=True, rename="pascal"):
    data: _CheckpointData
    checksum: int


def encode(allocations: Allocations) -> bytes:
    """Encode the allocations; equal allocations have equal bytes."""
    return encode_entries(entries_of(allocations))


def entries_of(allocations: Allocations) -> tuple[Entry, ...]:
    """The allocations in the format of the file, sorted by pod, container and resource."""
    return tuple(Entry(pod, container, resource, to_json(info)) for pod, container, resource, info in allocations)


def encode_entries(entries: tuple[Entry, ...]) -> bytes:
    """The content of the file. The checksum takes milliseconds for a hundred pods."""
    return msgspec.json.encode(_File(_CheckpointData(entries), checksum(entries)))


def decode(data: bytes, *, from_message: Callable[[bytes], AllocationInfo] | None = None) -> Allocations:
    """Decode a checkpoint of `encode`, of Katalyst's resource manager or of the patched kubelet. `from_message` parses
    a protobuf message; without it the kubelet's format is rejected.

    Raises BadCheckpoint.
    """
    try:
        file = decode_json(data, type=_File)
    except msgspec.MsgspecError as error:
        raise BadCheckpoint(f"not a checkpoint of pod resources: {error}") from None
    entries = file.data.pod_resource_entries
    expected = checksum(entries)
    if file.checksum != expected:
        raise BadCheckpoint(f"the checksum is {file.checksum}, expected {expected}: the file was damaged or edited")
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
        raise ValueError("a protobuf message that the kubelet damaged when it wrote it as text")
    if from_message is None:
        raise ValueError("a protobuf message, which needs grpcio: run pip install '.[qrm]' in a clone of load-watcher")
    return from_message(text.encode())


def checksum(entries: Sequence[Entry] | None) -> int:
    """FNV-1a hash of the text that Go's spew package prints for the data, with the entries in the order of the file."""
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
    """The 32-bit Fowler–Noll–Vo hash, variant 1a."""
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
