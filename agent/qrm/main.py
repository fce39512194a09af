"""The QoS Resource Manager process: builds the components from the settings, runs them, and shuts them down."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.qrm.cluster.client import QrmClusterClient
from agent.qrm.cluster.own_managers import ManagerReport, objection
from agent.qrm.cluster.pod_source import NodePodSource, NodePodSources, api_pods, kubelet_pods
from agent.qrm.grpc.contact import SilenceReport
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.messages import info_from_bytes
from agent.qrm.grpc.plugin_client import PluginEndpoint
from agent.qrm.grpc.pod_resources import PodResources
from agent.qrm.grpc.registration import LegacyRegistration, Registry, ResourcePlugins
from agent.qrm.grpc.socket_server import CannotServe, SocketServer
from agent.qrm.manager.admission import ADMISSION_GRACE_S, Admission, Apply
from agent.qrm.manager.allocation import AllocationInfo, Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.request import CPU, RECLAIMED_MILLICPU
from agent.qrm.manager.topology import check_nodes
from agent.qrm.pages import QrmPages
from agent.qrm.plugins.adjuster import Adjuster, LocalUsage
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.external import outside_plugins
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.plugins.nic import NicPlugin
from agent.qrm.plugins.records import Adopted, BuiltinPlugin
from agent.qrm.plugins.sysfs import NoTopology, read_machine, read_nics
from agent.qrm.pods import QrmPod
from agent.qrm.reconciler import Reconciler, Report
from agent.qrm.runtime import dry_run
from agent.qrm.runtime.cri import CriRuntime
from agent.qrm.runtime.nri.runtime import NriRuntime
from agent.qrm.runtime.restore import OriginalValues, RecordingApply, record_mode
from agent.qrm.settings import APPLYING, CRI, DRY_RUN, NRI, SERVER, QrmSettings
from agent.qrm.store.checkpoint import CHECKPOINT, BadCheckpoint, Entry, decode, encode_entries, entries_of
from agent.qrm.store.files import StateFile, set_aside, write_atomic
from agent.qrm.telemetry import QrmComponents
from agent.service import node_server
from agent.service.dependencies import kube_client
from agent.service.node_server import CannotRun, listening, read_token, stop_signal
from agent.state.kubelet import KubeletError, kubelet_access
from watcher import __version__
from watcher.core.config.settings import Settings
from watcher.platform.entry_points import ExtensionError
from watcher.platform.interpreter import freeze_objects, tune_for_serving
from watcher.platform.kube.client import KubeClient
from watcher.platform.logs import ClusterSettings
from watcher.platform.telemetry.instruments import Instruments

log = logging.getLogger(__name__)

REGISTER_S = 60.0
REGISTER_RETRY_S = 0.2


# --- components ---------------------------------------------------------------------------------------------------


def check_kubelet(settings: QrmSettings) -> None:
    """Check that the kubelet's CPU and memory managers are off, because they overwrite the cpusets of containers every
    ten seconds. Raises CannotRun; in dry-run mode, or with qrm.force, it only logs a warning."""
    if not (settings.cpu_plugin or settings.memory_plugin):
        return
    why = objection(settings.kubelet_dir)
    if not why:
        return
    if settings.force or settings.mode == DRY_RUN:
        log.warning("%s", why)
        return
    raise CannotRun(why)


def read_topology(settings: QrmSettings) -> CpuTopology:
    """Read the CPU topology of the machine. Raises CannotRun."""
    try:
        machine = read_machine(settings.sys)
        check_nodes(settings.policy, len(machine.numa_nodes))
    except (NoTopology, ValueError) as error:
        raise CannotRun(str(error)) from None
    return machine


def builtin_plugins(settings: QrmSettings, machine: CpuTopology) -> list[ResourcePlugin]:
    """The built-in plug-ins that are enabled and that this machine supports. Raises CannotRun."""
    roles = settings.roles()
    made: list[ResourcePlugin] = []
    try:
        if settings.cpu_plugin:
            made.append(CpuPlugin(machine, roles, settings, reserved=settings.reserved_cpus))
        if settings.memory_plugin and machine.memory:
            reserved = dict.fromkeys(machine.memory, settings.reserved_memory)
            made.append(MemoryPlugin(machine, roles, reserved=reserved))
        elif settings.memory_plugin:
            log.warning("the memory of the NUMA nodes is unknown; the memory plug-in is disabled")
    except ValueError as error:
        raise CannotRun(f"{error}\n  check qrm.reserved_cpus and qrm.reserved_memory") from None
    if settings.nic_plugin:
        made.append(NicPlugin(settings.nics or read_nics(settings.sys), nodes=machine.numa_nodes))
    return made


def all_plugins(settings: QrmSettings, machine: CpuTopology) -> list[ResourcePlugin]:
    """The built-in plug-ins and the plug-ins of other packages. Raises CannotRun."""
    plugins = builtin_plugins(settings, machine)
    try:
        return plugins + outside_plugins(machine, settings.roles(), plugins)
    except ExtensionError as error:
        raise CannotRun.of(error) from None


def pod_sources(settings: QrmSettings, client: KubeClient | None) -> NodePodSources:
    """The sources of the node's pods: Kubernetes API and kubelet. Raises CannotRun if neither is configured."""
    sources: list[NodePodSource] = []
    if client is not None:
        sources.append(api_pods(client, settings.node_name()))
    if settings.kubelet is not None:
        try:
            access = kubelet_access(
                settings.kubelet,
                token_file=settings.kubelet_token_file,
                authority=settings.kubelet_ca_file,
                insecure=settings.kubelet_insecure,
            )
        except KubeletError as error:
            raise CannotRun.of(error) from None
        sources.append(kubelet_pods(access, interval=settings.reconcile_period))
    if not sources:
        raise CannotRun(
            "no source of pods: neither the Kubernetes API nor a kubelet is configured\n"
            "  set kubernetes.kubeconfig or qrm.kubelet, or run with --mode server"
        )
    return NodePodSources(sources)


class Checkpoint:
    """Reads and writes the checkpoint file with the allocations, and counts the `results`."""

    def __init__(self, path: Path, results: Counter[str]) -> None:
        self._path = path
        self._results = results
        self._written = b""
        self._entries: tuple[Entry, ...] | None = None

    def read(self) -> Allocations:
        """The stored allocations. A damaged file is renamed, and the result is empty. Raises CannotRun if the file
        cannot be read."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Allocations()
        except OSError as error:
            raise CannotRun(f"cannot read the checkpoint {self._path}: {error.strerror}") from None
        try:
            allocations = decode(data, from_message=info_from_bytes)
        except BadCheckpoint as error:
            self._results["corrupt"] += 1
            set_aside(self._path, str(error))
            return Allocations()
        self._written = data
        return allocations

    async def save(self, allocations: Allocations) -> None:
        """Write the allocations if they differ from the content of the file. Raises OSError."""
        entries = entries_of(allocations)
        if entries == self._entries:
            return
        try:
            await asyncio.to_thread(self._write, entries)
        except OSError:
            self._results["failed"] += 1
            raise
        self._entries = entries

    def _write(self, entries: tuple[Entry, ...]) -> None:
        data = encode_entries(entries)
        if data != self._written:
            write_atomic(self._path, data)
            self._results["written"] += 1
            self._written = data


def applier(settings: QrmSettings, stack: AsyncExitStack, pods: Callable[[], Collection[QrmPod]] = tuple) -> Apply:
    """The function that applies allocations to containers, according to qrm.mode. `pods` returns the pods of the node.
    Raises CannotRun."""
    if settings.mode != CRI:
        return dry_run
    runtime = CriRuntime(settings.runtime_socket)
    stack.push_async_callback(runtime.close)
    originals = OriginalValues(settings.state_dir)
    try:
        originals.read()
    except OSError as error:
        raise CannotRun(f"cannot read {originals.path}: {error.strerror}") from None
    return RecordingApply(runtime, originals, pods).apply


# --- startup -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running_components(settings: QrmSettings, everything: Settings) -> AsyncIterator[QrmComponents]:
    """Build and start all components, and stop them at the end of the context. Raises CannotRun."""
    check_kubelet(settings)
    async with AsyncExitStack() as stack:
        machine = read_topology(settings)
        try:
            settings.state_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotRun(f"cannot create the directory {settings.state_dir}: {error.strerror}") from None
        builtin = await _serve_plugins(settings, all_plugins(settings, machine), stack)
        parts = QrmComponents(settings, builtin)
        if settings.mode != SERVER:
            parts.rounds = await _manage(parts, everything, machine, stack)
        else:
            silence = SilenceReport(parts.contacts, where=str(settings.plugins_dir))
            _in_background(stack, silence.run(), "qrm-silence")
        if (settings.cpu_plugin or settings.memory_plugin) and not _stops_beside_kubelet(settings):
            _in_background(stack, ManagerReport(settings.kubelet_dir).run(), "qrm-kubelet")
        if parts.cpu is not None:
            if settings.adjust:
                parts.adjuster = await _adjust(parts, builtin[CPU], stack)
        elif settings.watcher is not None:
            log.warning("ignoring qrm.watcher: load resizes only the pools of the built-in CPU plug-in")
        yield parts


async def _serve_plugins(
    settings: QrmSettings, plugins: list[ResourcePlugin], stack: AsyncExitStack
) -> Mapping[str, PluginServer]:
    served = {}
    for plugin in plugins:
        state = StateFile(settings.state_dir / f"{plugin.name}_state")
        external = settings.mode == SERVER
        server = PluginServer(plugin, settings.plugins_dir / f"{plugin.name}.sock", state, external=external)
        try:
            await server.start()
        except CannotServe as error:
            raise CannotRun(str(error)) from None
        stack.push_async_callback(server.stop)
        served[plugin.resource] = server
    return served


async def _manage(
    parts: QrmComponents, everything: Settings, machine: CpuTopology, stack: AsyncExitStack
) -> Reconciler:
    """The manager, with its plug-ins registered and its reconcile rounds running."""
    settings, metrics = parts.settings, parts.metrics
    manager = await _restored_manager(parts, machine)
    observed = partial(PluginEndpoint, observe=metrics.observe_call)
    plugins = ResourcePlugins(manager, open_endpoint=observed)
    registry = Registry(settings.plugins_dir, plugins, monotonic=time.monotonic)
    stack.push_async_callback(registry.close)
    await _wait_for_registration(registry, manager, parts)
    pods, cluster = await _pods_and_cluster(parts, everything, stack)
    parts.nri = NriRuntime(settings, manager, pods) if settings.mode == NRI else None
    rounds = _rounds(parts, manager, pods, cluster, stack)
    rounds.observe = metrics.observe_round
    listing = PodResources(manager, lambda: rounds.known, cpus=machine.all - settings.reserved_cpus)
    await _serve_socket(settings.pod_resources_path, listing.add_to, stack)
    legacy = LegacyRegistration(plugins, settings.state_dir)
    await _serve_socket(settings.state_dir / "kubelet.sock", legacy.add_to, stack)
    if settings.mode in APPLYING:
        await _record_mode(settings)
    stack.push_async_callback(rounds.close)
    _in_background(stack, registry.run(), "qrm-registration")
    _in_background(stack, rounds.run(), "qrm-rounds")
    if parts.nri is not None:
        _in_background(stack, parts.nri.run(rounds, metrics.observe_nri), "qrm-nri")
    return rounds


async def _restored_manager(parts: QrmComponents, machine: CpuTopology) -> Manager:
    """The manager with the allocations of its checkpoint. Raises CannotRun."""
    settings = parts.settings
    checkpoint = Checkpoint(settings.state_dir / CHECKPOINT, parts.metrics.checkpoints)
    allocations = await asyncio.to_thread(checkpoint.read)
    await _adopt(parts.builtin, allocations)
    return Manager(
        settings,
        allocations,
        nodes=machine.numa_nodes,
        cpus=machine.all,
        collects=settings.mode == NRI,
        # The runtime may create containers of a pod that the last round does not know.
        recent=ADMISSION_GRACE_S if settings.mode == NRI else 0.0,
        save=partial(checkpoint.save, allocations),
        monotonic=time.monotonic,
    )


async def _adopt(builtin: Mapping[str, PluginServer], allocations: Allocations) -> None:
    """Let the built-in plug-ins keep what the checkpoint has and their own states lack. Raises CannotRun."""
    for of, server in sorted(builtin.items()):
        known = [(pod, container, info) for pod, container, resource, info in allocations if resource == of]
        try:
            adopted = await server.change(partial(_adopted, known))
        except OSError as error:
            raise CannotRun(f"cannot write {server.state.path}: {error.strerror}") from None
        for (pod, container), why in adopted.invalid.items():
            log.warning("pod %s, container %s: ignoring its %s of the checkpoint: %s", pod, container, of, why)
        for pod, container in adopted.kept:
            text = "pod %s, container %s, keeps its %s of the checkpoint, which %s lacks"
            log.warning(text, pod, container, of, server.state.path)


def _adopted(known: list[tuple[str, str, AllocationInfo]], plugin: ResourcePlugin) -> Adopted:
    return plugin.adopt(known) if isinstance(plugin, BuiltinPlugin) else Adopted()


async def _pods_and_cluster(
    parts: QrmComponents, everything: Settings, stack: AsyncExitStack
) -> tuple[NodePodSources, QrmClusterClient | None]:
    """The running sources of pods, and the Kubernetes API if it is configured. Raises CannotRun."""
    settings = parts.settings
    client = kube_client(settings.kubernetes, everything)
    pods = pod_sources(settings, client)
    cluster = None
    if client is not None:
        stack.push_async_callback(client.close)
        cluster = QrmClusterClient(client, node=settings.node_name(), evicts=settings.evicts, clock=time.time)
    parts.pods = pods
    await pods.start()
    stack.push_async_callback(pods.close)
    return pods, cluster


def _rounds(
    parts: QrmComponents,
    manager: Manager,
    pods: NodePodSources,
    cluster: QrmClusterClient | None,
    stack: AsyncExitStack,
) -> Reconciler:
    """The rounds, which apply allocations according to qrm.mode."""
    settings, nri = parts.settings, parts.nri
    common: dict[str, Any] = {"period": settings.reconcile_period}
    if _stops_beside_kubelet(settings):
        common["objection"] = partial(objection, settings.kubelet_dir)
    if cluster is not None:
        common["report"] = cluster.inadmissible if nri is None else _naming(nri.label, cluster.inadmissible)
        if settings.publishes:
            common["publish"] = partial(cluster.publish, manager, partial(_headroom_capacity, parts))
    if nri is None:
        rounds = Reconciler(manager, pods, applier(settings, stack, lambda: rounds.known), **common)
        return rounds
    return Reconciler(manager, nri.pods, nri.updates.apply, active=nri.active, deliver=nri.updates.deliver, **common)


def _stops_beside_kubelet(settings: QrmSettings) -> bool:
    """Whether the rounds set nothing, and report it, while the kubelet sets cpusets itself."""
    return settings.mode in APPLYING and not settings.force and (settings.cpu_plugin or settings.memory_plugin)


def _naming(plugin: str, report: Report) -> Report:
    """A report that names the NRI plug-in, because the pod's other Events name only the container runtime."""

    async def named(pod: QrmPod, admission: Admission) -> None:
        await report(pod, replace(admission, message=f"NRI plug-in {plugin}: {admission.message}"))

    return named


def _headroom_capacity(parts: QrmComponents) -> dict[str, float]:
    """The headroom of the offline pool as published in the node's status: whole CPUs (or millicpu), because Kubernetes
    requires integers for extended resources."""
    name, last = parts.settings.headroom_resource, parts.adjuster.last if parts.adjuster is not None else None
    if name is None or last is None:
        return {}
    return {name: float(math.floor(last.headroom * (1000 if name == RECLAIMED_MILLICPU else 1)))}


async def _wait_for_registration(registry: Registry, manager: Manager, parts: QrmComponents) -> None:
    """Wait until the built-in plug-ins are registered, before the first pod is admitted: a pod that is admitted without
    a plug-in gets nothing of its resource. Raises CannotRun after REGISTER_S seconds."""
    give_up = time.monotonic() + REGISTER_S
    while True:
        await registry.reconcile()
        missing = sorted(name for name in parts.builtin if not manager.plugins.states.get(name))
        if not missing:
            return
        if time.monotonic() > give_up:
            where = parts.settings.plugins_dir
            raise CannotRun(f"the plug-in for {missing[0]} did not register in {where}; check the log")
        await asyncio.sleep(REGISTER_RETRY_S)


async def _serve_socket(path: Path, add: Callable[[Any], None], stack: AsyncExitStack) -> None:
    """Serve a gRPC service on a unix socket. Raises CannotRun."""
    server = SocketServer(path, [add])
    try:
        await server.start()
    except CannotServe as error:
        raise CannotRun(str(error)) from None
    stack.push_async_callback(server.stop)


async def _record_mode(settings: QrmSettings) -> None:
    """Store the mode before it is used. Raises CannotRun."""
    try:
        await asyncio.to_thread(record_mode, settings.state_dir, settings.mode)
    except OSError as error:
        raise CannotRun(f"cannot write to {settings.state_dir}: {error.strerror}") from None


async def _adjust(parts: QrmComponents, cpu: PluginServer, stack: AsyncExitStack) -> Adjuster:
    """Build the adjuster and start it in the background."""
    settings, rounds = parts.settings, parts.rounds
    windows = None
    if settings.watcher is not None:
        from agent.qrm.cluster.node_windows import node_windows

        token = read_token(settings.watcher_token_file)
        windows = node_windows(settings.watcher, settings.node_name(), token=token)
        await windows.start()
        stack.push_async_callback(windows.close)
    usage = LocalUsage(settings.find_layout, monotonic=time.monotonic)
    stack.callback(usage.close)

    def pods() -> Sequence[QrmPod] | None:
        if rounds is None:
            return ()  # an external manager has the pods; use the plug-in's own records
        return rounds.known if rounds.settled else None

    adjuster = Adjuster(
        cpu,
        settings=settings,
        windows=windows,
        usages=usage,
        pods=pods,
        monotonic=time.monotonic,
        clock=time.time,
    )
    _in_background(stack, adjuster.run(settings.adjust_interval), "qrm-adjuster")
    return adjuster


def _in_background(stack: AsyncExitStack, work: Coroutine[None, None, None], name: str) -> None:
    """Run a coroutine as a task until the stack unwinds."""
    task = asyncio.create_task(work, name=name)

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    stack.push_async_callback(end)


# --- run ---------------------------------------------------------------------------------------------------------


def run(settings: QrmSettings, everything: Settings) -> int:
    """Run until SIGTERM or SIGINT. Returns the exit code."""
    return node_server.run(serve(settings, everything), name="qrm")


async def serve(settings: QrmSettings, everything: Settings) -> int:
    """Start, run until a signal arrives, and shut down. Properties that were set on containers remain."""
    tune_for_serving()
    stop = stop_signal()
    renewing = "the token file is read again if it changed; other settings need a restart"
    async with running_components(settings, everything) as parts:
        telemetry = Instruments(version=__version__, cluster=everything[ClusterSettings].name or "")
        telemetry.add(parts.metrics)
        async with listening(settings, QrmPages(parts, telemetry), telemetry, renewing=renewing) as address:
            log.info("plug-ins register in %s; mode is %s", settings.plugins_dir, settings.mode)
            print(f"load-watcher qrm listens on {address}", flush=True)
            freeze_objects()  # a full garbage collection would hold a container's creation for 40 ms
            await stop.wait()
            log.info("stopping; the properties of containers remain as they are")
    return 0
