"""Returns the cgroup files of containers to their values without allocations.

Files name containers by id, the checkpoint by name. Therefore all containers of a pod are restored that have a cpuset
of their own; containers that never had one inherit that of the pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from agent.cgroups import paths
from agent.cgroups.base import CgroupDirectory
from agent.cgroups.detection import Layout, NoCgroups, Version
from agent.cgroups.errors import CgroupError, CgroupGone, CgroupUnsupported
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSETS, UNIFIED, Properties
from agent.qrm.pods import QrmPod
from agent.qrm.runtime.cgroup import CONTROLLER, FILES, is_same_set, open_container, open_pod, read_text, with_hint


@dataclass(slots=True)
class RestoredGroup:
    """One container of a pod: the values that were written, by property, and why others were not."""

    id: str
    written: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    gone: bool = False


class CgroupRestorer:
    """Restores pods of `layout`. `originals` returns the stored values of a container by its id."""

    def __init__(self, layout: Layout, originals: Callable[[str], Properties]) -> None:
        self._layout = layout
        self._originals = originals

    def restore(self, uid: str, assigned: Mapping[str, frozenset[str]]) -> list[RestoredGroup]:
        """Restore the containers of a pod; empty if all have ended. `assigned` has the properties to restore, and
        for cpusets the values with which the kubelet's managers replace them: "" inherits. Raises ApplyFailed."""
        try:
            above = open_pod(self._layout, CONTROLLER, uid)
            if above is None:
                return []
            with closing(above):
                ids = {paths.container_id(name): name for name in above.directories()}
                return [
                    self._restore(RestoredGroup(id), above, name, uid, assigned)
                    for id, name in sorted(ids.items(), key=lambda item: item[1])
                    if id is not None
                ]
        except (CgroupError, NoCgroups, ValueError) as error:
            raise ApplyFailed(with_hint(error)) from None

    def _restore(
        self, group: RestoredGroup, above: CgroupDirectory, name: str, uid: str, assigned: Mapping[str, frozenset[str]]
    ) -> RestoredGroup:
        originals = self._originals(group.id)
        try:
            with closing(above.child(name)) as directory:
                for cpuset in sorted(CPUSETS & assigned.keys()):
                    values = frozenset({str(originals[cpuset])}) if cpuset in originals else assigned[cpuset]
                    self._restore_set(group, above, directory, cpuset, values)
            for other, value in originals.items():
                if other.startswith(UNIFIED) and other in assigned:
                    self._restore_file(group, uid, other, str(value))
        except CgroupGone:
            group.gone = True
        except (CgroupError, NoCgroups, ValueError) as error:
            group.failed = with_hint(error)
        return group

    def _restore_set(
        self,
        group: RestoredGroup,
        above: CgroupDirectory,
        directory: CgroupDirectory,
        cpuset: str,
        values: frozenset[str],
    ) -> None:
        """Restore a cpuset to the only one of `values`; leave it if it is inherited or one of several."""
        file = FILES[cpuset]
        # A group with processes cannot get an empty set (ENOSPC), also in version 2: it gets that of the pod.
        inherited = read_text(above, f"{file}.effective" if self._layout.version is Version.V2 else file)
        try:
            found = read_text(directory, file)
        except CgroupUnsupported:
            return  # without the controller, no cpuset was set
        if not found or any(is_same_set(found, value or inherited) for value in (*values, "")):
            return
        if len(values) > 1:
            raise ValueError(
                "the kubelet assigns different sets to the containers of this pod, and cgroup files do not show which "
                "is whose; restore with --mode cri"
            )
        (value,) = values
        directory.write(file, value or inherited)
        group.written[cpuset] = value or inherited

    def _restore_file(self, group: RestoredGroup, uid: str, property_name: str, value: str) -> None:
        file = property_name.removeprefix(UNIFIED)
        with closing(open_container(self._layout, file.partition(".")[0], QrmPod(uid), group.id)) as directory:
            if read_text(directory, file) != value:
                directory.write(file, value)
                group.written[property_name] = value
