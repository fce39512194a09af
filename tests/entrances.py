"""Every entrance of bytes from outside, in one table: how the program reads them, and the errors of the component."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec
import trustme
import yaml
import zstandard
from google.protobuf.message import DecodeError

from agent import cpuset
from agent.policy.source import check_policies
from agent.qrm.cluster import own_managers
from agent.qrm.grpc.messages import info_from_bytes, info_to_message
from agent.qrm.main import Checkpoint
from agent.qrm.manager.allocation import FIELDS, UNIFIED, AllocationInfo, Allocations
from agent.qrm.pods import MAIN_ANNOTATION
from agent.qrm.runtime.cri import properties_in as cri_properties_in
from agent.qrm.runtime.nri.messages import cpus_of, pod_from_runtime
from agent.qrm.runtime.nri.messages import properties_in as nri_properties_in
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as nri_pb
from agent.qrm.runtime.nri.runtime_config import UnreadableConfig, read_config, version_of
from agent.qrm.runtime.nri.table import RuntimeTable, SynchronizedParts
from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    PLUGIN_SERVICE,
    REQUEST,
    BadFrame,
    CallFailed,
    CallRequest,
    FrameDecoder,
    Message,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from agent.qrm.runtime.nri.ttrpc import encode as encode_frames
from agent.qrm.runtime.protos import qrm_cri_v1_pb2 as cri_pb
from agent.qrm.runtime.restore import OriginalValues, recorded_mode
from agent.qrm.store.checkpoint import encode
from agent.qrm.store.files import BadState, StateFile
from agent.state.proc_reader import ProcReader
from agent.state.readings import MetricReadings
from agent.state.remote import read_samples as read_agent_samples
from lab.backtest.tables import read_rows
from lab.backtest.usage import BacktestError
from lab.compare.comparison import read_answer
from lab.traces.files import open_writer, read_trace
from lab.traces.parsing import TraceError
from lab.traces.records import Begin, EndRecord, NodeRecord
from load_watcher.cli.options import read_token as read_option_token
from load_watcher.doctor.scheduler.configuration import check_configuration
from load_watcher.doctor.scheduler.thresholds import evictors_in
from scorers.decisions import records
from scorers.extender.manifest import read_pod
from scorers.extender.remote import read_access
from scorers.plugin_api import wire
from scorers.plugins.node_resource_limits import read_ratio
from scorers.profiles.profiles import read_profiles
from tests.agent.policy.writing import METRICS, node_qos, text_of, throttling
from tests.agent.qrm.plugins.test_plugins import cpu_plugin
from watcher.client.arrays import decode_columns, decode_pods, to_columns, to_pods
from watcher.client.errors import WatcherError
from watcher.core.config.problems import SettingsError
from watcher.core.config.quantities import read_duration, size
from watcher.core.config.values import InvalidValue, read_argument
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.objects import NODES, PODS, Pod
from watcher.core.kubernetes.quantity import nano
from watcher.core.kubernetes.wire import list_decoder
from watcher.decoding.json_text import JsonDecoder
from watcher.platform.kube.credentials import from_kubeconfig, in_cluster
from watcher.platform.kube.refusals import read_status
from watcher.platform.kube.responses import read_event, read_item, read_page
from watcher.platform.net.tls import client_context
from watcher.platform.reloaded_files import read_token
from watcher.service.settings.loading import load
from watcher.sources.errors import ProviderError
from watcher.sources.http import read_secret
from watcher.sources.influxdb.responses import read_flux, read_influxql
from watcher.sources.prometheus.responses import read_labels, read_series
from watcher.sources.prometheus_api import read_envelope, series_of

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Entrance:
    """`content` is what the other side writes; `read` reads a file with it. `refuses` are the errors of the component,
    which name the file if `is_file`, or `where` it was named."""

    content: bytes
    read: Read
    refuses: tuple[type[Exception], ...] = ()
    is_file: bool = True
    name: str = "given.txt"
    where: str = ""


def response(content: bytes, read: Callable[[bytes], object], *refuses: type[Exception]) -> Entrance:
    """An entrance without a file: the body of a request or a response, or a text within another."""
    return Entrance(content, lambda path: read(path.read_bytes()), refuses, is_file=False)


def text(content: str, read: Callable[[str], object], *refuses: type[Exception]) -> Entrance:
    """A text within a document that was decoded already; bytes that are not UTF-8 cannot reach it."""
    return response(content.encode(), lambda data: read(data.decode("utf-8", "replace")), *refuses)


# --- the entrances ---------------------------------------------------------------------------------------------------

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop", "uid": "u", "annotations": {"a": "b"}, "creationTimestamp": None},
    "spec": {
        "nodeName": "node-a",
        "priority": 7,
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}, "limits": {"cpu": 1}}}
        ],
    },
    "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node-a", "resourceVersion": "7", "labels": {"pool": "gpu"}},
    "status": {"capacity": {"cpu": "8", "memory": "16Gi"}, "allocatable": {"cpu": "7", "memory": "15Gi"}},
}
KUBECONFIG = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority": "ca.crt"}}],
    "users": [{"name": "u", "user": {"token": "secret"}}],
}
CLUSTERS = [{"name": "k", "cluster": {"server": "https://10.0.0.1", "insecure-skip-tls-verify": True}}]
SCHEDULER = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [
        {
            "schedulerName": "load",
            "plugins": {"score": {"enabled": [{"name": "TargetLoadPacking", "weight": 5}]}},
            "pluginConfig": [{"name": "TargetLoadPacking", "args": {"targetUtilization": 40}}],
        }
    ],
    "extenders": [{"urlPrefix": "http://x/scheduler", "filterVerb": "filter", "weight": 5}],
}
DESCHEDULER = {
    "kind": "DeschedulerConfiguration",
    "profiles": [{"pluginConfig": [{"name": "LowNodeLoad", "args": {"highThresholds": {"cpu": 80}}}]}],
}
SETTINGS = """
[server]
port = 2020
[provider]
name = "Prometheus"
address = "http://127.0.0.1:9090"
headers = { X-Scope-OrgID = "a" }
[refresh]
windows = ["5m", "15m"]
"""
CERTIFICATE = trustme.CA(organization_name="Ünïcode").cert_pem.bytes()


def encoded(document: object) -> bytes:
    return msgspec.json.encode(document)


def as_yaml(document: object) -> bytes:
    return yaml.safe_dump(document).encode()


def checkpoint() -> bytes:
    allocations = Allocations()
    allocations.set("uid-1", "main", "cpu", ALLOCATION)
    return encode(allocations)


def state(document: Mapping[str, Any], directory: Path) -> bytes:
    StateFile(directory / "state").write(dict(document))
    return (directory / "state").read_bytes()


def plugin_state(path: Path) -> None:
    if (document := StateFile(path).read()) is not None:
        cpu_plugin().load(document)


def originals(path: Path) -> None:
    values = OriginalValues(path.parent)
    values.read(replace_damaged=False)
    values.of("c1")


def cpu_manager(path: Path) -> dict[str, str]:
    """The reasons why metrics are missing."""
    reader = ProcReader("/proc", interfaces=("lo",), cpu_manager_state=str(path))
    readings = MetricReadings()
    for now in (0.0, 1.0):
        reader.read(readings, now=now, monotonic=lambda now=now: now, longest=60.0)  # type: ignore[misc]
    return readings.missing


def profiles(table: Mapping[str, Any]) -> Read:
    def read(path: Path) -> None:
        _, problems, _ = read_profiles(
            {"p": {**table, **({"from": str(path)} if "from" in table else {})}}, cwd=path.parent
        )
        if problems:
            raise ValueError(*map(str, problems))

    return read


def policies(path: Path) -> None:
    if problems := check_policies(path, metrics=METRICS).problems:
        raise ValueError(*map(str, problems))


def extender_access(path: Path) -> None:
    loaded = load(
        flags={},
        environ={},
        cwd=path.parent,
        assigned={"extender.watcher": "https://w", "extender.watcher_ca_file": str(path)},
    )
    read_access(loaded).tls()


def doctor(path: Path) -> None:
    list(check_configuration(path.read_bytes()))


def trace(directory: Path, name: str) -> bytes:
    with open_writer(directory / name) as writer:
        for record in (Begin(60.0, "ü"), NodeRecord(60.0, "node-ä", 8.0, 2**30), EndRecord(120.0)):
            writer.write(record)
    return (directory / name).read_bytes()


DECISION = records.PlacementDecision(1.0, "p", "shop", "web", "u", {"cpu": 250}, {"cpu": 500})
MATRIX = {
    "status": "success",
    "data": {"resultType": "matrix", "result": [{"metric": {"instance": "ä"}, "values": [[1700000000.5, "0.25"]]}]},
}
COLUMNS = {
    "timestamp": 1700000000,
    "window_end": 1699999990,
    "source": "Prometheus",
    "nodes": ["node-ä"],
    "sampled": {"cpu": [1699999990.0]},
    "age_s": [None],
    "columns": [{"type": "CPU", "name": "cpu", "operator": "AVG", "window": "15m", "unit": "ratio", "values": [7.5]}],
    "silent": {"node-b": 1699990000.0},
}
POD_COLUMNS = {
    "timestamp": 1700000000,
    "source": "Prometheus",
    "every_s": 60.0,
    "cores_from": "a",
    "cores_span_s": 300.0,
    "bytes_from": "b",
    "bytes_kind": "rss",
    "namespace": ["shop"],
    "pod": ["web"],
    "node": ["node-ä"],
    "time": [1699999990.0],
    "cores": [0.5],
    "bytes": [1024],
    "averages": [{"window": "15m", "cores": [0.5], "bytes": [None]}],
    "measured": {"node-ä": 1699999990.0},
    "valid_s": 90.0,
    "unknown": {"node-b": "x"},
}
INFLUX = {
    "results": [
        {"series": [{"name": "cpu", "tags": {"host": "ä"}, "columns": ["time", "value"], "values": [[1, 0.5]]}]}
    ]
}
FLUX = "\r\n".join(
    (
        "#datatype,string,long,dateTime:RFC3339,double,string",
        "#group,false,false,false,false,true",
        "#default,_result,,,,",
        ",result,table,_time,_value,host",
        ",,0,2026-01-01T00:00:00Z,1.5,ä",
        "",
    )
)


def page_of(resource: Any) -> Callable[[bytes], object]:
    return lambda data: read_page(data, list_decoder(resource.item), resource=resource)


def prometheus(data: bytes) -> None:
    rows = series_of(read_envelope(data, content_type="application/json"), expects="matrix")
    read_labels(rows)
    for row in rows:
        read_series(row)


def columns(data: bytes) -> None:
    to_columns(decode_columns(data), received=0.0, age_at_receipt=0.0)


def pods(data: bytes) -> None:
    to_pods(decode_pods(data), received=0.0, age_at_receipt=0.0)


def service_account(path: Path) -> None:
    (path.parent / "token").write_text("secret")
    in_cluster(environ={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, service_account=path.parent)


def kubeconfig_beside(path: Path) -> Path:
    """A kubeconfig that names the file as certificate authority."""
    beside = path.with_name("kubeconfig")
    beside.write_bytes(as_yaml(KUBECONFIG))
    return beside


ALLOCATION = AllocationInfo("CpusetCpus", allocated_quantity=2.0, allocation_result="0-1")
OF_CONTAINER = nri_pb.LinuxResources(
    cpu=nri_pb.LinuxCPU(
        cpus="0-1", mems="0", quota=nri_pb.OptionalInt64(value=200_000), period=nri_pb.OptionalUInt64(value=100_000)
    ),
    memory=nri_pb.LinuxMemory(limit=nri_pb.OptionalInt64(value=1 << 30)),
    unified={"memory.high": "7"},
)
SANDBOX = nri_pb.PodSandbox(
    id="s",
    uid="u",
    name="wéb",
    namespace="shop",
    labels={"app": "web"},
    annotations={MAIN_ANNOTATION: "main"},
    linux=nri_pb.LinuxPodSandbox(
        pod_resources=OF_CONTAINER, cgroup_parent="/kubepods/podu", resources=nri_pb.LinuxResources()
    ),
)
CONTAINER = nri_pb.Container(
    id="c",
    pod_sandbox_id="s",
    name="main",
    state=nri_pb.CONTAINER_RUNNING,
    linux=nri_pb.LinuxContainer(resources=OF_CONTAINER),
)
PROPERTIES = (*FIELDS, f"{UNIFIED}memory.high")


def created(data: bytes) -> None:
    """A container that the runtime is about to create."""
    request = nri_pb.CreateContainerRequest.FromString(data)
    pod_from_runtime(request.pod, request.container, ("cpu", "memory"))
    cpus_of(request.container.linux.resources)
    RuntimeTable().add_container(request.pod, request.container)


def synchronized(data: bytes) -> None:
    parts, table = SynchronizedParts(), RuntimeTable()
    parts.add(nri_pb.SynchronizeRequest.FromString(data))
    table.replace(parts.pods, parts.containers)
    for each in parts.containers:
        nri_properties_in(each.linux.resources, PROPERTIES)


def container_status(data: bytes) -> None:
    """As grpc decodes it: a DecodeError is an error of the call."""
    status = cri_pb.ContainerStatusResponse.FromString(data).status
    cri_properties_in(status.resources.linux, PROPERTIES)


STATUS = cri_pb.ContainerStatusResponse(
    status=cri_pb.ContainerStatus(
        state=cri_pb.CONTAINER_RUNNING,
        resources=cri_pb.ContainerResources(
            linux=cri_pb.LinuxContainerResources(cpuset_cpus="0-1", cpu_shares=7, unified={"memory.high": "7"})
        ),
    )
)


def entrances(directory: Path) -> dict[str, Entrance]:
    """All entrances by name; `directory` is used to write what programs write."""
    return {
        # files of the agent and the QRM
        "checkpoint": Entrance(checkpoint(), lambda path: Checkpoint(path, Counter()).read()),
        "cpu_plugin_state": Entrance(
            state(cpu_plugin().document(), directory), plugin_state, (BadState, ValueError), False
        ),
        "original_values": Entrance(
            state({"containers": {"c1": {"CpuQuota": 7}}}, directory), originals, (BadState,), False, "original_values"
        ),
        "last_mode": Entrance(
            state({"mode": "nri"}, directory), lambda path: recorded_mode(path.parent), (BadState,), False, "last_mode"
        ),
        "cpu_manager_state": Entrance(
            encoded({"policyName": "static", "defaultCpuSet": "0-1", "entries": {"u": {"main": "2-3"}}, "checksum": 7}),
            lambda path: own_managers.read_kubelet_sets(path.parent),
            (own_managers.BadKubeletState,),
            name="cpu_manager_state",
        ),
        "memory_manager_state": Entrance(
            encoded({"policyName": "Static", "entries": {"u": {"main": [{"numaAffinity": [0], "size": 7}]}}}),
            lambda path: own_managers.read_kubelet_sets(path.parent),
            (own_managers.BadKubeletState,),
            name="memory_manager_state",
        ),
        "cpu_manager_state of the agent": Entrance(
            encoded({"policyName": "static", "entries": {"u": {"main": "2-3"}}}), cpu_manager
        ),
        "settings of the container runtime": Entrance(
            b'imports = ["x"]\n[plugins."io.containerd.nri.v1.nri"]\ndisable = false\n',
            lambda path: read_config(path, runtime="containerd"),
            (UnreadableConfig,),
        ),
        "policies": Entrance(text_of(node_qos(), throttling()).encode(), policies, (ValueError,), name="policies.yaml"),
        # settings and what they name
        "settings": Entrance(
            SETTINGS.encode(),
            lambda path: load(flags={}, environ={}, cwd=path.parent, file=path),
            (SettingsError,),
        ),
        "imported profile": Entrance(
            as_yaml(SCHEDULER), profiles({"from": ""}), (ValueError,), where="scheduler.p.from"
        ),
        "power models": Entrance(
            encoded({"node-a": {"k0": 1.0, "k1": 2.0, "k2": -3.0}}),
            profiles({"plugins": [{"name": "Peaks"}]}),
            (ValueError,),
        ),
        "scheduler configuration": Entrance(as_yaml(SCHEDULER), doctor),
        "configuration of an evictor": Entrance(as_yaml(DESCHEDULER), lambda path: evictors_in(path.read_bytes())),
        "manifest": Entrance(as_yaml(POD), lambda path: read_pod(path.read_bytes()), (ValueError,), False),
        "kubeconfig": Entrance(as_yaml(KUBECONFIG | {"clusters": CLUSTERS}), from_kubeconfig, (KubeError,)),
        "certificate authority of a kubeconfig": Entrance(
            CERTIFICATE, lambda path: from_kubeconfig(kubeconfig_beside(path)), (KubeError,), name="ca.crt"
        ),
        "certificate authority of the cluster": Entrance(CERTIFICATE, service_account, (KubeError,), name="ca.crt"),
        "certificate authority of the watcher": Entrance(
            CERTIFICATE, extender_access, (OSError, ValueError, SettingsError), False
        ),
        "certificates": Entrance(CERTIFICATE, lambda path: client_context(ca_file=path), (OSError, ValueError), False),
        "token": Entrance("s3cret ü".encode(), read_token, (ValueError,), False),
        "token of a source": Entrance(
            b"s3cret", lambda path: read_secret("provider.token_file", path), (ProviderError,)
        ),
        "token of a command": Entrance(b"s3cret", read_option_token, (click.BadParameter,)),
        # traces
        "trace": Entrance(
            trace(directory, "a.csv"), lambda path: list(read_trace(path)), (TraceError,), name="given.csv"
        ),
        "packed trace": Entrance(
            trace(directory, "a.csv.gz"), lambda path: list(read_trace(path)), (TraceError,), name="given.csv.gz"
        ),
        "table of a backtest": Entrance(
            "vm,cores\nä,4\n".encode(),
            lambda path: [each.number("cores") for each in read_rows(path, ["vm", "cores"])],
            (BacktestError,),
        ),
        # responses
        "list of pods": response(
            encoded({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [POD]}), page_of(PODS), KubeError
        ),
        "list of nodes": response(
            encoded({"kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": [NODE]}),
            page_of(NODES),
            KubeError,
        ),
        "object": response(encoded(NODE), lambda data: read_item(data, resource=NODES), KubeError),
        "event of a watch": response(
            encoded({"type": "ADDED", "object": POD}),
            lambda data: read_event(data, JsonDecoder(Pod), resource=PODS),
            KubeError,
        ),
        "failure of the API": response(
            encoded({"message": "no", "code": 403, "details": {"retryAfterSeconds": 7}}), read_status
        ),
        "response of Prometheus": response(encoded(MATRIX), prometheus, ProviderError),
        "response to InfluxQL": response(
            encoded(INFLUX), lambda data: read_influxql(data, content_type="application/json"), ProviderError
        ),
        "response to Flux": response(
            FLUX.encode(), lambda data: read_flux(data, content_type="text/csv"), ProviderError
        ),
        "samples for the agent": response(
            encoded({"metric": {"node": "ä"}, "value": [1.5, "0.25"]}),
            lambda data: read_agent_samples([msgspec.Raw(data)]),
            ProviderError,
        ),
        "loads of another service": response(
            encoded(
                {"data": {"NodeMetricsMap": {"n": {"metrics": [{"type": "CPU", "operator": "AVG", "value": 7.5}]}}}}
            ),
            read_answer,
            ValueError,
        ),
        "columns of the watcher": response(encoded(COLUMNS), columns, msgspec.DecodeError, WatcherError),
        "pods of the watcher": response(encoded(POD_COLUMNS), pods, msgspec.DecodeError, WatcherError),
        # messages of the container runtime and of plug-ins
        "frames of the runtime": response(
            encode_frames(Message(PLUGIN_CONNECTION, 1, REQUEST, b"x" * 9)),
            lambda data: list(FrameDecoder().feed(data)),
            BadFrame,
        ),
        "call of the runtime": response(
            encode_request(CallRequest(PLUGIN_SERVICE, "Synchronize", b"x", 2.0)), decode_request, CallFailed
        ),
        "response of the runtime": response(encode_response(b"x"), decode_response, CallFailed),
        "container to be created": response(
            nri_pb.CreateContainerRequest(pod=SANDBOX, container=CONTAINER).SerializeToString(), created, DecodeError
        ),
        "synchronization of the runtime": response(
            nri_pb.SynchronizeRequest(pods=[SANDBOX], containers=[CONTAINER]).SerializeToString(),
            synchronized,
            DecodeError,
        ),
        "container status of the CRI": response(STATUS.SerializeToString(), container_status, DecodeError),
        "allocation of a plug-in": response(
            info_to_message(ALLOCATION).SerializeToString(), info_from_bytes, ValueError
        ),
        # requests
        "request of kube-scheduler": response(
            encoded({"Pod": POD, "NodeNames": ["node-a"]}), lambda data: wire.read_args(data), ValueError, wire.TooMuch
        ),
        "binding of kube-scheduler": response(
            encoded({"PodName": "web", "PodNamespace": "shop", "PodUID": "u", "Node": "n"}),
            wire.read_binding,
            ValueError,
        ),
        # annotations, and other texts with numbers
        "set of CPUs": text("0-1,8", cpuset.parse, ValueError),
        "ratio of an annotation": text("120%", read_ratio, ValueError),
        "quantity": text("250m", nano, ValueError),
        "version of a runtime": text("v2.2.1", version_of),
        "value of a setting": text("1h30m", read_duration, InvalidValue),
        "size in a setting": text("1.5GiB", lambda said: read_argument(size(lowest=1), said), InvalidValue),
        # stored rows
        "decision": response(DECISION.encode(), records.decode_decision, ValueError),
        "content of a decision": response(
            encoded(DECISION),
            lambda data: records.decode_decision(zstandard.ZstdCompressor().compress(data)),
            ValueError,
        ),
        "outcome": text(
            records.encode_outcome(records.PlacementOutcome("bound", 2.0, "n")), records.decode_outcome, ValueError
        ),
        "shadow decision": response(records.ShadowBinding(1.0, "shop", "web").encode(), records.decode_binding),
    }
