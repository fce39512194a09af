"""The reports of `load-watcher qrm` in mode nri on /qrm, in its log and metrics while the plug-in is not called, with
containerd/nri's runtime side."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.qrm.test_main import RESERVED, Qrm
from tests.real.nri.node import NriNode, container_id, nri_node, wait_until_known
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

UIDS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(3)]


@pytest.fixture
def node() -> Iterator[NriNode]:
    with nri_node() as made:
        yield made


def finding(qrm: Qrm, kind: str) -> Any:
    """The last finding of this kind, once there is one."""

    def found() -> Any:
        return next((each for each in qrm.state()["nri"]["findings"] if each["kind"] == kind), None)

    return wait_for(found, what=f"a finding {kind}")


def failures(qrm: Qrm, kind: str) -> float:
    return qrm.metric(f'qrm_nri_failures_total{{kind="{kind}"}}')


def test_containers_that_started_while_the_plugin_was_dead(node: NriNode):
    """The next manager finds them, counts them, and pins them; containers of an earlier manager are not among them."""
    pinned, dead, other = UIDS
    node.pending("default/pinned", pinned, "storage-service", cpu="4")
    with node.runtime() as runtime:
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            wait_until_known(qrm, pinned)
            assert node.create(runtime, "default/pinned", pinned).cpus
            assert qrm.metric("qrm_nri_unpinned_total") == 0
        for name, uid in (("default/dead", dead), ("default/other", other)):
            node.pending(name, uid, "storage-service", cpu="4")
            assert not node.create(runtime, name, uid).cpus
        with node.manage(RESERVED) as qrm:
            message = finding(qrm, "missed")["message"]
            assert "2 containers started while the runtime did not call the plug-in" in message
            assert "default/dead/container0" in message
            wait_for(lambda: all(runtime.cpusets().values()), what="the containers to be pinned")
            assert qrm.metric("qrm_nri_unpinned_total") == 2
            assert message in qrm.log()


def test_a_plugin_that_was_dropped_as_slow(node: NriNode):
    slow = UIDS[0]
    with node.runtime(timeout=0.5) as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        node.pending("default/slow", slow, "storage-service", cpu="4")
        wait_until_known(qrm, slow)
        runtime.run_pod("default/slow", slow)
        qrm.pause()
        assert not runtime.create(slow, container_id(slow)).cpus
        qrm.resume()
        message = finding(qrm, "dropped")["message"]
        assert "drops a plug-in that answers too slowly" in message
        assert failures(qrm, "dropped") == 1
        assert message in qrm.log()
        wait_for(lambda: all(runtime.cpusets().values()), what="the container to be pinned")
        assert "1 containers started" in finding(qrm, "missed")["message"]
        assert qrm.metric("qrm_nri_unpinned_total") == 1


def test_while_the_runtime_is_away(node: NriNode):
    """It is not a reason to restart the manager, so /healthz stays 200 and names it."""
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        wait_for(lambda: qrm.metric("qrm_nri_connected") == 1, what="the connection")
        assert qrm.get("/healthz").json()["nri"] == "connected"
        runtime.kill()
        wait_for(lambda: qrm.metric("qrm_nri_connected") == 0, what="the loss of the connection")
        health = qrm.get("/healthz")
        assert health.status == 200
        assert str(node.nri_socket) in health.json()["nri"]
        assert health.json()["nri"] == qrm.state()["nri"]["trouble"]
        assert finding(qrm, "disconnected")
        assert failures(qrm, "disconnected") == 1
        assert "containers start without allocations" in qrm.log()
        runtime.start()
        wait_for(lambda: qrm.metric("qrm_nri_connected") == 1, what="the next connection")


def test_the_age_of_the_pods_is_shown(node: NriNode):
    """It grows while the Kubernetes API does not answer; answers to the runtime use the copy."""
    known = UIDS[0]
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        node.pending("default/known", known, "storage-service", cpu="4")
        wait_until_known(qrm, known)
        assert qrm.state()["pods_age_s"] == 0
        assert qrm.metric("qrm_pods_age_seconds") == 0
        node.kube.forbidden = {(verb, "v1/pods") for verb in ("list", "watch")}
        node.kube.drop_connections()
        wait_for(lambda: qrm.metric("qrm_pods_age_seconds") > 0.5, what="the copy to be older than half a second")
        assert qrm.state()["pods_age_s"] > 0.5
        assert node.create(runtime, "default/known", known).cpus
