"""What exists in the runtime, from the events of NRI."""

import pytest

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.table import MAX_REMOVED, MAX_SYNCHRONIZED, RuntimeTable, SynchronizedParts
from agent.qrm.runtime.nri.ttrpc import CallFailed

POD = pb.PodSandbox(id="s1", uid="u1", name="pod", namespace="default")
AGAIN = pb.PodSandbox(id="s2", uid="u1", name="pod", namespace="default")


def container(
    id: str, *, name: str = "main", sandbox: str = "s1", state: pb.ContainerState = pb.CONTAINER_CREATED
) -> pb.Container:
    return pb.Container(id=id, name=name, pod_sandbox_id=sandbox, state=state)


def ids(table: RuntimeTable) -> list[str]:
    return [each.id for each in table.containers]


def test_only_started_containers_run():
    table = RuntimeTable()
    table.add_container(POD, container("c1"))
    assert (ids(table), table.ids(), table.pods) == (["c1"], {}, {"u1"})
    assert table.ids(created=True) == {("u1", "main"): "c1"}
    table.start(container("c1"))
    assert table.ids() == {("u1", "main"): "c1"}
    table.start(container("unknown"))
    assert ids(table) == ["c1"]


def test_a_container_replaces_an_earlier_one_with_its_name():
    table = RuntimeTable()
    table.add_container(POD, container("c1"))
    table.add_container(POD, container("c2"))
    table.add_container(POD, container("c3", name="sidecar"))
    assert ids(table) == ["c2", "c3"]
    table.remove_container(container("c2"))
    table.remove_container(container("c2"))
    assert ids(table) == ["c3"]


def test_a_pod_ends_with_its_last_sandbox():
    """The kubelet makes another sandbox if one has failed."""
    table = RuntimeTable()
    table.add_container(POD, container("c1"))
    table.add_container(AGAIN, container("c2", name="other", sandbox="s2"))
    assert not table.remove_pod(POD)
    assert (ids(table), table.ended) == (["c2"], set())
    assert table.remove_pod(AGAIN)
    assert (ids(table), table.ended) == ([], {"u1"})
    table.add_pod(POD)
    assert not table.ended


def test_a_synchronization_replaces_earlier_events():
    table = RuntimeTable()
    table.add_container(POD, container("lost"))
    states = {"c1": pb.CONTAINER_RUNNING, "c2": pb.CONTAINER_CREATED, "c3": pb.CONTAINER_STOPPED}
    listed = [container(id, name=id, state=state) for id, state in states.items()]
    table.replace([POD], [*listed, container("c4", sandbox="unknown")])
    assert (table.connected, table.synchronized) == (True, True)
    assert [(each.id, each.started) for each in table.containers] == [("c1", True), ("c2", False)]


def test_parts_of_a_synchronization_keep_what_the_table_and_the_comparison_need():
    full = container("c1")
    full.env.append("SECRET=x")
    full.annotations["a"] = "b"
    full.linux.resources.cpu.cpus = "2-5"
    parts = SynchronizedParts()
    parts.add(pb.SynchronizeRequest(pods=[POD], containers=[full], more=True))
    parts.add(pb.SynchronizeRequest(containers=[container("c2")]))
    assert parts.pods == [POD]
    assert [each.id for each in parts.containers] == ["c1", "c2"]
    assert parts.containers[0].linux.resources.cpu.cpus == "2-5"
    assert not parts.containers[0].env
    assert not parts.containers[0].annotations


def test_parts_beyond_the_limit_are_refused():
    parts, large = SynchronizedParts(), pb.SynchronizeRequest(containers=[container("x" * (4 << 20))])
    for _ in range(7):
        parts.add(large)
    with pytest.raises(CallFailed, match=f"exceed {MAX_SYNCHRONIZED} bytes"):
        parts.add(large)
    assert not parts.containers
    with pytest.raises(CallFailed):
        parts.add(pb.SynchronizeRequest(containers=[container("c1")]))


def test_a_sandbox_that_was_removed_is_recognised_until_it_runs_again():
    """A runtime may send the events of one pod in another order, and may use an id again."""
    table = RuntimeTable()
    table.add_pod(POD)
    assert not table.is_removed(POD)
    table.remove_pod(POD)
    assert (table.is_removed(POD), table.is_removed(AGAIN)) == (True, False)
    table.add_pod(POD)
    assert not table.is_removed(POD)
    table.remove_pod(POD)
    table.replace([], [])
    assert not table.is_removed(POD)


def test_only_the_last_removed_sandboxes_are_kept():
    table = RuntimeTable()
    for number in range(MAX_REMOVED + 1):
        table.remove_pod(pb.PodSandbox(id=str(number), uid=str(number)))
    kept = [table.is_removed(pb.PodSandbox(id=str(number))) for number in (0, 1, MAX_REMOVED)]
    assert kept == [False, True, True]
