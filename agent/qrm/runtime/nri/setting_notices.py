"""Notices of `config check` about valid settings of [qrm]: those that have no effect in their mode, and what the mode
nri requires of the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.qrm.settings import CRI, NRI, REFUSE, read_settings

USED_IN: Mapping[str, tuple[str, ...]] = {
    "runtime_socket": (CRI,),
    "nri_socket": (NRI,),
    "nri_name": (NRI,),
    "nri_index": (NRI,),
    "runtime_config": (NRI,),
    "evict_inadmissible": (NRI, CRI),
    "publish_capacity": (NRI, CRI),
}
"""The modes that use a setting; other settings are used in more modes."""


def notices(given: Mapping[str, Any], *, cwd: Path) -> Iterator[str]:
    """Notices about the table `given`, without those of its problems."""
    own, _ = read_settings(given, cwd=cwd)
    for name, modes in USED_IN.items():
        if name in given and getattr(own, name) and own.mode not in modes:
            instead = " or ".join(f'"{mode}"' for mode in modes)
            yield f'qrm.{name} has no effect with qrm.mode = "{own.mode}": remove it, or set qrm.mode = {instead}'
    if own.mode != NRI:
        return
    if not own.nri_socket.is_socket():
        yield (
            f"this machine has no socket {own.nri_socket}: turn NRI on in the container runtime, or set "
            f'qrm.nri_socket, for example qrm.nri_socket = "/var/run/nri/nri.sock"'
        )
    if own.on_failure == REFUSE:
        yield (
            'qrm.on_failure = "refuse": while the manager does not run, only a container runtime that requires the NRI '
            f"plug-in {own.nri_name} refuses containers; load-watcher doctor --only qrm checks it"
        )
