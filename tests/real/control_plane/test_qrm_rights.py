"""`load-watcher qrm` with the settings and the ServiceAccount of deploy/qrm: no request is forbidden, and each granted
right is used."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.agent.qrm.test_main import RESERVED, Qrm, World, the_seeds_machine
from tests.deploy.rendering import Manifest, composed, settings_in
from tests.fakes.cri import FakeRuntime
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.real.control_plane.manifests import DEPLOY, apply_all, delete_all, overlay
from tests.real.control_plane.objects import end_pod, make_node, read, run_pod
from tests.real.control_plane.rights import granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = "load-watcher-qrm/load-watcher-qrm"
NODE = "qrm-1"
ROLES = ("storage-service", "reranker", "retriever")
DAEMON = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "none", "uid": "0", "controller": True}
IDLE = "resource.katalyst.kubewharf.io/reclaimed_millicpu"


def make_pods(api: ApiServer) -> list[str]:
    """Create a pod on each of the two NUMA nodes, and one of a third role, for which none is left; return the ids of
    their containers."""
    ids = []
    for role in ROLES:
        container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}
        made = run_pod(
            api,
            f"default/qrm-{role}",
            node=NODE,
            spec={"containers": [container]},
            annotations={"kubernetes.io/pod-role": role},
        )
        ids.append(made["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://"))
    return ids


@pytest.mark.parametrize(
    "components",
    [(), ("qrm-cri", "qrm-evict", "qrm-publish", "qrm-node-restriction")],
    ids=["dry-run", "enforcing"],
)
async def test_the_manager_uses_exactly_its_rights(
    cluster: ApiServer, tmp_path: Path, components: tuple[str, ...]
) -> None:
    """By the audit log of the API server."""
    rendered = composed(tmp_path, DEPLOY / "qrm", *components) if components else overlay("qrm")
    apply_all(cluster, rendered)
    make_node(cluster, NODE)
    before = len(cluster.audited(ACCOUNT))
    try:
        ids = make_pods(cluster)
        run_pod(cluster, "default/qrm-daemon", node=NODE, ownerReferences=[DAEMON])
        load = publish(snapshot_of({NODE: {"CPU": steady(26.25), "Memory": steady(40)}}))
        with the_seeds_machine() as world, Live(FakeService(published=load)) as watcher:
            await run(cluster, world, rendered, watcher=watcher, ids=ids, since=before)
        assert [] == refused(cluster, ACCOUNT, since=before)
        evicted = sum("deletionTimestamp" in read(cluster, f"default/qrm-{role}")["metadata"] for role in ROLES)
        assert (evicted, IDLE in read(cluster, NODE)["status"]["allocatable"]) == (
            (1, True) if components else (0, False)
        )
    finally:
        for role in (*ROLES, "daemon"):
            end_pod(cluster, f"default/qrm-{role}")
        cluster.ask("DELETE", f"/api/v1/nodes/{NODE}")
        delete_all(cluster, rendered)


async def run(
    api: ApiServer, world: World, rendered: list[Manifest], *, watcher: Live, ids: list[str], since: int
) -> None:
    """Run the manager as its DaemonSet does until each right is used."""
    (daemons,) = (each for each in rendered if each["kind"] == "DaemonSet")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    verb, *arguments = container["args"]
    assert verb == "qrm"
    mode = {each["name"]: each["value"] for each in container["env"] if each["name"] == "LOAD_WATCHER_QRM_MODE"}
    given = {
        "kubernetes.kubeconfig": api.kubeconfig(
            world.directory / "config", token=api.account_token(ACCOUNT, node=NODE)
        ),
        "qrm.node": NODE,
        "qrm.policy": "restricted",
        "qrm.adjust_interval": "100ms",
        "qrm.headroom_resource": IDLE,
        "qrm.watcher": f"http://127.0.0.1:{watcher.port}",
    }
    places = {"runtime_socket": world.socket, "state_dir": world.directory / "state"}
    places |= {"sys": world.directory / "sys", "kubelet_dir": world.directory / "kubelet"}
    places |= {"cgroup": world.directory / "cgroup"}
    given |= {f"qrm.{key}": str(path) for key, path in places.items()}
    arguments += [text for key, value in given.items() for text in ("--set", f"{key}={value}")]
    config = settings_in(rendered).replace("[qrm]\n", f"[qrm]\n{RESERVED}\n")
    async with FakeRuntime(world.socket, containers=set(ids)):
        with Qrm(world.directory / "qrm", *arguments, config=config, env=mode) as manager:
            await eventually(lambda: manager.state()["inadmissible"], what="a pod that cannot be admitted")
            rights = granted(rendered, ACCOUNT)
            await asyncio.to_thread(wait_until_used, api, rights, ACCOUNT, since=since)
