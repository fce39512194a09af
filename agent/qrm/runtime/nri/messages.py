"""Messages of NRI from and to the values of the manager.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from agent import cpuset
from agent.qos import QosClass
from agent.qrm.manager.admission import ApplyFailed, ContainerOptions
from agent.qrm.manager.allocation import CPUSET_CPUS, CPUSET_MEMS, CPUSETS, UNIFIED, BindMount, Properties, Value
from agent.qrm.manager.request import CPU, MEMORY, NIC
from agent.qrm.pods import MAIN_ANNOTATION, PodContainer, QrmPod
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb

OOM_SCORE = "OomScoreAdj"
"""The property that NRI sets only when a container is created."""
EVENTS = (
    pb.RUN_POD_SANDBOX,
    pb.STOP_POD_SANDBOX,
    pb.REMOVE_POD_SANDBOX,
    pb.CREATE_CONTAINER,
    pb.POST_START_CONTAINER,
    pb.UPDATE_CONTAINER,
    pb.STOP_CONTAINER,
    pb.REMOVE_CONTAINER,
)
EVENT_MASK = sum(1 << (event - 1) for event in EVENTS)
OF_DAEMON_SETS = frozenset({"controller-revision-hash", "pod-template-generation"})
"""Labels of the pods of DaemonSets (and StatefulSets)."""


def set_properties(resources: pb.LinuxResources, properties: Properties) -> None:
    """Set properties in a message, except OomScoreAdj, which is not a part of it."""
    for name, value in properties.items():
        if name.startswith(UNIFIED):
            resources.unified[name.removeprefix(UNIFIED)] = str(value)
        elif name == CPUSET_CPUS:
            resources.cpu.cpus = str(value)
        elif name == CPUSET_MEMS:
            resources.cpu.mems = str(value)
        elif (field := _optional(resources, name)) is not None:
            field.value = int(value)


def properties_in(resources: pb.LinuxResources, names: Iterable[str]) -> dict[str, Value]:
    """The properties with these names that a message sets. Sets of CPUs and memory nodes are in canonical form; invalid
    sets are returned unchanged."""
    found: dict[str, Value] = {}
    for name in sorted(names):
        if name in CPUSETS:
            text = resources.cpu.cpus if name == CPUSET_CPUS else resources.cpu.mems
            if text:
                found[name] = cpuset.canonical_or_unchanged(text)
        elif name.startswith(UNIFIED):
            if (key := name.removeprefix(UNIFIED)) in resources.unified:
                found[name] = resources.unified[key]
        else:
            value = _read(resources, name)
            if value is not None:
                found[name] = value
    return found


_FIELDS = {
    "CpuPeriod": ("cpu", "period"),
    "CpuQuota": ("cpu", "quota"),
    "CpuShares": ("cpu", "shares"),
    "MemoryLimitInBytes": ("memory", "limit"),
    "MemorySwapLimitInBytes": ("memory", "swap"),
}


def _optional(resources: pb.LinuxResources, name: str) -> pb.OptionalInt64 | pb.OptionalUInt64 | None:
    """The field of a property; None for a property that LinuxResources does not have."""
    if name not in _FIELDS:
        return None
    part, field = _FIELDS[name]
    found: pb.OptionalInt64 | pb.OptionalUInt64 = getattr(getattr(resources, part), field)
    return found


def _read(resources: pb.LinuxResources, name: str) -> int | None:
    if name not in _FIELDS:
        return None
    part, field = _FIELDS[name]
    message = getattr(resources, part)
    return int(getattr(message, field).value) if message.HasField(field) else None


def adjustment(
    options: ContainerOptions, container: pb.Container, devices: Iterable[pb.LinuxDevice]
) -> pb.ContainerAdjustment:
    """The changes to a container that is about to be created. Environment variables of the container itself remain, as
    in the kubelet."""
    made = pb.ContainerAdjustment(annotations=options.annotations, mounts=map(_mount, options.mounts))
    own = {each.partition("=")[0] for each in container.env}
    made.env.extend(pb.KeyValue(key=key, value=value) for key, value in sorted(options.envs.items()) if key not in own)
    permissions = {each.container_path: each.permissions for each in options.devices}
    for device in devices:
        made.linux.devices.append(device)
        if denied := _denied(permissions.get(device.path, "")):
            rule = pb.LinuxDeviceCgroup(type=device.type, access=denied)  # allow is false
            rule.major.value, rule.minor.value = device.major, device.minor
            made.linux.resources.devices.append(rule)
    set_properties(made.linux.resources, options.properties)
    if OOM_SCORE in options.properties:
        made.linux.oom_score_adj.value = int(options.properties[OOM_SCORE])
    return made


def _denied(permissions: str) -> str:
    """What a rule has to deny, because runtimes allow reading and writing of each added device. They allow containers
    to make nodes of all devices (m), and without permissions, nothing is denied."""
    return "".join(each for each in "rw" if permissions and each not in permissions)


def _mount(mount: BindMount) -> pb.Mount:
    options = ["rbind", "rprivate", "ro" if mount.read_only else "rw"]
    return pb.Mount(destination=mount.container_path, source=mount.host_path, type="bind", options=options)


def update(container_id: str, properties: Properties, *, ignore_failure: bool = False) -> pb.ContainerUpdate:
    """The update of a container. Raises ApplyFailed if a message cannot have these properties."""
    made = pb.ContainerUpdate(container_id=container_id, ignore_failure=ignore_failure)
    try:
        set_properties(made.linux.resources, properties)
    except ValueError as error:
        raise ApplyFailed(f"the properties cannot be sent to the runtime: {error}") from None
    return made


def cpus_of(resources: pb.LinuxResources) -> cpuset.CpuSet:
    """The CPUs of a message, empty without a valid set."""
    try:
        return cpuset.parse(resources.cpu.cpus)
    except ValueError:
        return cpuset.EMPTY


def without_cpus(updates: Iterable[pb.ContainerUpdate], cpus: cpuset.CpuSet) -> list[pb.ContainerUpdate]:
    """The updates with these CPUs removed from their sets; updates without a remaining CPU are omitted."""
    kept = []
    for each in updates:
        left = cpus_of(each.linux.resources) - cpus
        if left:
            each.linux.resources.cpu.cpus = cpuset.text(left)
        if left or not each.linux.resources.cpu.cpus:
            kept.append(each)
    return kept


def qos_class(sandbox: pb.PodSandbox) -> QosClass | None:
    """The QoS class that the parent control group of a pod shows, None without such a group."""
    parent = sandbox.linux.cgroup_parent.lower()
    if "kubepods" not in parent:
        return None
    if "besteffort" in parent:
        return QosClass.BEST_EFFORT
    return QosClass.BURSTABLE if "burstable" in parent else QosClass.GUARANTEED


def pod_from_runtime(sandbox: pb.PodSandbox, container: pb.Container, resources: Collection[str]) -> QrmPod | None:
    """The pod as far as the runtime knows it, if that is all that matters for its allocations; otherwise None.

    The runtime knows limits, not requests, and neither the owner nor the other containers. It knows all that matters of
    a Guaranteed pod (requests equal limits) with one container: its resources are those of the pod, and the pod's
    annotation names it as the main container, so that it is not an init container. `resources` are those that plug-ins
    serve; those of other names are unknown.
    """
    if qos_class(sandbox) is not QosClass.GUARANTEED or set(resources) - {CPU, MEMORY, NIC}:
        return None
    if sandbox.annotations.get(MAIN_ANNOTATION) != container.name or OF_DAEMON_SETS & sandbox.labels.keys():
        return None
    whole, own = sandbox.linux.pod_resources, container.linux.resources
    if _amounts(whole) != _amounts(own) or sandbox.linux.HasField("pod_overhead"):
        return None
    requests = _amounts(own)
    if requests is None:
        return None
    return QrmPod(
        uid=sandbox.uid,
        namespace=sandbox.namespace,
        name=sandbox.name,
        labels=own_labels(sandbox.labels),
        annotations=dict(sandbox.annotations),
        qos_class=QosClass.GUARANTEED,
        containers=(PodContainer(container.name, requests),),
    )


def _amounts(resources: pb.LinuxResources) -> dict[str, float] | None:
    """CPUs and bytes that the limits allow; None if one of them is unknown."""
    cpu, memory = resources.cpu, resources.memory
    if cpu.quota.value <= 0 or not cpu.period.value or memory.limit.value <= 0:
        return None
    return {CPU: cpu.quota.value / cpu.period.value, MEMORY: float(memory.limit.value)}


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of the pod itself, without those that the kubelet adds for the runtime."""
    return {key: value for key, value in labels.items() if not key.startswith("io.kubernetes.")}
