"""The collector on files of a node: values, units, and reasons for missing metrics."""

import asyncio
import errno
import logging
import os
from dataclasses import replace
from pathlib import Path

import pytest

from agent.cgroups.paths import Driver
from agent.model import State
from agent.qos import QosClass
from agent.state.collector import COLLECTED
from agent.state.readings import MetricReadings, PodFacts
from tests.agent.state.node import CORE, MIB, FakeNode, container_id, pod, uid
from tests.fakes.cgroups import open_below
from tests.waiting import eventually

OF_NODE = {
    "cpu_total_usage",
    "cpu_total_utilization",
    "cpu_core_numbers",
    "exclusive_cpu_idle",
    "cpu_load_1_min",
    "cpu_load_5_min",
    "cpu_load_15_min",
    "memory_total",
    "memory_total_usage",
    "memory_total_utilization",
    "disk_read_kibps",
    "disk_write_kibps",
    "disk_read_iops",
    "disk_write_iops",
    "disk_read_utilization",
    "disk_total_utilization",
    "network_receive_kibps",
    "network_sent_kibps",
    "network_receive_pckps",
    "network_sent_pckps",
    "network_drop_in",
    "network_drop_out",
    *(
        f"psi_{what}_{share}_avg{s}"
        for what in ("cpu", "memory", "io")
        for share in ("some", "full")
        for s in (10, 60, 300)
    ),
}
OF_PODS = {
    "container_cpu_total_usage",
    "container_mem_total_usage",
    "container_cpu_limit",
    "container_cpu_quota",
    "container_cpu_period",
    "container_sched_run_queue_time",
    "ext_res_container_cpu_total_usage",
    "ext_res_container_mem_total_usage",
    "ext_cpu_total_distribute",
}
RATES_OF_NODE = {name for name in OF_NODE if name.startswith(("disk_", "network_"))} | {
    "cpu_total_usage",
    "cpu_total_utilization",
    "exclusive_cpu_idle",
}


def test_rules_may_name_each_measured_metric():
    assert COLLECTED == OF_NODE | OF_PODS


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def labelled(state: State, metric: str, label: str) -> dict[str, float]:
    return {series.labels[label]: series.value for series in state.metrics[metric]}


def of_containers(state: State, metric: str) -> dict[tuple[str, str], float]:
    """Values by pod and container; "" is the pod itself."""
    return {(s.labels["PodName"], s.labels["ContainerName"]): s.value for s in state.metrics[metric]}


# --- the node --------------------------------------------------------------------------------------------------------


def test_each_metric_has_a_sample_or_a_reason(node: FakeNode):
    state = node.collect()
    assert state.metrics.keys() | state.missing.keys() == OF_NODE | OF_PODS
    assert not state.metrics.keys() & state.missing.keys()
    assert state.time == node.time
    assert all(series.time == node.time for each in state.metrics.values() for series in each)


def test_rates_are_missing_with_a_reason_in_the_first_cycle(node: FakeNode):
    state = node.collect()
    assert RATES_OF_NODE <= state.missing.keys()
    assert {state.missing[name].partition(": ")[0] for name in RATES_OF_NODE - {"exclusive_cpu_idle"}} <= {
        "no previous reading yet",
        "sda",
        "eth0",
    }
    assert state.value("cpu_total_usage") is None
    assert state.value("memory_total_usage") == 2_000_000 * 1024
    assert state.value("cpu_core_numbers") == 2


def test_load_of_the_node(node: FakeNode):
    node.collect()
    node.proc.cpus = [(1000 + 750, 9000 + 250), (1000 + 250, 9000 + 750)]
    node.proc.write()
    state = node.after(10)
    assert state.value("cpu_total_utilization") == pytest.approx(50.0)
    assert state.value("cpu_total_usage") == pytest.approx(1000.0)
    assert state.value("memory_total") == 8_000_000 * 1024
    assert state.value("memory_total_utilization") == pytest.approx(25.0)
    assert [state.value(f"cpu_load_{span}_min") for span in (1, 5, 15)] == [0.5, 0.4, 0.3]
    assert (state.value("psi_cpu_some_avg10"), state.value("psi_io_full_avg10")) == (2.5, 1.25)
    assert state.value("psi_memory_some_avg300") == 0.75


def test_free_huge_pages_are_not_used_memory(node: FakeNode):
    """A pool of huge pages is not available memory, and evicting pods does not free it."""
    text = node.proc.path("meminfo").read_text().replace("HugePages_Total: 0\n", "")
    node.proc.path("meminfo").write_text(
        f"{text}HugePages_Total: 500\nHugePages_Free: 250\nHugepagesize: 2048 kB\nHugetlb: 1024000 kB\n"
    )
    assert node.collect().value("memory_total_usage") == (2_000_000 - 250 * 2048) * 1024
    for size, free in ((2048, 250), (1 << 20, 1)):
        directory = node.root / f"sys/kernel/mm/hugepages/hugepages-{size}kB"
        directory.mkdir(parents=True)
        (directory / "free_hugepages").write_text(f"{free}\n")
    assert node.collect().value("memory_total_usage") == (2_000_000 - 250 * 2048 - (1 << 20)) * 1024


def test_disks_are_measured_in_kib_and_operations_per_second(node: FakeNode):
    node.collect()
    node.proc.disks["sda"] = (10 + 50, 80 + 2048, 20 + 100, 160 + 4096, 500 + 2500)
    node.proc.disks["sdb"] = (1, 8, 0, 0, 5)
    node.proc.write()
    state = node.after(10)
    found = {name: labelled(state, name, "diskName") for name in state.metrics if name.startswith("disk_")}
    assert found == {
        "disk_read_kibps": {"sda": 102.4},
        "disk_write_kibps": {"sda": 204.8},
        "disk_read_iops": {"sda": 5.0},
        "disk_write_iops": {"sda": 10.0},
        "disk_read_utilization": {"sda": 25.0},
        "disk_total_utilization": {"sda": 25.0},
    }
    state = node.after(10)
    assert labelled(state, "disk_read_iops", "diskName") == {"sda": 0.0, "sdb": 0.0}


def test_interfaces_are_measured_in_kilobits_and_packets_per_second(node: FakeNode):
    node.collect()
    node.proc.interfaces["eth0"] = (1000 + 125_000, 10 + 100, 1 + 5, 2000 + 250_000, 20 + 200, 2 + 10)
    node.proc.write()
    state = node.after(10)
    found = {name: labelled(state, name, "NetInterface") for name in state.metrics if name.startswith("network_")}
    assert found == {
        "network_receive_kibps": {"eth0": 100.0},
        "network_sent_kibps": {"eth0": 200.0},
        "network_receive_pckps": {"eth0": 10.0},
        "network_sent_pckps": {"eth0": 20.0},
        "network_drop_in": {"eth0": 0.5},
        "network_drop_out": {"eth0": 1.0},
    }


def test_the_network_of_the_host_is_that_of_process_1(node: FakeNode):
    """In a pod that mounts the host's /proc, net/dev is that of the reading process."""
    node.proc.of_process_1 = True
    node.proc.path("net/dev").write_text("Receive\nb\n  eth9: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n")
    node.proc.write()
    node.collect()
    assert "network_sent_kibps" in node.after(10).metrics


def test_a_missing_interface_is_reported(tmp_path: Path):
    node = FakeNode(tmp_path, options={"interfaces": ("bond0",)})
    node.collect()
    missing = node.after(10).missing["network_receive_kibps"]
    assert missing == "unknown network interface bond0; existing: lo, eth0"


def test_the_idle_time_of_exclusive_cpus_is_measured(node: FakeNode):
    node.cpu_manager_state.write_text('{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"c":"1"}}}')
    node.collect()
    node.proc.cpus = [(2000, 9000), (1000 + 250, 9000 + 750)]
    node.proc.write()
    assert node.after(10).value("exclusive_cpu_idle") == pytest.approx(750.0)
    node.cpu_manager_state.write_text('{"policyName":"none"}')
    assert node.after(10).value("exclusive_cpu_idle") == 0.0
    node.cpu_manager_state.write_text('{"entries":{"u":{"c":"one"}}}')
    assert "CPU manager state" in node.after(10).missing["exclusive_cpu_idle"]
    node.cpu_manager_state.unlink()
    assert "does not exist" in node.after(10).missing["exclusive_cpu_idle"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "metrics"),
    [
        ("stat", {"cpu_total_usage", "cpu_total_utilization", "cpu_core_numbers", "exclusive_cpu_idle"}),
        ("meminfo", {"memory_total", "memory_total_usage", "memory_total_utilization"}),
        ("loadavg", {"cpu_load_1_min", "cpu_load_5_min", "cpu_load_15_min"}),
        ("diskstats", {name for name in OF_NODE if name.startswith("disk_")}),
        ("net/dev", {name for name in OF_NODE if name.startswith("network_")}),
        ("pressure/io", {name for name in OF_NODE if name.startswith("psi_io")}),
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"garbage\n", b"\xff\xfe\x00 1 2 3 4\n"], ids=repr)
def test_an_invalid_file_affects_only_its_own_metrics(
    node: FakeNode, file: str, metrics: set[str], content: bytes | None
):
    node.collect()
    before = node.after(10)
    path = node.proc.path(file)
    good = path.read_bytes()
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    bad = node.after(10)
    empty_is_right = content == b"" and file == "diskstats"
    assert metrics == before.metrics.keys() - bad.metrics.keys()
    assert metrics <= bad.missing.keys()
    if not empty_is_right and content is not None:
        assert all(file in bad.missing[name] for name in metrics)
    path.write_bytes(good)
    node.after(10)
    assert node.after(10).metrics.keys() == before.metrics.keys()


def test_decreasing_counters_of_the_node_give_no_rate(node: FakeNode):
    node.collect()
    node.proc.cpus = [(10, 10), (10, 10)]
    node.proc.disks["sda"] = (1, 1, 1, 1, 1)
    node.proc.interfaces["eth0"] = (1, 1, 1, 1, 1, 1)
    node.proc.write()
    state = node.after(10)
    for metric in ("cpu_total_usage", "disk_read_iops", "network_drop_in"):
        assert "was reset" in state.missing[metric]
    assert "cpu_total_usage" in node.after(10).metrics


@pytest.mark.parametrize(
    ("cpus", "why"),
    [
        ([(1100, 9900), (1050, 500)], "a counter of cpu1 decreased"),
        ([(1100, 9900), (1050, 8990)], "a counter of cpu1 decreased"),
        ([(1100, 9900), (1050, 19_000)], "cpu1 counted 100 s in 10 s"),
        ([(1100, 9900)], "cpu1 is gone"),
        ([(1100, 9900), (1050, 9950), (5, 5)], "cpu2 is new"),
    ],
)
def test_a_cpu_that_goes_offline_or_online_gives_no_sample(node: FakeNode, cpus: list[tuple[int, int]], why: str):
    """Its idle time steps back or forward (node_exporter issue 1903)."""
    node.collect()
    node.proc.cpus = cpus
    node.proc.write()
    state = node.after(10)
    for metric in ("cpu_total_usage", "cpu_total_utilization", "exclusive_cpu_idle"):
        assert why in state.missing[metric]
    node.proc.cpus = [(busy + 200, idle + 800) for busy, idle in cpus]
    node.proc.write()
    assert node.after(10).value("cpu_total_utilization") == pytest.approx(20.0)


def test_a_kernel_without_pressure_has_a_hint(node: FakeNode):
    for name in ("cpu", "memory", "io"):
        node.proc.path(f"pressure/{name}").unlink()
    assert "psi=1" in node.collect().missing["psi_cpu_some_avg10"]


def test_a_kernel_with_pressure_disabled_has_a_hint(node: FakeNode, monkeypatch):
    """RHEL contains it and boots with it disabled: the files exist, and reads fail with EOPNOTSUPP."""
    real = open

    def switched_off(path, *arguments, **more):
        if str(path).endswith("pressure/io"):
            raise OSError(errno.EOPNOTSUPP, "Operation not supported", path)
        return real(path, *arguments, **more)

    monkeypatch.setattr("builtins.open", switched_off)
    state = node.collect()
    assert "psi=1" in state.missing["psi_io_some_avg10"]
    assert "psi_io_some_avg10" in state.absent
    assert "psi_cpu_some_avg10" in state.metrics


def test_metrics_that_the_node_does_not_have_are_absent(tmp_path: Path):
    """As in the shipped DaemonSet, which does not mount the kubelet's directory; metric_missing is 0."""
    node = FakeNode(tmp_path)
    node.cpu_manager_state.unlink()
    node.run(pod(1, 1), {}, {})
    node.collect()
    state = node.after(10)
    assert state.missing.keys() == state.absent
    assert state.absent == {"exclusive_cpu_idle", "container_sched_run_queue_time", "ext_cpu_total_distribute"}


@pytest.mark.parametrize("version", ["4", "6"])
def test_by_default_the_interfaces_of_the_default_routes_are_measured(tmp_path: Path, version: str):
    node = FakeNode(tmp_path)
    node.proc.interfaces = dict.fromkeys(("lo", "cali1", "ens3", "ens4"), (1000, 10, 1, 2000, 20, 2))
    node.proc.default_routes = ("ens3",) if version == "4" else ()
    node.proc.write()
    if version == "6":
        zero, gateway = "0" * 32, "fe80" + "0" * 28
        line = f"{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003 {{:>8}}\n"
        node.proc.path("net/ipv6_route").write_text(line.format("ens3") + line.format("lo"))
    node.collect()
    state = node.after(10)
    assert labelled(state, "network_drop_in", "NetInterface") == {"ens3": 0.0}


# --- time ------------------------------------------------------------------------------------------------------------


def test_rates_do_not_depend_on_the_wall_clock(node: FakeNode):
    node.collect()
    node.proc.disks["sda"] = (110, 80, 20, 160, 500)
    node.proc.write()
    node.time -= 86_400
    state = node.after(10)
    assert labelled(state, "disk_read_iops", "diskName") == {"sda": 10.0}
    assert state.time == node.time


def test_a_rate_over_more_than_three_intervals_is_missing(node: FakeNode):
    node.collect()
    state = node.after(31)
    assert "31 s old" in state.missing["cpu_total_usage"]
    assert "cpu_total_usage" in node.after(30).metrics


def test_a_stopped_clock_gives_no_rate(node: FakeNode):
    node.collect()
    assert "no time has passed" in node.after(0).missing["cpu_total_usage"]


# --- pods ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("version", ["v1", "v2", "hybrid"])
@pytest.mark.parametrize("driver", list(Driver))
def test_the_usage_of_pods_and_containers(tmp_path: Path, version: str, driver: Driver):
    """The values of a pod are those of its own group with both drivers; Crane loses those of systemd."""
    node = FakeNode(tmp_path, version, driver)
    facts = pod(1, 2, qos=QosClass.BURSTABLE, start_time=5.0, labels={"app": "web"})
    limits = {"quota": 20_000, "period": 50_000, "memory": 30 * MIB, "inactive": 10 * MIB, "throttled": 3}
    node.run(facts, {"cpu_ns": 100, "memory": 90 * MIB, "inactive": 20 * MIB}, limits, {"memory": 40 * MIB})
    first = node.collect().pods[0]
    assert (first.cpu, first.memory) == (None, 70 * MIB)
    assert [(each.cpu, each.throttled) for each in first.containers] == [(None, None), (None, False)]
    limits |= {"cpu_ns": 2 * CORE, "throttled": 4}
    node.run(facts, {"cpu_ns": 100 + 5 * CORE, "memory": 90 * MIB}, limits, {"cpu_ns": CORE, "memory": 40 * MIB})
    state = node.after(10)
    (found,) = state.pods
    assert (found.key, found.labels, found.start_time) == ("default/pod-1", {"app": "web"}, 5.0)
    assert (found.cpu, found.memory) == (pytest.approx(0.5), 90 * MIB)
    one, two = found.containers
    assert (one.name, one.id, one.cpu) == ("c0", container_id(1, 0), pytest.approx(0.2))
    assert (one.memory, one.quota, one.period, one.throttled) == (20 * MIB, 20_000, 50_000, True)
    assert (two.cpu, two.quota, two.period, two.throttled) == (pytest.approx(0.1), None, 100_000, False)
    assert of_containers(state, "container_cpu_total_usage") == {
        ("pod-1", ""): pytest.approx(0.5),
        ("pod-1", "c0"): pytest.approx(0.2),
        ("pod-1", "c1"): pytest.approx(0.1),
    }
    assert of_containers(state, "container_mem_total_usage")[("pod-1", "c0")] == 20 * MIB
    assert of_containers(state, "container_cpu_quota") == {("pod-1", "c0"): 20_000, ("pod-1", "c1"): 0}
    assert of_containers(state, "container_cpu_period") == {("pod-1", "c0"): 50_000, ("pod-1", "c1"): 100_000}
    shares = 1024 if version != "v2" else 2598
    assert of_containers(state, "container_cpu_limit") == {("pod-1", "c0"): shares, ("pod-1", "c1"): shares}
    assert state.metrics["container_cpu_total_usage"][-1].labels == {
        "PodName": "pod-1",
        "PodNamespace": "default",
        "PodUid": uid(1),
        "ContainerName": "",
        "ContainerId": "",
        "HasExtRes": "false",
    }


def test_a_pod_of_an_unknown_class_is_found(node: FakeNode):
    facts = pod(1, 0, qos=QosClass.BURSTABLE)
    node.run(facts, {"memory": 5 * MIB})
    node.pods.pods = [pod(1, 0, qos=QosClass.UNKNOWN)]
    assert node.collect().pods[0].memory == 5 * MIB


def test_the_group_of_a_static_pod_has_the_hash_of_its_manifest(node: FakeNode):
    facts = pod(1, 0, group_uid="7c2f3f0ad4f1a9d5b6c3e8f0a1b2c3d4", static=True)
    node.run(facts, {"memory": 5 * MIB})
    (found,) = node.collect().pods
    assert (found.uid, found.memory, found.static) == (uid(1), 5 * MIB, True)


def test_extended_resources_are_summed_over_their_pods(tmp_path: Path):
    node = FakeNode(tmp_path, options={"extended_cpu_allocatable": lambda: 8.0})
    one, two = pod(1, 2, extended=["c1"], extended_cpu_request=2.0), pod(2, 1, extended=["c0"])
    node.run(one, {}, {"memory": MIB}, {"memory": 2 * MIB})
    node.run(two, {}, {"memory": 4 * MIB})
    node.run(pod(3, 1), {}, {"memory": 8 * MIB})
    state = node.collect()
    assert state.value("ext_res_container_mem_total_usage") == 6 * MIB
    assert "ext_res_container_cpu_total_usage" in state.missing
    assert state.value("ext_cpu_total_distribute") == 25.0
    node.run(one, {}, {"cpu_ns": CORE}, {"cpu_ns": CORE})
    node.run(two, {}, {"cpu_ns": 2 * CORE})
    state = node.after(10)
    assert state.value("ext_res_container_cpu_total_usage") == pytest.approx(0.3)
    extended = {s.labels["HasExtRes"] for s in state.metrics["container_cpu_quota"] if s.labels["PodName"] == "pod-3"}
    assert extended == {"false"}


def test_the_usage_of_extended_resources_is_0_without_any(node: FakeNode):
    node.run(pod(1, 1), {}, {})
    assert node.collect().value("ext_res_container_cpu_total_usage") == 0.0


def test_the_time_that_tasks_wait_for_a_cpu(tmp_path: Path):
    node = FakeNode(tmp_path, options={"run_queues": True})
    facts = pod(1, 1)
    node.run(facts, {}, {})
    path = node.container_path(facts, container_id(1))

    def waits(**by_process: int) -> None:
        node.cgroups.write(path, "cgroup.procs", "".join(f"{name[1:]}\n" for name in by_process))
        for name, wait in by_process.items():
            place = node.proc.path(f"{name[1:]}/schedstat")
            place.parent.mkdir(exist_ok=True)
            place.write_text(f"123 {wait} 7\n")

    waits(p11=1_000_000, p12=5_000_000)
    assert "container_sched_run_queue_time" in node.collect().missing
    waits(p11=3_000_000, p13=3_000_000)
    state = node.after(10)
    assert of_containers(state, "container_sched_run_queue_time") == {("pod-1", "c0"): pytest.approx(500.0)}


def test_a_decreasing_or_old_throttling_counter_is_unknown(node: FakeNode):
    facts = pod(1, 1)
    limits = {"quota": 20_000, "period": 100_000}
    for seconds, throttled, expected in ((0, 7, None), (10, 7, False), (10, 8, True), (10, 2, None), (31, 9, None)):
        node.run(facts, {}, limits | {"throttled": throttled})
        assert node.after(seconds).pods[0].containers[0].throttled is expected


def test_a_process_moved_from_another_group_adds_no_waiting_time(tmp_path: Path):
    node = FakeNode(tmp_path, options={"run_queues": True})
    facts = pod(1, 1)
    node.run(facts, {}, {})
    path = node.container_path(facts, container_id(1))
    node.proc.path("11").mkdir()
    node.proc.path("11/schedstat").write_text(f"1 {3600 * CORE} 7\n")
    node.collect()
    node.cgroups.write(path, "cgroup.procs", "11\n")
    assert "container_sched_run_queue_time" in node.after(10).missing


@pytest.mark.parametrize("driver", list(Driver))
def test_the_usage_of_pods_with_containers_elsewhere_is_unknown_not_0(tmp_path: Path, driver: Driver, caplog):
    """Kubelet and runtime have different drivers, so the group of the pod has no process."""
    node = FakeNode(tmp_path, "v2", driver, options={"run_queues": True})
    mixed, right = pod(1, 2, extended=("c0",)), pod(2, 1)
    node.run(right, {"memory": MIB, "cpu_ns": CORE}, {"memory": MIB, "cpu_ns": CORE})
    node.cgroups.add(node.cgroups.pod_path(uid(1)), cpu_ns=0, memory=0)
    node.pods.pods = [mixed, right]
    path = f"/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:{container_id(1)}"
    node.proc.path("77").mkdir()
    node.proc.path("77/cgroup").write_text(f"0::{path}\n")
    for _ in range(3):
        state = node.after(10)
        unknown, known = state.pods
        assert (unknown.cpu, unknown.memory, unknown.containers) == (None, None, ())
        assert unknown.unmeasured == "none of its running containers has a control group below that of the pod"
        assert (known.memory, known.unmeasured) == (MIB, "")
    assert "default/pod-1" in state.missing["ext_res_container_cpu_total_usage"]
    (warning,) = (each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING)
    assert path in warning
    assert f"the cgroup driver {driver}: set the container runtime to the same one" in warning
    for number in range(2):
        node.cgroups.add(node.container_path(mixed, container_id(1, number)), cpu_ns=CORE, memory=MIB)
    assert [each.unmeasured for each in node.after(10).pods] == ["", ""]


def test_a_sandbox_without_groups_of_containers_is_measured_as_a_pod(node: FakeNode):
    """Kata and gVisor run all containers in one group below the pod's."""
    node.cgroups.add(node.cgroups.pod_path(uid(1)), cpu_ns=CORE, memory=MIB)
    node.cgroups.add(f"{node.cgroups.pod_path(uid(1))}/kata_{container_id(9)}")
    node.pods.pods = [pod(1, 1)]
    node.collect()
    node.cgroups.add(node.cgroups.pod_path(uid(1)), cpu_ns=2 * CORE, memory=MIB)
    (found,) = node.after(10).pods
    assert (found.cpu, found.memory, found.containers) == (pytest.approx(0.1), MIB, ())


def mirror(number: int, of: str, created: float) -> PodFacts:
    """A mirror pod of the API with an annotation that names the uid `of`."""
    return replace(pod(number, 1, group_uid=of, static=True), created=created)


def test_of_two_pods_with_the_same_uid_the_one_that_could_not_choose_it_is_measured(node: FakeNode, caplog):
    """The API gives a pod its uid; of two mirror pods, the older one could not know the other's. The others are
    ignored, also while the list lacks the pod with the uid for a moment."""
    victim, forged = replace(pod(1, 1), created=2000.0), mirror(2, uid(1), 1000.0)
    static, copied = mirror(3, uid(9), 1000.0), mirror(4, uid(9), 1001.0)
    for facts in (victim, static):
        node.run(facts, {"memory": MIB}, {"memory": MIB})
    for listed in ([forged, victim, copied, static], [forged, copied, static]):
        node.pods.pods = listed
        found = {each.key: each.memory for each in node.after(10).pods}
        assert {"default/pod-1": MIB, "default/pod-3": MIB} == found
    ignored = [each.getMessage() for each in caplog.records if "ignoring" in each.getMessage()]
    assert [
        f"ignoring the pod default/pod-2: it has the uid {uid(1)} of the pod default/pod-1",
        f"ignoring the pod default/pod-4: it has the uid {uid(9)} of the pod default/pod-3",
    ] == ignored


def test_a_mirror_pod_that_was_created_again_is_measured_at_once(node: FakeNode, caplog):
    """It replaces the earlier one, which is not listed any more."""
    earlier = mirror(1, uid(9), 1000.0)
    again = replace(earlier, pod=replace(earlier.pod, uid=uid(2)), created=2000.0)
    node.run(earlier, {"memory": MIB}, {"memory": MIB})
    for listed in (earlier, again):
        node.pods.pods = [listed]
        (found,) = node.after(10).pods
        assert (listed.pod.uid, MIB) == (found.uid, found.memory)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_of_two_static_pods_with_the_same_uid_the_first_by_name_is_measured(node: FakeNode, caplog):
    """Two manifests of static pods may state one uid."""
    first = pod(1, 1, static=True)
    second = replace(first, pod=replace(first.pod, name="pod-2"))
    node.run(first, {"memory": MIB}, {"memory": MIB})
    node.pods.pods = [second, first]
    for _ in range(2):
        (found,) = node.after(10).pods
        assert ("default/pod-1", MIB) == (found.key, found.memory)
    (warning,) = (each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING)
    assert f"ignoring the pod default/pod-2: it has the uid {uid(1)} of the pod default/pod-1" == warning


def test_a_list_that_lacks_pods_briefly_ends_no_pod(node: FakeNode, caplog):
    """As from a kubelet that restarted. A pod without a control group has ended."""
    one, two = pod(1, 1), pod(2, 1)
    for facts in (one, two):
        node.run(facts, {"memory": MIB}, {"memory": MIB})
    node.collect()
    node.pods.pods = []
    for seconds in (10, 10):
        assert [("default/pod-1", MIB), ("default/pod-2", MIB)] == [
            (each.key, each.memory) for each in node.after(seconds).pods
        ]
    node.cgroups.remove(node.cgroups.pod_path(uid(1)))
    assert ["default/pod-2"] == [each.key for each in node.after(5).pods]
    assert () == node.after(5).pods
    node.pods.pods = [two]
    assert ["default/pod-2"] == [each.key for each in node.after(10).pods]
    (said,) = (each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING)
    assert said.startswith("the list of pods lacks 2 pods that have control groups, such as default/pod-1")


# --- ended pods ------------------------------------------------------------------------------------------------------


def test_a_restarted_container_has_no_rate_for_one_cycle(node: FakeNode):
    facts = pod(1, 1)
    node.run(facts, {"cpu_ns": 50 * CORE}, {"cpu_ns": 50 * CORE})
    node.collect()
    node.run(facts, {"cpu_ns": 51 * CORE}, {"cpu_ns": CORE})
    found = node.after(10).pods[0]
    assert (found.cpu, found.containers[0].cpu) == (pytest.approx(0.1), None)
    node.run(facts, {"cpu_ns": 52 * CORE}, {"cpu_ns": 2 * CORE})
    assert node.after(10).pods[0].containers[0].cpu == pytest.approx(0.1)


def test_a_pod_that_ends_before_the_read_has_no_usage(node: FakeNode, caplog):
    one, two = pod(1, 1), pod(2, 1)
    node.run(one, {"memory": MIB}, {})
    node.run(two, {"memory": MIB}, {})
    node.collect()
    node.cgroups.remove(node.cgroups.pod_path(uid(1)))
    gone, there = node.after(10).pods
    assert (gone.cpu, gone.memory, gone.containers) == (None, None, ())
    assert there.memory == MIB
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_an_ended_container_is_left_out_and_its_pod_keeps_its_values(node: FakeNode):
    facts = pod(1, 2)
    node.run(facts, {"memory": 3 * MIB}, {"memory": MIB}, {"memory": MIB})
    node.cgroups.remove(node.container_path(facts, container_id(1, 0)))
    (found,) = node.collect().pods
    assert [each.name for each in found.containers] == ["c1"]
    assert found.memory == 3 * MIB


def test_containers_are_summed_if_the_group_of_the_pod_cannot_be_read(node: FakeNode):
    facts = pod(1, 2)
    node.run(facts, {}, {"memory": MIB}, {"memory": 2 * MIB})
    for name in ("memory.current", "cpu.stat"):
        (node.cgroups.directories(node.cgroups.pod_path(uid(1)))[0] / name).unlink()
    node.collect()
    node.cgroups.add(node.container_path(facts, container_id(1, 0)), cpu_ns=CORE, memory=MIB)
    node.cgroups.add(node.container_path(facts, container_id(1, 1)), cpu_ns=2 * CORE, memory=2 * MIB)
    (found,) = node.after(10).pods
    assert (found.cpu, found.memory) == (pytest.approx(0.3), 3 * MIB)
    node.cgroups.write(node.container_path(facts, container_id(1, 1)), "memory.stat", "")
    (found,) = node.after(10).pods
    assert found.memory is None, "half of the containers are not the pod"


def test_a_container_with_an_unreadable_quota_is_left_out(node: FakeNode, caplog):
    facts = pod(1, 1)
    node.run(facts, {"memory": MIB}, {"quota": 5000})
    node.collect()
    path = node.container_path(facts, container_id(1))
    for content in ("", "garbage\n", "max\n", "0 0\n", b"\xff"):
        node.cgroups.write(path, "cpu.max", content)
        (found,) = node.after(10).pods
        assert found.containers == ()
        assert found.memory == MIB
    warnings = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(warnings) == 1, "logged once when it begins"
    assert "cpu.max" in warnings[0]
    node.cgroups.write(path, "cpu.max", "5000 100000\n")
    with caplog.at_level(logging.INFO):
        assert node.after(10).pods[0].containers[0].quota == 5000
    assert "all control groups can be read again" in caplog.messages


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_is_not_read(node: FakeNode, phase: str):
    node.run(pod(1, 1), {"memory": MIB}, {})
    node.pods.pods = [pod(1, 1, phase=phase)]
    (found,) = node.collect().pods
    assert (found.phase, found.cpu, found.containers) == (phase, None, ())


@pytest.mark.parametrize("bad", ["", "..", "../../etc", "a/b"])
def test_a_uid_with_a_path_opens_no_file(node: FakeNode, bad: str):
    node.run(pod(2, 1), {"memory": MIB}, {})
    node.pods.pods = [pod(1, 1, group_uid=bad)]
    (found,) = node.collect().pods
    assert (found.cpu, found.containers) == (None, ())


# --- unknown pods ----------------------------------------------------------------------------------------------------


def test_pods_known_only_by_their_groups_are_not_candidates(node: FakeNode):
    node.run(pod(1, 1), {}, {})
    node.run(pod(2, 1, qos=QosClass.GUARANTEED), {}, {})
    node.pods.why = "the kubelet does not answer"
    state = node.collect()
    assert state.pods == ()
    reported = state.missing["pods"]
    assert "the kubelet does not answer. Use another source." in reported
    assert "2 pods have control groups" in reported
    assert "no action is taken on them" in reported
    assert OF_PODS <= state.missing.keys()
    assert "memory_total_usage" in state.metrics


def test_a_node_without_control_groups_has_a_hint(node: FakeNode):
    (node.cgroups.root / "cgroup.controllers").unlink()
    node.pods.pods = [pod(1, 1)]
    state = node.collect()
    assert "Mount the host's /sys/fs/cgroup" in state.missing["container_cpu_total_usage"]
    assert (state.pods[0].cpu, state.pods[0].containers) == (None, ())


def test_groups_of_a_kubelet_that_starts_later_are_found(node: FakeNode):
    state = node.collect()
    assert "no kubelet groups found" in state.missing["container_mem_total_usage"]
    node.run(pod(1, 1), {"memory": MIB}, {})
    assert node.after(10).pods[0].memory == MIB


def test_a_changed_layout_is_found(tmp_path: Path):
    node = FakeNode(tmp_path, driver=Driver.CGROUPFS)
    node.run(pod(1, 1), {"memory": MIB}, {})
    node.collect()
    node.cgroups.remove("/kubepods")
    node.cgroups.driver = Driver.SYSTEMD
    node.run(pod(1, 1), {"memory": 2 * MIB}, {})
    node.after(10)
    assert node.after(10).pods[0].memory == 2 * MIB


def test_metrics_of_other_sources_are_added(tmp_path: Path):
    class Windows:
        async def start(self) -> None: ...

        async def close(self) -> None: ...

        def read(self, *, now: float, monotonic: float) -> MetricReadings:
            readings = MetricReadings()
            readings.add("window_cpu_avg_5m", 12.5, now - 30)
            readings.mark_missing("the watcher is gone", "window_cpu_std_5m")
            readings.add("memory_total", 7.0, now)
            readings.mark_missing("no Prometheus", "cpu_load_1_min")
            return readings

    node = FakeNode(tmp_path, options={"sources": (Windows(),)})
    state = node.collect()
    assert state.value("window_cpu_avg_5m") == 12.5
    assert state.metrics["window_cpu_avg_5m"][0].time == node.time - 30
    assert state.missing["window_cpu_std_5m"] == "the watcher is gone"
    assert [each.value for each in state.metrics["memory_total"]] == [8_000_000 * 1024], "a name means one thing"
    assert "cpu_load_1_min" not in state.missing


# --- size ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_pods_leave_no_open_files(node: FakeNode):
    everything = [pod(number, 1) for number in range(1000)]
    for facts in everything:
        node.run(facts, {"memory": MIB}, {"memory": MIB})
    node.pods.pods = everything
    node.collect()
    open_files = open_below(node.root)
    state = node.after(10)
    assert len(state.pods) == 1000
    assert all(found.cpu == 0.0 and found.memory == MIB for found in state.pods)
    assert len(state.metrics["container_cpu_total_usage"]) == 2000
    assert open_below(node.root) == open_files
    node.pods.pods = everything[:1]
    node.after(20)  # a list may lack pods for half a minute
    assert len(node.after(20).metrics["container_cpu_total_usage"]) == 2


async def test_a_cycle_does_not_hold_the_event_loop(node: FakeNode):
    """A thread reads the files, so other tasks run while it waits."""
    file = node.proc.path("loadavg")
    text = file.read_bytes()
    file.unlink()
    os.mkfifo(file)

    def opened() -> int:
        return os.open(file, os.O_WRONLY | os.O_NONBLOCK)  # fails until a reader opens the other end

    cycle = asyncio.create_task(node.collector.collect(node.time))
    pipe = await eventually(opened, what="the file to be read", ignoring=(OSError,))
    assert not cycle.done()
    os.write(pipe, text)
    os.close(pipe)
    assert (await cycle).value("cpu_load_1_min") == 0.5
