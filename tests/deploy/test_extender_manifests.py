"""The extender as a Deployment of its own: the same by kustomize and by Helm, with no more rights than it needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from load_watcher.extender.process import adapted, start_process
from tests.deploy.rendering import Manifest, charted, composed, kustomized, of_part, only
from tests.deploy.test_manifests import BINDING, DEPLOY, SECRET, by_name, granted, problems
from tests.fakes.kube import KINDS, PODS, FakeKube
from tests.waiting import eventually
from watcher.platform.http.runner import Runner
from watcher.platform.settings.loading import load

pytestmark = [pytest.mark.real, pytest.mark.slow]

NAME = "load-watcher-extender"
SEPARATE: dict[str, Any] = {"scheduler": {"enabled": True, "separate": True}}
PORT = 2025


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    return composed(tmp_path_factory.mktemp("extender"), DEPLOY / "overlays" / "metrics-server", "extender-process")


def settings_of(rendered: list[Manifest]) -> dict[str, Any]:
    return dict(of_part(rendered, NAME)[f"ConfigMap {NAME}"]["data"])


def test_it_is_what_kubernetes_takes(manifests: list[Manifest]) -> None:
    assert [] == problems(manifests)
    assert [] == problems(charted(SEPARATE))


def test_the_chart_and_the_manifests_agree(manifests: list[Manifest]) -> None:
    """The extender is equal in both, and the watcher is as without it."""
    chart = charted(SEPARATE)
    expected = of_part(manifests, NAME)
    assert expected == of_part(chart, NAME)
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "Service"} < {
        key.partition(" ")[0] for key in expected
    }
    plain = by_name(kustomized(DEPLOY / "overlays" / "metrics-server"))
    del plain["Namespace load-watcher"]
    watcher = plain["Deployment load-watcher"]["spec"]["template"]["spec"]
    watcher["priorityClassName"] = "system-cluster-critical"  # without it, the load of the extender would become stale
    assert plain == by_name([each for each in chart if NAME not in each["metadata"]["name"]])


def test_its_pods_are_hardened_as_those_of_the_watcher(manifests: list[Manifest]) -> None:
    own, watcher = (only(manifests, "Deployment", name)["spec"]["template"]["spec"] for name in (NAME, "load-watcher"))
    for field in ("securityContext", "enableServiceLinks", "terminationGracePeriodSeconds"):
        assert watcher[field] == own[field]
    (container,), (other,) = own["containers"], watcher["containers"]
    for field in ("securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert other[field] == container[field]
    assert other["image"] == container["image"]
    assert "memory" in container["resources"]["limits"]


def test_everything_selects_its_pods_and_nothing_of_the_watcher_does(manifests: list[Manifest]) -> None:
    labels = only(manifests, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    selectors = [
        only(manifests, "Deployment", NAME)["spec"]["selector"]["matchLabels"],
        only(manifests, "Service", NAME)["spec"]["selector"],
        only(manifests, "PodDisruptionBudget", NAME)["spec"]["selector"]["matchLabels"],
        only(manifests, "NetworkPolicy", NAME)["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    for kind, name in (("Service", "load-watcher"), ("Service", "load-watcher-headless")):
        assert not only(manifests, kind, name)["spec"]["selector"].items() <= labels.items()
    watcher = only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    (rule,) = (each for each in only(manifests, "NetworkPolicy", NAME)["spec"]["egress"] if "to" in each)
    assert rule["to"][0]["podSelector"]["matchLabels"].items() <= watcher.items()


def test_it_asks_the_service_that_is_installed(manifests: list[Manifest]) -> None:
    """In a release of another name too, with TLS and a protected watcher."""
    assert "http://load-watcher.load-watcher:2020" == settings_of(manifests)["extender"]["watcher"]
    (port,) = only(manifests, "Service", NAME)["spec"]["ports"]
    (container,) = only(manifests, "Deployment", NAME)["spec"]["template"]["spec"]["containers"]
    assert PORT == port["port"] == container["ports"][0]["containerPort"]
    token = "/run/secrets/load-watcher/token"
    server = {"tls_cert": "/run/secrets/load-watcher/c", "tls_key": "/k", "token_file": token, "protect_reads": True}
    config = {"server": server, "extender": {"watcher_ca_file": "/run/secrets/load-watcher/ca"}}
    rendered = charted({**SEPARATE, **SECRET, "fullnameOverride": "other", "config": config}, namespace="monitoring")
    name = "other-extender"
    settings = tomllib.loads(only(rendered, "ConfigMap", name)["data"]["load-watcher.toml"])
    assert settings["extender"] == {
        "watcher": "https://other.monitoring:2020",
        "watcher_token_file": token,
        "watcher_ca_file": "/run/secrets/load-watcher/ca",
    }
    assert server == settings["server"]
    (container,) = only(rendered, "Deployment", name)["spec"]["template"]["spec"]["containers"]
    assert "HTTPS" == container["readinessProbe"]["httpGet"]["scheme"]
    assert "/run/secrets/load-watcher" in {each["mountPath"] for each in container["volumeMounts"]}
    assert "extender" not in tomllib.loads(only(rendered, "ConfigMap", "other")["data"]["load-watcher.toml"])


def test_the_port_of_the_watcher_is_not_its_port() -> None:
    rendered = charted({**SEPARATE, "config": {"server": {"port": 2020, "host": "::"}}})
    assert {"host": "::"} == settings_of(rendered)["server"]


def test_allowed_clients_of_the_watcher_include_it() -> None:
    clients = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    rendered = charted({**SEPARATE, "networkPolicy": {"from": clients}})
    (rule,) = only(rendered, "NetworkPolicy")["spec"]["ingress"]
    allowed = [each["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in rule["from"][:-1]]
    assert ["load-watcher", NAME, "load-watcher-test"] == allowed
    (own,) = only(rendered, "NetworkPolicy", NAME)["spec"]["ingress"]
    assert clients == own["from"]


@pytest.mark.parametrize("binds", [False, True], ids=["scores", "binds"])
async def test_it_runs_as_it_is_installed_and_uses_every_right_that_it_has(tmp_path: Path, binds: bool) -> None:
    """Only the places differ. The watcher, which is not there, has no right for it."""
    profiles = {"profiles": BINDING} if binds else {}
    rendered = charted({"scheduler": {**SEPARATE["scheduler"], **profiles}})
    rights = granted(list(of_part(rendered, NAME).values()))
    assert not {("list", "v1/pods"), ("create", "v1/pods/binding")} & granted([only(rendered, "ClusterRole")])
    config = only(rendered, "ConfigMap", NAME)["data"]["load-watcher.toml"]

    async def story(kube: FakeKube) -> None:
        file = tmp_path / "load-watcher.toml"
        file.write_text(
            re.sub(r'"http://load-watcher\S+"', '"http://127.0.0.1:1"', config.replace("/data", str(tmp_path)))
        )
        flags = {"kubernetes.kubeconfig": str(kube.kubeconfig(tmp_path / "kubeconfig")), "provider.name": "host"}
        settings = adapted(load(flags=flags, environ={}, file=file, cwd=tmp_path))
        assert PORT == settings.server.port
        process = await start_process(settings)
        runner = Runner(process.app)
        await runner.setup()
        try:
            await eventually(process.scheduling.is_synced, what="nodes and pods")
            if binds:
                await process.scheduling._cluster.bind("default/web", node="a", uid="web")
            await eventually(lambda: {(each.verb, each.resource) for each in kube.asked} == rights, what="all rights")
        finally:
            await runner.cleanup()

    with FakeKube() as kube:
        everything = {(verb, each) for verb in ("get", "list", "watch") for each in KINDS}
        kube.forbidden = {*everything, ("create", "v1/pods/binding")} - rights
        kube.put(
            PODS, "default/web", metadata={"name": "web", "namespace": "default", "uid": "web"}, spec={}, status={}
        )
        kube.node("a")
        await story(kube)


def test_its_own_values_of_the_chart_are_used() -> None:
    storage = {"ephemeral-storage": "2Gi"}
    resources = {"requests": {"cpu": "1", "memory": "1Gi", **storage}, "limits": {"memory": "1Gi", **storage}}
    rendered = charted({"scheduler": {**SEPARATE["scheduler"], "replicaCount": 3, "resources": resources}})
    spec = only(rendered, "Deployment", NAME)["spec"]
    assert (3, resources) == (spec["replicas"], spec["template"]["spec"]["containers"][0]["resources"])
