"""Failures around a running agent: its kubelet, its policies, its disk, the API. The agent makes no wrong change,
reports the failure, and continues after it."""

import resource
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
import yaml

from tests.agent.policy.writing import a_rule, node_qos, text_of, write
from tests.agent.service.test_process import POD, AgentProcess, Machine, agent, cycle_of, kubelet, machine, throttled
from tests.fakes.kubelet import FakeKubelet
from tests.waiting import wait_for

__all__ = ["kubelet", "machine"]  # fixtures

pytestmark = pytest.mark.slow

# Lowered quotas stay lowered during the whole test.
RULE = a_rule(metricRule={"name": "cpu_total_usage", "value": "1500"}, restoreThreshold=1_000_000)


def cycles(process: AgentProcess, more: int = 3) -> None:
    """Wait for this number of cycles."""
    begin = cycle_of(process)
    wait_for(lambda: cycle_of(process) >= begin + more, what=f"{more} more cycles")


def test_the_agent_acts_once_its_kubelet_responds(machine: Machine, kubelet: FakeKubelet):
    kubelet.fault = lambda: (500, b"etcd is away")
    with agent(machine, kubelet, "--enforce") as process:
        wait_for(
            lambda: "500" in process.get("/explain").json()["missing"].get("pods", ""), what="why there are no pods"
        )
        cycles(process)
        assert not throttled(machine)
        kubelet.fault = lambda: None
        wait_for(lambda: throttled(machine), what="the pod to be throttled")


def test_a_kubelet_that_does_not_respond_delays_no_cycle(machine: Machine, kubelet: FakeKubelet):
    over = threading.Event()
    machine.put(RULE)
    with agent(machine, kubelet, "--enforce") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")

        def hang() -> None:
            over.wait()

        kubelet.fault = hang
        try:
            wait_for(lambda: "pods" in process.get("/explain").json()["missing"], what="the pods to be too old")
            cycles(process)
            assert throttled(machine)  # missing policies restore nothing
        finally:
            over.set()
        wait_for(lambda: "pods" not in process.get("/explain").json()["missing"], what="the pods to be known again")


def test_invalid_policies_keep_the_previous_ones_active(machine: Machine, kubelet: FakeKubelet):
    machine.put(RULE)
    with agent(machine, kubelet, "--enforce") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        good = (machine.policies / "all.yaml").read_text()
        write(machine.policies, all=good + "---\n" + text_of(node_qos(a_rule(actionName="throtle"), name="other")))
        wait_for(lambda: process.get("/explain").json()["policies"]["problems"], what="the problem to be reported")
        cycles(process)
        assert process.get("/explain").json()["policies"]["rules"] == ["cpu.high"]
        assert throttled(machine)
        machine.put()
        wait_for(lambda: not throttled(machine), what="the quota to be back: no policy wants it any more")


def test_a_full_disk_stops_all_steps_until_there_is_space(machine: Machine, kubelet: FakeKubelet):
    """A limit on the file size of the process stands for a full disk."""
    machine.put()
    with agent(machine, kubelet, "--enforce") as process:
        cycles(process)
        before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, before[1]))
        machine.put(RULE)
        wait_for(lambda: process.get("/explain").json()["trouble"], what="the error to be reported")
        cycles(process)
        assert not throttled(machine)
        wait_for(lambda: "agent_audit_trouble 1.0" in process.get("/metrics").text, what="the metric of the failure")
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
        wait_for(lambda: throttled(machine), what="the pod to be throttled")


@contextmanager
def silent_api(directory: Path) -> Iterator[Path]:
    """A kubeconfig of an API that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"
        written = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path = directory / "kubeconfig"
        path.write_text(yaml.safe_dump(written))
        yield path


def test_an_api_that_hangs_prevents_neither_throttling_nor_shutdown(machine: Machine, kubelet: FakeKubelet):
    machine.put(RULE)
    with silent_api(machine.root) as kubeconfig:
        more = ("--enforce", "--set", f"kubernetes.kubeconfig={kubeconfig}", "--set", "agent.on_exit=restore")
        with agent(machine, kubelet, *more, kubernetes="true", interval="4s") as process:
            wait_for(lambda: throttled(machine), what="the pod to be throttled")
            wait_for(
                lambda: process.get("/explain").json()["stance"] == "throttle only",
                what="the restricted level",
            )
            assert process.stop() == 0  # it takes 3 s; the machine may be busy
    assert not throttled(machine)


def deeds(process: AgentProcess) -> int:
    return len(process.get("/audit").json()["deeds"])


def test_a_kubelet_with_an_incomplete_list_changes_nothing(machine: Machine, kubelet: FakeKubelet, tmp_path: Path):
    """The kubelet restarts and lists no pods; the runtime restarts and has no containers; the certificate is of another
    authority. The pod stays throttled, no step is repeated, and each failure is logged once."""
    own, other = trustme.CA(), trustme.CA()
    own.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    right, wrong = tmp_path / "right.pem", tmp_path / "wrong.pem"
    for authority, file in ((own, right), (other, wrong)):
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(file))
    context.load_cert_chain(right)
    machine.put(RULE)
    with (
        FakeKubelet([POD], tls=context) as secure,
        agent(machine, secure, "--enforce", kubelet_ca_file=tmp_path / "ca.crt", interval="500ms") as process,
    ):
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        wait_for(lambda: steady(process), what="the quota to stay")
        before = deeds(process), machine.quota()
        secure.pods = []
        cycles(process)
        secure.pods = [{**POD, "status": {**POD["status"], "containerStatuses": []}}]
        cycles(process)
        secure.pods = [POD]
        context.load_cert_chain(wrong)
        wait_for(lambda: "certificate is not trusted" in process.log(), what="the certificate to be refused")
        cycles(process)
        context.load_cert_chain(right)
        wait_for(
            lambda: "updates of the kubelet's pods resumed" in process.log(), what="the kubelet to be trusted again"
        )
        cycles(process, 2)
        assert before == (deeds(process), machine.quota())
        for said in ("the list of pods lacks 1 pods", "updates of the kubelet's pods stopped"):
            assert 1 == process.log().count(said), said
        machine.put()
        wait_for(lambda: not throttled(machine), what="the quota to be restored")


def steady(process: AgentProcess) -> bool:
    """Whether the last cycles carried out no step."""
    count = deeds(process)
    cycles(process)
    return count == deeds(process)
