"""Sets properties of containers through cgroup files, for nodes where the socket of the container runtime is not
accessible.

`cpuset.cpus` is written before `cpuset.mems`, as in Katalyst; if the second write fails, the first is undone, so that a
container never has only half of a decision. `Unified.<file>` is any other file of the group; on version 1 the part of
the file name before the first dot is the controller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import closing, suppress

from agent import cpuset
from agent.cgroups import paths
from agent.cgroups.base import CgroupDirectory
from agent.cgroups.detection import Layout, NoCgroups, Version, find_layout
from agent.cgroups.errors import CgroupError, CgroupGone, CgroupUnapplied
from agent.cgroups.paths import Driver
from agent.qos import QosClass
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, UNIFIED, Properties, Value
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.settings import QrmSettings

log = logging.getLogger(__name__)

FILES = {CPUSET_CPUS: "cpuset.cpus", CPUSET_MEMS: "cpuset.mems"}
CONTROLLER = "cpuset"
CLASSES = (QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT)
"""QoS classes to search for the group of a pod whose class is unknown."""


def layout_finder(settings: QrmSettings) -> Callable[[], Layout]:
    """A function that detects the cgroup layout on each call, because the kubelet may start after this process."""
    driver = None if settings.cgroup_driver is None else Driver(settings.cgroup_driver)
    return lambda: find_layout(str(settings.cgroup), driver=driver, nest=settings.cgroup_nest)


class CgroupRuntime:
    """Writes cgroup files. `find` detects the cgroup layout on each call, because the kubelet may start after this
    process."""

    def __init__(self, find: Callable[[], Layout]) -> None:
        self._find = find

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Set properties on a running container. Raises ApplyFailed."""
        try:
            await asyncio.to_thread(self._apply, pod, container, properties)
        except (CgroupError, NoCgroups, ValueError) as error:
            raise _failure(pod, container, error) from None

    async def values(self, pod: QrmPod, container: PodContainer, names: Iterable[str]) -> Properties:
        """The content of the files of a container's group that are named by `Unified.` properties. Raises
        ApplyFailed."""
        try:
            return await asyncio.to_thread(self._values, pod, container, sorted(names))
        except (CgroupError, NoCgroups, ValueError) as error:
            raise _failure(pod, container, error) from None

    def _values(self, pod: QrmPod, container: PodContainer, names: Iterable[str]) -> Properties:
        found: dict[str, Value] = {}
        layout = self._find()
        for name in names:
            if name.startswith(UNIFIED):
                file = name.removeprefix(UNIFIED)
                with closing(open_container(layout, file.partition(".")[0], pod, container.id)) as directory:
                    found[name] = read_text(directory, file)
        return found

    def _apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        layout = self._find()
        strange = [name for name in properties if name not in FILES and not name.startswith(UNIFIED)]
        if strange:
            raise ValueError(f"{strange[0]} cannot be set through cgroup files: use the mode cri")
        self._set_cpuset(layout, pod, container, properties)
        for name, value in properties.items():
            if name.startswith(UNIFIED):
                file = name.removeprefix(UNIFIED)
                with closing(open_container(layout, file.partition(".")[0], pod, container.id)) as directory:
                    if read_text(directory, file) != str(value):
                        directory.write(file, str(value))

    def _set_cpuset(self, layout: Layout, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Write both files or neither."""
        wanted = [(file, str(properties[name])) for name, file in FILES.items() if name in properties]
        if not wanted:
            return
        directory = open_container(layout, CONTROLLER, pod, container.id)
        written: list[tuple[str, str]] = []
        try:
            for file, value in wanted:
                before = read_text(directory, file)
                if is_same_set(before, value):
                    continue
                if not before and layout.version is Version.V2:  # inherited, which processes in the group prevent later
                    before = read_text(directory, f"{file}.effective")
                directory.write(
                    file,
                    value,
                    hint="Check that these exist on this machine, are online, and belong to the parent group.",
                )
                written.append((file, before))
                if not is_same_set(found := read_text(directory, file), value):
                    raise CgroupUnapplied(
                        f"{value!r} was written, but the file contains {found!r}", path=directory.path
                    )
        except CgroupError:
            self._restore(directory, written)
            raise
        finally:
            directory.close()

    @staticmethod
    def _restore(directory: CgroupDirectory, written: list[tuple[str, str]]) -> None:
        for file, before in reversed(written):
            try:
                directory.write(file, before or "\n")
            except CgroupGone:
                return  # the container has ended
            except CgroupError as error:
                log.error("cannot restore %s to %r: %s", file, before, error)


def _failure(pod: QrmPod, container: PodContainer, error: Exception) -> ApplyFailed:
    return ApplyFailed(f"{pod.key}, container {container.name}: {with_hint(error)}")


def with_hint(error: Exception) -> str:
    """The text of an error with its cure, if it has one."""
    return f"{error}. {getattr(error, 'hint', '')}".rstrip(". ")


def open_pod(
    layout: Layout, controller: str, uid: str, classes: Iterable[QosClass] = CLASSES
) -> CgroupDirectory | None:
    """Open the directory of a pod's group, which has one of these QoS classes; None if there is none. The caller closes
    it. Raises CgroupError, NoCgroups, and ValueError for an invalid UID."""
    tree = layout.root if layout.version is Version.V2 else f"{layout.root}/{controller}"
    with closing(CgroupDirectory.at(tree)) as root:
        for qos in classes:
            with suppress(CgroupGone):
                return root.walk(layout.path_of(paths.pod_segments(qos, uid)))
    return None


def open_container(layout: Layout, controller: str, pod: QrmPod, container_id: str) -> CgroupDirectory:
    """Open the directory of a container's group; the caller closes it. Raises CgroupError, NoCgroups, and ValueError
    for an invalid UID."""
    classes = (QosClass(pod.qos_class),) if pod.qos_class in CLASSES else CLASSES
    above = open_pod(layout, controller, pod.uid, classes)
    if above is not None:
        with closing(above):
            for name in above.directories():
                if paths.container_id(name) == container_id:
                    return above.child(name)
    raise CgroupGone("the container has no group here: it has ended or is just starting", path=layout.root)


def read_text(directory: CgroupDirectory, file: str) -> str:
    """The content of a file without surrounding whitespace. Raises CgroupError."""
    return directory.parse(file, lambda content: content.decode("ascii").strip(), expected="text")


def is_same_set(text: str, wanted: str) -> bool:
    """Whether both texts are the same set; the kernel may format it differently."""
    try:
        return cpuset.parse(text) == cpuset.parse(wanted)
    except ValueError:
        return False
