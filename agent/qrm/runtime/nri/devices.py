"""Devices of the host for a container that is about to be created."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence

from agent.qrm.manager.allocation import DeviceNode
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb


async def read_devices(nodes: Sequence[DeviceNode]) -> tuple[list[pb.LinuxDevice], str]:
    """The devices with their numbers on the host, and why others cannot be read, "" if all can. The manager needs the
    /dev of the host."""
    if not nodes:
        return [], ""
    read = await asyncio.to_thread(lambda: [_read(node) for node in nodes])
    found = [each for each in read if not isinstance(each, str)]
    failed = [each for each in read if isinstance(each, str)]
    if not failed:
        return found, ""
    return found, f"cannot read {', '.join(failed)}; mount /dev of the host into the pod of the manager"


def _read(node: DeviceNode) -> pb.LinuxDevice | str:
    """The device, or its path and why it cannot be read."""
    try:
        found = os.stat(node.host_path)
    except OSError as error:
        return f"{node.host_path}: {error.strerror}"
    if not (stat.S_ISBLK(found.st_mode) or stat.S_ISCHR(found.st_mode)):
        return f"{node.host_path}: it is not a device"
    return pb.LinuxDevice(
        path=node.container_path,
        type="b" if stat.S_ISBLK(found.st_mode) else "c",
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        file_mode=pb.OptionalFileMode(value=stat.S_IMODE(found.st_mode)),
        uid=pb.OptionalUInt32(value=found.st_uid),
        gid=pb.OptionalUInt32(value=found.st_gid),
    )
