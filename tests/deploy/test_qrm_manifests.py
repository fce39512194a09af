"""The QoS Resource Manager's DaemonSet: valid for Kubernetes, the same with kustomize and with Helm, with only the
rights and directories that each mode needs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import requests

from agent.qrm.runtime.nri.runtime_config import TOLERATION
from agent.qrm.settings import QrmSettings, read_settings
from tests.agent.qrm.test_main import NODE, Qrm, World, cri, world
from tests.deploy.rendering import (
    ChartError,
    Manifest,
    charted,
    composed,
    copied,
    kustomized,
    of_part,
    only,
    settings_in,
)
from tests.deploy.test_manifests import DEPLOY, granted, problems, read
from tests.fakes.cri import FakeRuntime
from tests.fakes.kube import KINDS
from tests.real.nri.node import PLUGIN, container_id, nri_node, wait_until_known
from tests.real.nri.runtime import Refused
from tests.real.parts import free_port
from tests.waiting import PATIENCE_SECONDS, eventually, wait_for

__all__ = ["world"]  # a fixture

pytestmark = [pytest.mark.real, pytest.mark.slow]

NAME = "load-watcher-qrm"
MODE = "LOAD_WATCHER_QRM_MODE"
WATCHER = "http://load-watcher.load-watcher:2020"
FITS, LARGE = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"
DAEMON = "33333333-0000-4000-8000-000000000000"
# Values with which the chart renders the same as components: names, settings, and others.
SAME: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "dry-run": (("qrm-podmonitor",), {}, {"podMonitor": {"enabled": True}}),
    "cri": (("qrm-cri", "qrm-evict", "qrm-publish"), {"evict_inadmissible": True, "publish_capacity": True}, {}),
    "nri": (("qrm-nri",), {}, {}),
}
OWNER = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "none", "uid": "0", "controller": True}
OF_DAEMON_SET: dict[str, Any] = {"ownerReferences": [OWNER]}
"""Of a pod that names a missing DaemonSet."""
READING = {("list", "v1/pods"), ("watch", "v1/pods"), ("create", "v1/events"), ("get", "apps/v1/daemonsets")}
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete")
EVICTING = {("get", "v1/pods"), ("create", "v1/pods/eviction")}
PUBLISHING = {("patch", "v1/nodes/status")}


def installed(mode: str, settings: Mapping[str, Any], values: Mapping[str, Any]) -> list[Manifest]:
    """Rendered by Helm into the namespace of kustomize, without the watcher."""
    config = {"qrm": {"mode": mode, "watcher": WATCHER, **settings}}
    return charted({"qrm": {"enabled": True, "config": config, **values}}, namespace=NAME)


@pytest.fixture(scope="module", params=sorted(SAME))
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, list[Manifest], list[Manifest]]:
    """A mode, and both ways to install it: manifests with components, and the chart with values."""
    mode: str = request.param
    components, settings, values = SAME[mode]
    manifests = composed(tmp_path_factory.mktemp(mode), DEPLOY / "qrm", *components)
    return mode, manifests, installed(mode, settings, values)


def daemon(rendered: list[Manifest]) -> dict[str, Any]:
    """The spec of its pods."""
    found: dict[str, Any] = only(rendered, "DaemonSet", NAME)["spec"]["template"]["spec"]
    return found


def rights(rendered: list[Manifest]) -> set[tuple[str, str]]:
    return granted(list(of_part(rendered, NAME).values()))


def test_the_manifests_are_valid_for_kubernetes(both: tuple[str, list[Manifest], list[Manifest]]) -> None:
    _, manifests, chart = both
    assert [] == problems(manifests)
    assert [] == problems(chart)


def take_mode(container: Manifest) -> str | None:
    """Remove the variable with the mode from a container; return its value."""
    given = {each["name"]: each for each in container["env"]}
    mode = given.pop(MODE, {}).get("value")
    container["env"] = list(given.values())
    return mode


def test_the_chart_and_the_manifests_are_equal(both: tuple[str, list[Manifest], list[Manifest]]) -> None:
    """Components use arguments and the environment for values that the chart has in the settings."""
    mode, manifests, chart = both
    expected, found = of_part(manifests, NAME), of_part(chart, NAME)
    given = only(list(expected.values()), "DaemonSet", NAME)["spec"]["template"]["spec"]["containers"][0]
    config = only(list(expected.values()), "ConfigMap", NAME)["data"]
    base = ["qrm"]
    for argument in given["args"][len(base) :]:
        name, _, value = argument.removeprefix("--set=qrm.").removeprefix("--").partition("=")
        config["qrm"][name] = {"true": True}.get(value, value)
    given["args"] = base
    config["qrm"]["mode"] = take_mode(given) or config["qrm"]["mode"]
    if mode == "cri":
        config["qrm"]["runtime_socket"] = str(QrmSettings().runtime_socket)
    if mode == "nri":
        config["qrm"]["nri_socket"] = str(QrmSettings().nri_socket)
    assert expected == found
    assert ("PodMonitor" in {each.partition(" ")[0] for each in expected}) == (mode == "dry-run")


def test_it_has_only_what_its_mode_needs(both: tuple[str, list[Manifest], list[Manifest]]) -> None:
    mode, manifests, _ = both
    expected = READING | (EVICTING | PUBLISHING if mode == "cri" else set())
    assert expected == rights(manifests)
    spec = daemon(manifests)
    (container,) = spec["containers"]
    writable = {each["name"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert {"state"} == writable
    hosts = {each["hostPath"]["path"]: each["hostPath"]["type"] for each in spec["volumes"] if "hostPath" in each}
    assert ("/run/containerd" in hosts) == (mode == "cri")
    # "DirectoryOrCreate" would make a directory that other users than root can enter.
    assert hosts.get("/var/run/nri") == ("Directory" if mode == "nri" else None)
    # A mount of a file would keep the old state after the kubelet has replaced it.
    assert {path: kind for path, kind in hosts.items() if path.startswith("/var/lib/kubelet")} == {
        "/var/lib/kubelet": "Directory"
    }
    (nothing,) = (each["name"] for each in spec["volumes"] if "emptyDir" in each)
    hidden = {each["mountPath"] for each in container["volumeMounts"] if each["name"] == nothing}
    assert {"/host/kubelet/pods", "/host/kubelet/pki"} == hidden
    assert {"drop": ["ALL"]} == container["securityContext"]["capabilities"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


def settings(rendered: list[Manifest], directory: Path) -> QrmSettings:
    """The settings as the program reads them."""
    (config,) = (each for each in rendered if each["kind"] == "ConfigMap" and NAME in each["metadata"]["name"])
    text = config["data"]["load-watcher.toml"]
    found, wrong = read_settings(read(f'{text}\n[provider]\nname = "host"\n', directory).parts["qrm"], cwd=directory)
    assert [] == wrong
    return found


def test_its_settings_name_its_volumes(both: tuple[str, list[Manifest], list[Manifest]], tmp_path: Path) -> None:
    mode, _, chart = both
    found, spec = settings(chart, tmp_path), daemon(chart)
    assert (mode, "127.0.0.1", WATCHER) == (found.mode, found.host, found.watcher)
    (container,) = spec["containers"]
    host = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    mounted = {each["mountPath"]: host.get(each["name"]) for each in container["volumeMounts"]}
    assert "/sys/devices" == mounted[str(found.sys / "devices")]
    assert "/sys/class/net" == mounted[str(found.sys / "class/net")]
    assert "/sys/fs/cgroup" == mounted[str(found.cgroup)]
    assert "/var/lib/kubelet" == mounted[str(found.kubelet_dir)]
    # Plug-ins outside of the pod name their sockets by the host's path.
    assert str(found.state_dir) == mounted[str(found.state_dir)]
    if mode == "cri":
        assert str(found.runtime_socket.parent) == mounted[str(found.runtime_socket.parent)]
    if mode == "nri":
        assert str(found.nri_socket.parent) == mounted[str(found.nri_socket.parent)]
    assert [found.metrics_port] == [each["containerPort"] for each in container["ports"]]


def test_it_is_disabled_by_default_and_not_selected_by_the_service_of_the_watcher() -> None:
    assert {} == of_part(charted(), NAME)
    rendered = charted({"qrm": {"enabled": True}, "agent": {"enabled": True}})
    labels = only(rendered, "DaemonSet", NAME)["spec"]["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in rendered if each["kind"] == "Service"]
    selectors.append(only(rendered, "DaemonSet", "load-watcher-agent")["spec"]["selector"]["matchLabels"])
    assert not [each for each in selectors if each.items() <= labels.items()]


def test_other_directories_and_the_watcher_of_the_release(tmp_path: Path) -> None:
    places = {"stateDirectory": "/opt/qrm", "kubeletDirectory": "/var/lib/k0s/kubelet"}
    runtime = {"config": {"qrm": {"mode": "cri"}}, "runtimeSocket": "/run/crio/crio.sock"}
    rendered = charted({"qrm": {"enabled": True, **places, **runtime}}, namespace="somewhere")
    found = settings(rendered, tmp_path)
    assert "http://load-watcher.somewhere:2020" == found.watcher
    assert (Path("/opt/qrm"), Path("/run/crio/crio.sock")) == (found.state_dir, found.runtime_socket)
    hosts = {each["hostPath"]["path"] for each in daemon(rendered)["volumes"] if "hostPath" in each}
    assert {"/opt/qrm", "/run/crio", "/var/lib/k0s/kubelet"} <= hosts
    nri = {"config": {"qrm": {"mode": "nri", "on_failure": "refuse"}}, "nriSocket": "/run/k3s/nri/nri.sock"}
    rendered = charted({"qrm": {"enabled": True, **nri}})
    found = settings(rendered, tmp_path)
    assert ("refuse", Path("/run/k3s/nri/nri.sock")) == (found.on_failure, found.nri_socket)
    assert "/run/k3s/nri" in {each["hostPath"]["path"] for each in daemon(rendered)["volumes"] if "hostPath" in each}


def test_its_pod_starts_although_the_runtime_requires_the_plugin(
    both: tuple[str, list[Manifest], list[Manifest]],
) -> None:
    """The default validator of NRI tolerates pods with this annotation, if its key is in the runtime's settings."""
    mode, *ways = both
    with nri_node() as node, node.runtime(required=[PLUGIN], tolerate=TOLERATION) as runtime:
        for uid, rendered in zip((FITS, LARGE), ways, strict=True):
            metadata = only(rendered, "DaemonSet", NAME)["spec"]["template"]["metadata"]
            runtime.run_pod(f"{NAME}/{NAME}", uid, annotations=metadata.get("annotations", {}))
            if mode == "nri":
                runtime.create(uid, container_id(uid))
                continue
            assert TOLERATION not in metadata.get("annotations", {})
            with pytest.raises(Refused, match=f'required plugin "{PLUGIN}" not present'):
                runtime.create(uid, container_id(uid))


def test_in_the_mode_server_it_has_no_token_and_no_rights(tmp_path: Path) -> None:
    rendered = charted({"qrm": {"enabled": True, "config": {"qrm": {"mode": "server", "cpu_plugin": False}}}})
    assert set() == rights(rendered)
    assert not daemon(rendered)["automountServiceAccountToken"]
    assert settings(rendered, tmp_path).watcher is None


@pytest.mark.parametrize(
    "values",
    [
        {"enable": True},
        {"config": {"qrm": {"mode": "nir"}}},
        {"config": {"qrm": {"runtime_socket": "/run/crio/crio.sock"}}},
        {"config": {"qrm": {"nri_socket": "/run/nri/nri.sock"}}},
        {"nriSocket": "nri.sock"},
        {"stateDirectory": "here"},
    ],
)
def test_a_misspelt_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ChartError, match="qrm"):
        charted({"qrm": values})


def asked_of(world: World) -> set[tuple[str, str]]:
    return {(each.verb, each.resource) for each in world.kube.asked}


def get(port: int, path: str) -> int:
    return requests.get(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS).status_code


def as_installed(world: World, manifests: list[Manifest], port: int, **more: str) -> Qrm:
    """With the arguments and settings of the manifests, except for paths; all other requests are refused."""
    (container,) = daemon(manifests)["containers"]
    text = settings_in(manifests)
    places = {"/host/sys/fs/cgroup": "cgroup", "/host/sys": "sys", "/host/kubelet": "kubelet"}
    for path, here in {**places, "/var/lib/load-watcher-qrm": "state"}.items():
        assert f'"{path}"' in text
        text = text.replace(f'"{path}"', f'"{world.directory / here}"')
    text = text.replace(WATCHER, "http://127.0.0.1:9")
    text += f'\n[kubernetes]\nkubeconfig = "{world.kube.kubeconfig(world.directory / "kubeconfig")}"\n'
    settings = {"METRICS_PORT": str(port), "POLICY": "restricted", **more}
    environment = {"NODE_NAME": NODE, **{f"LOAD_WATCHER_QRM_{key}": value for key, value in settings.items()}}
    environment |= {
        each["name"]: each["value"].replace("$(POD_IP)", "127.0.0.1")
        for each in container["env"]
        if each["name"].startswith("LOAD_WATCHER_") and each["name"] != "LOAD_WATCHER_CONFIG"
    }
    verb, *arguments = container["args"]
    assert verb == Qrm.verb
    world.kube.forbidden = {(verb, each) for verb in VERBS for each in (*KINDS, "v1/pods/eviction")} - rights(manifests)
    return Qrm(world.directory / "run", *arguments, config=text, env=environment)


async def test_it_runs_with_the_installed_settings_and_uses_each_right(world: World, tmp_path: Path) -> None:
    manifests = composed(tmp_path, DEPLOY / "qrm", "qrm-cri", "qrm-evict")
    (container,) = daemon(manifests)["containers"]
    alone = free_port()
    world.pod("default/fits", FITS, "storage-service", cpu="4")
    world.pod("default/large", LARGE, "storage-service", cpu="70", metadata=OF_DAEMON_SET)

    async with FakeRuntime(world.socket, containers={cri(FITS)}) as runtime:
        with as_installed(world, manifests, alone, RUNTIME_SOCKET=str(world.socket)) as qrm:
            await eventually(lambda: cri(FITS) in runtime.cpusets(), what="CPUs of its own")
            await eventually(lambda: asked_of(world) == rights(manifests), what="all rights to be used")
            assert (world.directory / "state" / "kubelet_qrm_checkpoint").exists()
            for probe in ("startupProbe", "livenessProbe"):
                assert 200 == get(alone, container[probe]["httpGet"]["path"])
            assert [200, 404, 404] == [get(alone, path) for path in ("/metrics", "/qrm", "/qrm/explain")]
            assert 200 == qrm.get("/qrm").status


def test_in_the_mode_nri_it_runs_with_the_installed_settings_and_uses_each_right(tmp_path: Path) -> None:
    """A container that fits gets CPUs before it starts; another is refused, with an Event."""
    manifests = composed(tmp_path, DEPLOY / "qrm", "qrm-nri")
    with (
        nri_node() as node,
        node.runtime() as runtime,
        as_installed(node, manifests, free_port(), NRI_SOCKET=str(node.nri_socket)) as qrm,
    ):
        runtime.wait_for_plugin()
        for name, uid, cpu in (("default/fits", FITS, "4"), ("default/large", LARGE, "70")):
            node.pending(name, uid, "storage-service", cpu=cpu)
            wait_until_known(qrm, uid)
        node.pending("default/daemon", DAEMON, "storage-service", cpu="1", metadata=OF_DAEMON_SET)
        assert "0-3" == node.create(runtime, "default/fits", FITS).cpus
        with pytest.raises(Refused, match="TopologyAffinityError"):
            node.create(runtime, "default/large", LARGE)
        wait_for(lambda: asked_of(node) == rights(manifests), what="all rights to be used")


# --- removal ---------------------------------------------------------------------------------------------------------


def restoring(directory: Path, mode: str) -> list[Manifest]:
    """deploy/qrm-restore with the component of a mode, as its comment says."""
    return kustomized(copied(directory, qrm_restore=[f"qrm-{mode}"]) / "qrm-restore")


@pytest.mark.parametrize("mode", ["cri", "nri"])
def test_removed_managers_restore_first(tmp_path: Path, mode: str) -> None:
    """Each pod restores with the settings of the manager, without its rights, and then waits."""
    (tmp_path / "before").mkdir()
    before = composed(tmp_path / "before", DEPLOY / "qrm", f"qrm-{mode}", "qrm-evict", "qrm-publish")
    manager = daemon(list(of_part(before, NAME).values()))
    manifests, chart = restoring(tmp_path, mode), installed(mode, {}, {"restore": True})
    assert [] == problems(manifests) + problems(chart)
    ours, theirs = of_part(manifests, NAME), of_part(chart, NAME)
    # Helm removes these two; kubectl would leave them with the rights of the manager.
    assert [] == ours.pop(f"ClusterRole {NAME}")["rules"]
    del ours[f"ClusterRoleBinding {NAME}"]
    pod = daemon(list(ours.values()))
    (running,), (restore,), (idle,) = manager["containers"], pod["initContainers"], pod["containers"]
    assert ["qrm", "restore", "--missing-ok"] == restore["args"]
    for part in ("image", "env", "volumeMounts", "securityContext"):
        assert running[part] == restore[part]
    assert manager["volumes"] == pod["volumes"]
    assert ["sleep", "infinity"] == idle["command"]
    assert not {"args", "env", "volumeMounts", "ports", "livenessProbe"} & idle.keys()
    assert (set(), set()) == (rights(manifests), rights(chart))
    assert not pod["automountServiceAccountToken"]
    assert mode == take_mode(restore)  # the chart has the mode in the settings
    ours[f"ConfigMap {NAME}"]["data"] = theirs[f"ConfigMap {NAME}"]["data"]
    assert ours == theirs


async def test_containers_are_restored_without_the_kubernetes_api(world: World, tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    manifests = composed(tmp_path / "before", DEPLOY / "qrm", "qrm-cri")
    world.pod("default/fits", FITS, "storage-service", cpu="4")
    async with FakeRuntime(world.socket, containers=set()) as runtime:
        runtime.add(cri(FITS), "container0", "default/fits", FITS)
        with as_installed(world, manifests, free_port(), RUNTIME_SOCKET=str(world.socket)) as qrm:
            await eventually(lambda: cri(FITS) in runtime.cpusets(), what="CPUs of its own")
        asked = len(world.kube.asked)
        (container,) = daemon(restoring(tmp_path, "cri"))["initContainers"]
        restore = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "load_watcher", *container["args"], "--config", str(qrm.config_file)),
            cwd=qrm.directory,
            env=dict(qrm.environment()),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await restore.communicate()
        assert 0 == restore.returncode
        assert b"default/fits, container container0: restored: CpusetCpus is 0-79" in out
        assert ("0-79", "0-1") == runtime.cpuset_of(cri(FITS))
        assert asked == len(world.kube.asked)
