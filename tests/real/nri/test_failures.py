"""`load-watcher qrm` in mode nri that is dead, slow, or without its pods, with containerd/nri's runtime side: what
starts, what is refused, and what /qrm and the metrics say."""

import threading
from collections.abc import Iterator

import pytest

from tests.agent.qrm.runtime.nri.overlap import overlaps
from tests.agent.qrm.test_main import RESERVED, Qrm
from tests.real.nri.node import PLUGIN, NriNode, container_id, nri_node, wait_until_known
from tests.real.nri.runtime import Refused
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

REFUSE = 'on_failure = "refuse"'
UIDS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(8)]


@pytest.fixture
def node() -> Iterator[NriNode]:
    with nri_node() as made:
        yield made


def pending(node: NriNode, *uids: str) -> None:
    for uid in uids:
        node.pending(name(uid), uid, "storage-service", cpu="4")


def name(uid: str) -> str:
    return f"default/pod-{uid[:8]}"


def failures(qrm: Qrm, kind: str) -> float:
    return qrm.metric(f'qrm_nri_failures_total{{kind="{kind}"}}')


def test_sigkill_while_containers_are_created(node: NriNode):
    """No container is lost or waits; the next manager pins those without CPUs, and counts them."""
    pending(node, *UIDS)
    with node.runtime() as runtime:
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            wait_until_known(qrm, *UIDS)
            for number, uid in enumerate(UIDS):
                if number == 3:
                    killing = threading.Thread(target=qrm.kill)
                    killing.start()
                node.create(runtime, name(uid), uid)
            killing.join()
        given = runtime.cpusets()
        assert len(given) == len(UIDS)
        assert not overlaps(given)
        unpinned = [id for id, cpus in given.items() if not cpus]
        assert 0 < len(unpinned) < len(UIDS)
        with node.manage(RESERVED) as qrm:
            wait_for(lambda: all(runtime.cpusets().values()), what="all containers to be pinned")
            assert not overlaps(runtime.cpusets())
            assert {id: cpus for id, cpus in runtime.cpusets().items() if id not in unpinned} == {
                id: cpus for id, cpus in given.items() if cpus
            }
            wait_for(lambda: qrm.metric("qrm_nri_unpinned_total") == len(unpinned), what="the count")


def test_refuse_while_the_manager_is_dead_and_after_its_return(node: NriNode):
    before, during, after = UIDS[:3]
    pending(node, before, during, after)
    with node.runtime(required=[PLUGIN]) as runtime:
        with node.manage(RESERVED, REFUSE) as qrm:
            runtime.wait_for_plugin()
            wait_until_known(qrm, before)
            assert node.create(runtime, name(before), before).cpus == "2-5"
            qrm.kill()
        with pytest.raises(Refused):
            node.create(runtime, name(during), during)
        assert runtime.cpusets() == {container_id(before): "2-5"}
        with node.manage(RESERVED, REFUSE) as qrm:
            runtime.wait_for_plugin()
            wait_until_known(qrm, after)
            assert node.create(runtime, name(after), after).cpus
            assert qrm.metric("qrm_nri_unpinned_total") == 0


def test_refuse_while_the_manager_is_slow(node: NriNode):
    """The runtime waits for its timeout and refuses the container; later ones are created."""
    slow, later = UIDS[:2]
    pending(node, slow, later)
    with node.runtime(timeout=0.5, required=[PLUGIN]) as runtime, node.manage(RESERVED, REFUSE) as qrm:
        runtime.wait_for_plugin()
        wait_until_known(qrm, slow, later)
        runtime.run_pod(name(slow), slow)
        qrm.pause()
        with pytest.raises(Refused):
            runtime.create(slow, container_id(slow))
        qrm.resume()
        assert not runtime.cpusets()
        runtime.run_pod(name(later), later)
        done = wait_for(
            lambda: runtime.create(later, container_id(later)), what="a container after the pause", ignoring=(Refused,)
        )
        assert done.cpus
        assert qrm.metric("qrm_nri_unpinned_total") == 0


def test_refuse_a_pod_that_the_copy_does_not_have_yet(node: NriNode):
    """The kubelet creates the container again; then the copy has the pod."""
    late = UIDS[0]
    with node.runtime(required=[PLUGIN]) as runtime, node.manage(RESERVED, REFUSE) as qrm:
        runtime.wait_for_plugin()
        runtime.run_pod(name(late), late)
        with pytest.raises(Refused, match=r"do not have the pod yet \(qrm\.on_failure\)"):
            runtime.create(late, container_id(late))
        assert failures(qrm, "unknown-pod") == 1
        finding = next(each for each in qrm.state()["nri"]["findings"] if each["kind"] == "unknown-pod")
        assert "is not created" in finding["message"]
        pending(node, late)
        wait_until_known(qrm, late)
        assert runtime.create(late, container_id(late)).cpus == "2-5"
        assert qrm.metric("qrm_nri_unpinned_total") == 0


def test_without_the_kubernetes_api_the_copy_is_used(node: NriNode):
    """Pods that the copy has are pinned, new ones start unpinned; nothing waits for the API server."""
    known, unknown = UIDS[:2]
    pending(node, known)
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        wait_until_known(qrm, known)
        node.kube.forbidden = {(verb, "v1/pods") for verb in ("list", "watch")}
        node.kube.drop_connections()
        wait_for(lambda: qrm.metric("qrm_pods_age_seconds") > 0, what="the API to be missed")
        assert node.create(runtime, name(known), known).cpus == "2-5"
        pending(node, unknown)
        assert not node.create(runtime, name(unknown), unknown).cpus
        assert qrm.metric("qrm_nri_unpinned_total") == 1
        assert failures(qrm, "unknown-pod") == 1
        node.kube.forbidden = set()
        wait_for(lambda: all(runtime.cpusets().values()), what="the container to be pinned")


def test_a_manager_that_never_saw_the_kubernetes_api(node: NriNode):
    """Containers of the checkpoint keep their CPUs; a new one starts unpinned, and the reason is that no pod is
    known."""
    kept, new = UIDS[:2]
    pending(node, kept)
    with node.runtime() as runtime:
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            wait_until_known(qrm, kept)
            node.create(runtime, name(kept), kept)
        node.kube.forbidden = {(verb, "v1/pods") for verb in ("list", "watch")}
        pending(node, new)
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            assert not node.create(runtime, name(new), new).cpus
            finding = next(each for each in qrm.state()["nri"]["findings"] if each["kind"] == "unknown-pod")
            assert "starts without allocations" in finding["message"]
            assert runtime.cpusets()[container_id(kept)] == "2-5"
            node.kube.forbidden = set()
            wait_for(lambda: all(runtime.cpusets().values()), what="the container to be pinned")
            assert not overlaps(runtime.cpusets())
