"""The plug-in that the container runtime calls: answers the events of pods and containers with the manager's
allocations.

The runtime holds a lock during each call and during each update, so no answer may wait for an update. An error as the
answer to CreateContainer prevents the container: it is returned only for an inadmissible pod, and for failures if
qrm.on_failure is refuse. Otherwise the container starts without allocations, and the next round applies them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from agent import cpuset
from agent.qrm.manager.admission import (
    UNEXPECTED_ERROR,
    Admission,
    ContainerOptions,
    NotAllocated,
    error_text,
    options_of,
)
from agent.qrm.manager.allocation import CPUSET_CPUS, BadProperty, Properties
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.reconciler import Reconciler
from agent.qrm.runtime.nri.devices import read_devices
from agent.qrm.runtime.nri.failures import NriFindings, Unanswered
from agent.qrm.runtime.nri.messages import (
    EVENT_MASK,
    adjustment,
    cpus_of,
    pod_from_runtime,
    properties_in,
    update,
    without_cpus,
)
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.runtime_config import TOLERATION, may_deadlock
from agent.qrm.runtime.nri.table import RuntimePods, RuntimeTable, SynchronizedParts
from agent.qrm.runtime.nri.ttrpc import CallFailed, Code, Method
from agent.qrm.runtime.nri.updates import Collected
from agent.qrm.runtime.restore import OriginalValues
from agent.state.pod_facts import is_static
from agent.state.readings import PodsUnknown

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT")
BUDGET = 0.5
"""Part of the runtime's timeout after which the plug-in answers without a result."""
DEFAULT_TIMEOUT_S = 2.0
TRUE = frozenset({"1", "t", "T", "true", "True", "TRUE"})
"""What Go parses as true."""


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What the runtime says of itself in Configure. `timeout` is in seconds."""

    name: str = ""
    version: str = ""
    nri: str = ""
    timeout: float = DEFAULT_TIMEOUT_S


class NriPlugin:
    """The methods of the plug-in `label` (index and name). `refuses`: whether containers are not created after a
    failure. `undelivered` is what a round has collected or is sending. `observe` gets the duration of each answer in
    seconds."""

    def __init__(
        self,
        rounds: Reconciler,
        pods: RuntimePods,
        table: RuntimeTable,
        originals: OriginalValues,
        findings: NriFindings,
        *,
        label: str,
        refuses: bool,
        undelivered: Callable[[], Sequence[Collected]] = tuple,
        monotonic: Callable[[], float] = time.monotonic,
        observe: Callable[[str, float], None] = lambda _method, _seconds: None,
    ) -> None:
        self.runtime = RuntimeFacts()
        self._rounds = rounds
        self._pods = pods
        self._table = table
        self._originals = originals
        self._findings = findings
        self._label = label
        self._refuses = refuses
        self._undelivered = undelivered
        self._monotonic = monotonic
        self._observe = observe
        self._late: set[asyncio.Task[Any]] = set()
        self._parts = SynchronizedParts()

    def methods(self) -> Mapping[str, Method]:
        """The methods for a new connection. Events without a use are answered with an empty message."""
        self._parts = SynchronizedParts()
        typed: dict[str, Method] = {
            "Configure": self._typed(pb.ConfigureRequest, self._configure),
            "Synchronize": self._typed(pb.SynchronizeRequest, self._synchronize),
            "Shutdown": self._typed(pb.Empty, self._shutdown),
            "RunPodSandbox": self._typed(pb.RunPodSandboxRequest, self._run_pod),
            "StopPodSandbox": self._typed(pb.StopPodSandboxRequest, self._stop_pod),
            "RemovePodSandbox": self._typed(pb.RemovePodSandboxRequest, self._remove_pod),
            "CreateContainer": self._typed(pb.CreateContainerRequest, self._create),
            "PostStartContainer": self._typed(pb.PostStartContainerRequest, self._started),
            "UpdateContainer": self._typed(pb.UpdateContainerRequest, self._update),
            "StopContainer": self._typed(pb.StopContainerRequest, self._stopped),
            "RemoveContainer": self._typed(pb.RemoveContainerRequest, self._removed),
            "StateChange": self._typed(pb.StateChangeEvent, self._changed),
        }
        return {name: self._timed(name, method) for name, method in typed.items()}

    def disconnected(self) -> None:
        """The runtime's state is unknown until the next synchronization."""
        self._table.connected = False

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _configure(self, request: pb.ConfigureRequest) -> pb.ConfigureResponse:
        timeout = request.request_timeout / 1000 or DEFAULT_TIMEOUT_S
        self.runtime = RuntimeFacts(request.runtime_name, request.runtime_version, request.NRI_version, timeout)
        log.info("the container runtime is %s %s, NRI %s", *_known(self.runtime))
        if may_deadlock(self.runtime.nri):
            log.warning(
                "this runtime can deadlock when containers are updated (containerd 13733, NRI before 0.12.1): "
                "use containerd 2.4 or newer"
            )
        policy = pb.FailurePolicy(fail_request=self._refuses, keep_connected=self._refuses)
        return pb.ConfigureResponse(events=EVENT_MASK, failure_policy=policy if self._refuses else None)

    async def _shutdown(self, _request: pb.Empty) -> pb.Empty:
        self.disconnected()
        return pb.Empty()

    async def _synchronize(self, request: pb.SynchronizeRequest) -> pb.SynchronizeResponse:
        try:
            self._parts.add(request)
        except CallFailed as error:
            self._findings.add("refused", f"Synchronize: {error}")
            raise
        if request.more:
            return pb.SynchronizeResponse(more=True)
        parts, self._parts = self._parts, SynchronizedParts()
        self._table.replace(parts.pods, parts.containers)
        self._compare(parts.containers)
        if self._held():
            return pb.SynchronizeResponse()
        try:
            updates = await self._in_time(self._updates(), "Synchronize")
            await self._originals.keep({each.id for each in parts.containers})
        except (Unanswered, OSError) as error:
            self._findings.add(getattr(error, "kind", "checkpoint"), f"Synchronize: {error_text(error)}")
            updates = []
        return pb.SynchronizeResponse(update=updates)

    def _compare(self, containers: Sequence[pb.Container]) -> None:
        """Note what each container has, so that only containers with other properties are updated, and report
        containers whose pods are unknown."""
        manager = self._rounds.manager
        actual = {each.id: each.linux.resources for each in containers}
        without = set()
        for each in self._table.containers:
            wanted = manager.properties(each.pod_uid, each.name)
            has = properties_in(actual[each.id], wanted or ())
            manager.applier.set_applied(each.id, has)
            if not has:
                without.add(each.id)
        self._findings.without = frozenset(without)
        try:
            known = {pod.uid for pod in self._pods.listing(monotonic=self._monotonic())}
        except PodsUnknown:
            return  # the next round has the pods
        strange = sorted(self._table.pods - known)
        if strange:
            text = f"the runtime has containers of {len(strange)} pods that the Kubernetes API does not have"
            self._findings.add("unknown-pod", f"{text}, such as {strange[0]}; they keep their allocations")

    async def _updates(self, *, without: str = "") -> list[pb.ContainerUpdate]:
        """The updates that containers need now, those that lose CPUs first. The next round repeats them, since the
        runtime does not report which of them failed. Created containers must not start with CPUs that another one gets
        now; runtimes update them (containerd: UpdateContainer in internal/cri/nri). `without` is the container that is
        being created, which the runtime does not have yet."""
        due: dict[str, pb.ContainerUpdate] = {}
        names: dict[str, str] = {}

        async def collect(pod: QrmPod, container: PodContainer, properties: Properties) -> None:
            due.pop(container.id, None)  # the last position counts
            due[container.id] = update(container.id, properties, ignore_failure=True)
            names[container.id] = f"{pod.key}/{container.name}"

        try:
            pods = self._pods.listing(monotonic=self._monotonic(), created=True)
        except PodsUnknown:
            return []
        await self._rounds.apply(pods, collect)
        for pod, container, properties in self._undelivered():
            if container.id not in due:
                await collect(pod, container, properties)
        for container_id in due:
            self._rounds.manager.applier.apply_again(container_id)
        due.pop(without, None)
        names.pop(without, None)
        self._findings.applied(names)
        return list(due.values())

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _run_pod(self, request: pb.RunPodSandboxRequest) -> pb.RunPodSandboxResponse:
        """Admit the pod early. If it is rejected or unknown, CreateContainer decides."""
        self._table.add_pod(request.pod)
        try:
            pod = self._pods.find(request.pod.uid, monotonic=self._monotonic())
            if pod is not None:
                await self._in_time(self._rounds.admit(pod), "RunPodSandbox")
        except (PodsUnknown, Unanswered, OSError):
            pass
        return pb.RunPodSandboxResponse()

    async def _stop_pod(self, request: pb.StopPodSandboxRequest) -> pb.StopPodSandboxResponse:
        self._table.stop_pod(request.pod)
        return pb.StopPodSandboxResponse()

    async def _remove_pod(self, request: pb.RemovePodSandboxRequest) -> pb.RemovePodSandboxResponse:
        if self._table.remove_pod(request.pod):
            await self._release(request.pod.uid)
        return pb.RemovePodSandboxResponse()

    async def _release(self, uid: str) -> None:
        """Release the allocations of a pod; if that fails, the next round tries again."""
        try:
            await self._in_time(self._rounds.release(uid), "the release of a pod")
        except (Unanswered, OSError) as error:
            self._findings.add(getattr(error, "kind", "checkpoint"), f"pod {uid}: {error_text(error)}")

    # --- containers --------------------------------------------------------------------------------------------------

    async def _create(self, request: pb.CreateContainerRequest) -> pb.CreateContainerResponse:
        if self._table.is_removed(request.pod):
            self._findings.add("late", f"{_called(request)}, is created after its sandbox was removed: ignoring it")
            return pb.CreateContainerResponse()
        self._table.add_container(request.pod, request.container)
        self._rounds.manager.applier.set_applied(request.container.id, None)  # a runtime may use an id again
        if self._held():
            return pb.CreateContainerResponse()
        try:
            found = await self._in_time(self._created(request), "CreateContainer")
        except CallFailed:
            self._forget(request.container)
            raise
        except Unanswered as error:
            return self._after_failure(request, error)
        except OSError as error:
            return self._after_failure(request, Unanswered("checkpoint", error_text(error)))
        response, properties = found
        if properties:
            self._rounds.manager.applier.set_applied(request.container.id, properties)
        return response

    def _after_failure(self, request: pb.CreateContainerRequest, error: Unanswered) -> pb.CreateContainerResponse:
        """The answer with which a container starts without allocations. Raises CallFailed if it is refused."""
        what = _called(request)
        if self._may_refuse(request):
            self._findings.refused += 1
            self._findings.add(error.kind, f"{what} is not created: {error}")
            self._forget(request.container)
            raise CallFailed(Code.UNKNOWN, f"plug-in {self._label}: {error} (qrm.on_failure)") from None
        self._findings.unpinned += 1
        self._findings.add(error.kind, f"{what} starts without allocations: {error}")
        return pb.CreateContainerResponse()

    def _may_refuse(self, request: pb.CreateContainerRequest) -> bool:
        """Whether a failure prevents the container. Static pods always start: the Kubernetes API may run in them, and
        the copy of the pods has a changed one only after the API has its mirror pod."""
        return self._refuses and not is_static(request.pod.annotations) and not _tolerates_failure(request)

    def _forget(self, container: pb.Container) -> None:
        """The container does not exist any more."""
        self._table.remove_container(container)
        self._originals.drop(container.id)

    async def _created(self, request: pb.CreateContainerRequest) -> tuple[pb.CreateContainerResponse, Properties]:
        """The answer, and the properties that it sets. Raises CallFailed for an inadmissible pod, Unanswered, and
        OSError if the allocations cannot be stored."""
        container = request.container
        pod = self._known(request.pod, container)
        admission = await self._rounds.admit(pod)
        if not admission.admitted:
            raise self._refusal(pod, admission, request)
        try:
            options = await self._rounds.manager.container_options(pod, container.name)
        except KeyError:
            options = None  # an ephemeral container
        except (NotAllocated, BadProperty) as error:
            silent = isinstance(error, NotAllocated) and error.unanswered
            rejected = Admission(False, UNEXPECTED_ERROR, f"container {container.name}: {error}", unanswered=silent)
            self._rounds.reject(pod, container.name, rejected)
            raise self._refusal(pod, rejected, request) from None
        self._rounds.accept(pod, container.name)
        if options is None:
            return pb.CreateContainerResponse(), {}
        updates = await self._updates(without=container.id)
        # The requests may have changed since the allocation; other containers may have the rest of it then.
        options = options_of(self._rounds.manager.allocations.of(pod.uid, container.name))
        adjust = await self._adjustment(request, options)
        return pb.CreateContainerResponse(adjust=adjust, update=updates), options.properties

    async def _adjustment(
        self, request: pb.CreateContainerRequest, options: ContainerOptions
    ) -> pb.ContainerAdjustment:
        container = request.container
        devices, unreadable = await read_devices(options.devices)
        if unreadable and self._may_refuse(request):
            raise Unanswered("device", unreadable)
        if unreadable:
            self._findings.add("device", f"{_called(request)} starts without devices: {unreadable}")
        await self._originals.record(container.id, properties_in(container.linux.resources, options.properties))
        return adjustment(options, container, devices)

    def _known(self, sandbox: pb.PodSandbox, container: pb.Container) -> QrmPod:
        """The pod from the copies of the Kubernetes API and the kubelet, or from the runtime if that is enough. Raises
        Unanswered."""
        try:
            pod = self._pods.find(sandbox.uid, monotonic=self._monotonic())
            why = "the copies of the Kubernetes API and the kubelet do not have the pod yet"
        except PodsUnknown as error:
            pod, why = None, str(error)
        pod = pod or pod_from_runtime(sandbox, container, self._rounds.manager.plugins.states)
        if pod is None:
            raise Unanswered("unknown-pod", why)
        return pod

    def _refusal(
        self, pod: QrmPod, admission: Admission, request: pb.CreateContainerRequest
    ) -> CallFailed | Unanswered:
        """The error that prevents the container, with plug-in and reason; a failure if a plug-in did not respond, and
        for a static pod, which always starts."""
        if admission.unanswered or is_static(request.pod.annotations):
            return Unanswered("plugin", f"{admission.reason}: {admission.message}")
        self._findings.counts["inadmissible"] += 1
        return CallFailed(Code.UNKNOWN, f"plug-in {self._label}: {pod.key}: {admission.reason}: {admission.message}")

    async def _started(self, request: pb.PostStartContainerRequest) -> pb.PostStartContainerResponse:
        self._table.start(request.container)
        return pb.PostStartContainerResponse()

    async def _update(self, request: pb.UpdateContainerRequest) -> pb.UpdateContainerResponse:
        """The kubelet resizes a container, or a user updates it: it has the properties of its allocations, which follow
        the requests of its pod. Containers that lose CPUs to it are updated first; those that gain CPUs from it, in the
        next round."""
        if self._held():
            return pb.UpdateContainerResponse()
        try:
            updates = await self._in_time(self._resized(request), "UpdateContainer")
        except (Unanswered, OSError) as error:
            kind = getattr(error, "kind", "checkpoint")
            self._findings.add(kind, f"UpdateContainer: {error_text(error)}; the next round resizes the container")
            self._rounds.manager.applier.apply_again(request.container.id)
            updates = []  # other containers may still have the CPUs that this one was allocated
        return pb.UpdateContainerResponse(update=updates)

    async def _resized(self, request: pb.UpdateContainerRequest) -> list[pb.ContainerUpdate]:
        """The update of a container, after those of the containers that lose CPUs to it."""
        container = request.container
        updates = await self._updates(without=container.id)
        properties = self._rounds.manager.properties(request.pod.uid, container.name)
        if not properties:
            return updates
        had, gets = cpus_of(container.linux.resources), cpuset.parse(str(properties.get(CPUSET_CPUS, "")))
        before = without_cpus(updates, had - gets) if gets - had else []
        return [*before, update(container.id, properties)]

    def _held(self) -> bool:
        """Whether the kubelet sets the properties of containers itself, so that the plug-in must not."""
        if self._rounds.held:
            self._findings.add("kubelet", f"containers start without allocations: {self._rounds.held}")
        return bool(self._rounds.held)

    async def _stopped(self, request: pb.StopContainerRequest) -> pb.StopContainerResponse:
        """A stopped container is not updated. A pod that the Kubernetes API does not have any more is released with its
        last container; other pods keep their allocations, because the container may start again."""
        self._table.remove_container(request.container)
        uid = request.pod.uid
        try:
            gone = self._pods.find(uid, monotonic=self._monotonic()) is None
        except PodsUnknown:
            gone = False
        if gone and uid not in self._table.pods:
            await self._release(uid)
        return pb.StopContainerResponse()

    async def _removed(self, request: pb.RemoveContainerRequest) -> pb.RemoveContainerResponse:
        self._forget(request.container)
        return pb.RemoveContainerResponse()

    async def _changed(self, request: pb.StateChangeEvent) -> pb.Empty:
        """Runtimes with an NRI before 0.12 send the events without an answer in this form."""
        if request.event == pb.RUN_POD_SANDBOX:
            await self._run_pod(pb.RunPodSandboxRequest(pod=request.pod))
        elif request.event == pb.STOP_POD_SANDBOX:
            self._table.stop_pod(request.pod)
        elif request.event == pb.REMOVE_POD_SANDBOX:
            await self._remove_pod(pb.RemovePodSandboxRequest(pod=request.pod))
        elif request.event == pb.POST_START_CONTAINER:
            self._table.start(request.container)
        elif request.event == pb.REMOVE_CONTAINER:
            self._forget(request.container)
        return pb.Empty()

    # --- answers in time ---------------------------------------------------------------------------------------------

    async def _in_time(self, work: Coroutine[Any, Any, AnswerT], what: str) -> AnswerT:
        """The result of `work`. Raises Unanswered if it takes too long or fails unexpectedly; it continues then, since
        an allocation must not remain half-made."""
        task = asyncio.create_task(work, name=f"nri-{what}")
        self._late.add(task)
        task.add_done_callback(self._late.discard)
        budget = self.runtime.timeout * BUDGET
        done, _ = await asyncio.wait({task}, timeout=budget)
        if not done:
            task.add_done_callback(_log_late)
            raise Unanswered("slow", f"{what} took more than {budget:g} s")
        try:
            return task.result()
        except (CallFailed, Unanswered, OSError):
            raise
        except Exception as error:
            log.exception("cannot answer %s", what)
            raise Unanswered("internal", f"{what} failed: {type(error).__name__}; see the log") from None

    def _typed(self, kind: type[RequestT], answer: Callable[[RequestT], Awaitable[Message]]) -> Method:
        """A method on bytes. An invalid message is an error only if containers may be refused."""

        async def method(payload: bytes) -> bytes:
            try:
                request = kind.FromString(payload)
            except DecodeError:
                self._findings.add("bad-frame", f"the runtime sent an invalid {kind.DESCRIPTOR.name}")
                if self._refuses:
                    raise
                return b""
            return (await answer(request)).SerializeToString()

        return method

    def _timed(self, name: str, method: Method) -> Method:
        async def timed(payload: bytes) -> bytes:
            began = self._monotonic()
            try:
                return await method(payload)
            finally:
                self._observe(name, self._monotonic() - began)

        return timed


def _called(request: pb.CreateContainerRequest) -> str:
    """Pod and container, for messages."""
    return f"{request.pod.namespace}/{request.pod.name}, container {request.container.name}"


def _tolerates_failure(request: pb.CreateContainerRequest) -> bool:
    """Whether the pod has the annotation with which a container may start without a required plug-in, as the default
    validator of NRI reads it."""
    keys = (f"{TOLERATION}/container.{request.container.name}", f"{TOLERATION}/pod", TOLERATION)
    given = next((request.pod.annotations[key] for key in keys if key in request.pod.annotations), "")
    return given in TRUE


def _known(facts: RuntimeFacts) -> tuple[str, str, str]:
    return facts.name or "unknown", facts.version or "unknown", facts.nri or "unknown"


def _log_late(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("a late answer to the container runtime failed: %s", error)
