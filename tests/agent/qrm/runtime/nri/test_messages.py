"""Messages of NRI from and to the manager's values: all that an adjustment and an update set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qos import QosClass
from agent.qrm.manager.admission import ContainerOptions
from agent.qrm.manager.allocation import BindMount, DeviceNode, Value
from agent.qrm.pods import MAIN_ANNOTATION
from agent.qrm.runtime.nri.messages import adjustment, pod_from_runtime, properties_in, set_properties, update
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb

ALL: dict[str, Value] = {
    "CpuPeriod": 100_000,
    "CpuQuota": -1,
    "CpuShares": 2048,
    "CpusetCpus": "2-5,8",
    "CpusetMems": "0-1",
    "MemoryLimitInBytes": 1 << 30,
    "MemorySwapLimitInBytes": 1 << 31,
    "Unified.memory.high": "max",
}


def test_an_adjustment_sets_everything_that_the_plugins_may_give():
    options = ContainerOptions(
        envs={"B": "2", "A": "1", "PATH": "/other"},
        annotations={"example.org/card": "eth0"},
        properties={**ALL, "OomScoreAdj": -5},
        mounts=(BindMount("/in", "/out", read_only=True), BindMount("/data", "/mnt/data")),
        devices=(DeviceNode("/dev/in", "/dev/out", "rw"),),
    )
    device = pb.LinuxDevice(path="/dev/in", type="c", major=10, minor=200)
    made = adjustment(options, pb.Container(env=["PATH=/bin", "EMPTY="]), [device])
    assert [(each.key, each.value) for each in made.env] == [("A", "1"), ("B", "2")]
    assert dict(made.annotations) == {"example.org/card": "eth0"}
    assert [(each.source, each.destination, each.type, list(each.options)) for each in made.mounts] == [
        ("/out", "/in", "bind", ["rbind", "rprivate", "ro"]),
        ("/mnt/data", "/data", "bind", ["rbind", "rprivate", "rw"]),
    ]
    assert list(made.linux.devices) == [device]
    assert made.linux.oom_score_adj.value == -5
    resources = made.linux.resources
    assert (resources.cpu.cpus, resources.cpu.mems) == ("2-5,8", "0-1")
    assert (resources.cpu.shares.value, resources.cpu.quota.value, resources.cpu.period.value) == (2048, -1, 100_000)
    assert (resources.memory.limit.value, resources.memory.swap.value) == (1 << 30, 1 << 31)
    assert dict(resources.unified) == {"memory.high": "max"}


@pytest.mark.parametrize(
    ("permissions", "denied"), [("rwm", ""), ("mrw", ""), ("", ""), ("r", "w"), ("w", "r"), ("rm", "w"), ("m", "rw")]
)
def test_permissions_that_a_device_does_not_have_are_denied(permissions: str, denied: str):
    """The runtime allows rw for each added device, and applies these rules after its own."""
    options = ContainerOptions({}, {}, {}, devices=(DeviceNode("/dev/in", "/dev/out", permissions),))
    device = pb.LinuxDevice(path="/dev/in", type="c", major=10, minor=200)
    rules = adjustment(options, pb.Container(), [device]).linux.resources.devices
    found = [(each.allow, each.type, each.major.value, each.minor.value, each.access) for each in rules]
    assert found == ([(False, "c", 10, 200, denied)] if denied else [])


def test_an_adjustment_without_values_changes_nothing():
    """A field that is set to its default would overwrite the container's value."""
    made = adjustment(ContainerOptions({}, {}, {}), pb.Container(env=["PATH=/bin"]), [])
    assert not made.linux.HasField("oom_score_adj")
    assert not made.linux.resources.cpu.HasField("shares")
    assert made.ByteSize() <= pb.ContainerAdjustment(linux={"resources": {}}).ByteSize()


def test_an_update_has_the_resources_but_not_the_oom_score():
    made = update("id", {**ALL, "OomScoreAdj": -5}, ignore_failure=True)
    assert (made.container_id, made.ignore_failure) == ("id", True)
    assert properties_in(made.linux.resources, [*ALL, "OomScoreAdj"]) == ALL


@pytest.mark.parametrize("name", ALL)
def test_a_property_that_is_not_set_is_not_read(name: str):
    resources = pb.LinuxResources()
    set_properties(resources, {other: value for other, value in ALL.items() if other != name})
    assert properties_in(resources, ALL).keys() == ALL.keys() - {name}


@pytest.mark.parametrize(("text", "canonical"), [("5,2-4", "2-5"), ("0\n", "0"), ("x", "x")])
def test_sets_of_the_runtime_are_compared_in_canonical_form(text: str, canonical: str):
    resources = pb.LinuxResources(cpu=pb.LinuxCPU(cpus=text))
    assert properties_in(resources, ["CpusetCpus", "CpusetMems"]) == {"CpusetCpus": canonical}


values = st.fixed_dictionaries(
    {},
    optional={
        "CpuShares": st.integers(0, 2**63 - 1),
        "CpuQuota": st.integers(-(2**63), 2**63 - 1),
        "MemoryLimitInBytes": st.integers(-(2**63), 2**63 - 1),
        "CpusetCpus": st.sampled_from(["0", "0-3", "1,3"]),
        "Unified.cpu.weight": st.text(max_size=8),
    },
)


@given(values)
def test_properties_survive_the_message(properties: dict[str, Value]):
    sent = update("id", properties).SerializeToString()
    received = pb.ContainerUpdate.FromString(sent).linux.resources
    assert properties_in(received, properties) == properties


# --- a pod that only the runtime knows -------------------------------------------------------------------------------


def guaranteed(*, group: str = "/kubepods/pod-u", **labels: str) -> pb.PodSandbox:
    """A Guaranteed pod with 2 CPUs and 1 GiB, of which `main` is the main container."""
    return pb.PodSandbox(
        id="s",
        uid="u",
        name="pod",
        namespace="default",
        annotations={MAIN_ANNOTATION: "main", "kubernetes.io/pod-role": "storage-service"},
        labels={"app": "x", "io.kubernetes.pod.name": "pod", **labels},
        linux=pb.LinuxPodSandbox(cgroup_parent=group, pod_resources=limits()),
    )


def limits(quota: int = 200_000) -> pb.LinuxResources:
    return pb.LinuxResources(
        cpu=pb.LinuxCPU(quota={"value": quota}, period={"value": 100_000}),
        memory=pb.LinuxMemory(limit={"value": 1 << 30}),
    )


def container(name: str = "main", quota: int = 200_000) -> pb.Container:
    return pb.Container(id="c", name=name, linux=pb.LinuxContainer(resources=limits(quota)))


def test_a_guaranteed_pod_with_one_container_is_known_from_the_runtime():
    pod = pod_from_runtime(guaranteed(), container(), {"cpu", "memory"})
    assert pod is not None
    assert (pod.uid, pod.key, pod.role, pod.qos_class) == ("u", "default/pod", "storage-service", QosClass.GUARANTEED)
    assert dict(pod.labels) == {"app": "x"}
    (only,) = pod.containers
    assert (only.name, dict(only.requests)) == ("main", {"cpu": 2.0, "memory": float(1 << 30)})


UNKNOWN = {
    "another QoS class": (guaranteed(group="/kubepods/burstable/pod-u"), container(), {"cpu"}),
    "no control group": (guaranteed(group="/other"), container(), {"cpu"}),
    "another container": (guaranteed(), container("sidecar"), {"cpu"}),
    "several containers": (guaranteed(), container(quota=100_000), {"cpu"}),
    "a container without a limit": (guaranteed(), container(quota=0), {"cpu"}),
    "a DaemonSet": (guaranteed(**{"controller-revision-hash": "1"}), container(), {"cpu"}),
    "other resources": (guaranteed(), container(), {"cpu", "example.org/gpu"}),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_other_pods_are_unknown_without_the_kubernetes_api(why: str):
    assert pod_from_runtime(*UNKNOWN[why]) is None
