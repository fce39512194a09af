"""`load-watcher qrm` with the settings and the ServiceAccount of deploy/qrm: no request is forbidden, and each granted
right is used; the doctor names each right that is missing."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path

import pytest

from tests.agent.qrm.test_main import RESERVED, Qrm, World, the_seeds_machine
from tests.deploy.rendering import Manifest, composed, only, settings_in
from tests.doctor import Reported, doctor
from tests.fakes.cri import FakeRuntime
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.real.control_plane.manifests import DEPLOY, apply, apply_all, delete_all, overlay
from tests.real.control_plane.objects import end_pod, make_node, read, run_pod
from tests.real.control_plane.rights import Right, granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.real.parts import free_port
from tests.waiting import eventually, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = "load-watcher-qrm/load-watcher-qrm"
NODE = "qrm-1"
ENFORCING = ("qrm-cri", "qrm-evict", "qrm-publish")
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
    [(), (*ENFORCING, "qrm-node-restriction")],
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
            access = f"kubernetes.kubeconfig={given['kubernetes.kubeconfig']}"
            found = await asyncio.to_thread(reported, access, f"qrm.port={manager.port}", f"qrm.node={NODE}")
            assert names(found.one("qrm", "ok", "this account may").what) == {named(each) for each in rights}


def reported(*settings: str) -> Reported:
    return doctor("--only", "qrm", *(text for each in settings for text in ("--set", each)))


def names(what: str) -> set[str]:
    """The rights that a line of the doctor names."""
    return set(what.removeprefix("this account may ").split(", "))


def named(right: Right) -> str:
    """As the doctor names it."""
    return f"{right.verb} {right.resource}{f'.{right.group}' if right.group else ''}"


def test_the_doctor_names_each_missing_right(cluster: ApiServer, tmp_path: Path) -> None:
    """Of the settings, where no manager runs."""
    rendered = composed(tmp_path, DEPLOY / "qrm", *ENFORCING)
    apply_all(cluster, rendered)
    try:
        access = cluster.kubeconfig(tmp_path / "config", token=cluster.account_token(ACCOUNT))
        settings = ("mode=cri", "evict_inadmissible=true", "publish_capacity=true", f"node={NODE}")
        given = [f"kubernetes.kubeconfig={access}", *(f"qrm.{each}" for each in (*settings, f"port={free_port()}"))]

        def passes() -> bool:  # the authorizer of the API server follows roles by a watch
            return {each.status for each in reported(*given).of("qrm")} == {"ok", "skipped"}

        wait_for(passes, what="the rights to be in force")
        role = only(rendered, "ClusterRole", "load-watcher-qrm")
        for right in sorted(granted(rendered, ACCOUNT)):
            apply(cluster, without(role, right))

            def misses(right: Right = right) -> bool:
                found = reported(*given).of("qrm", "warn", "fail")
                return [f"this account may not {named(right)}"] == [each.what.partition(";")[0] for each in found]

            wait_for(misses, what=f"the doctor to name {named(right)}")
    finally:
        delete_all(cluster, rendered)


def without(role: Manifest, right: Right) -> Manifest:
    """The ClusterRole without one of its rights."""
    left = copy.deepcopy(role)
    for rule in left["rules"]:
        if right.resource in rule["resources"] and right.group in rule["apiGroups"]:
            rule["verbs"] = [verb for verb in rule["verbs"] if verb != right.verb]
    left["rules"] = [rule for rule in left["rules"] if rule["verbs"]]
    return left
