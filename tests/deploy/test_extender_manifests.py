"""The extender as a separate Deployment, with only the rights that it needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from load_watcher.extender.process import adapted, start_process
from tests.deploy.rendering import (
    CHART,
    ChartError,
    Manifest,
    charted,
    helm,
    kustomized,
    of_part,
    only,
    with_images,
)
from tests.deploy.test_manifests import BINDING, DEPLOY, DOCUMENTED, SECRET, by_name, granted, problems
from tests.fakes.kube import KINDS, PODS, FakeKube
from tests.waiting import eventually
from watcher.platform.http.runner import Runner
from watcher.platform.http.settings import ServerSettings
from watcher.service.settings.loading import load

pytestmark = [pytest.mark.real, pytest.mark.slow]

NAME = "load-watcher-extender"
SEPARATE: dict[str, Any] = {"scheduler": {"enabled": True, "separate": True}}
PORT = 2025
SCHEDULER = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
    "podSelector": {
        "matchExpressions": [{"key": "component", "operator": "In", "values": ["kube-scheduler", "scheduler"]}]
    },
}


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    return charted(SEPARATE)


def settings_of(rendered: list[Manifest]) -> dict[str, Any]:
    return dict(of_part(rendered, NAME)[f"ConfigMap {NAME}"]["data"])


def test_the_manifests_are_valid_for_kubernetes(manifests: list[Manifest]) -> None:
    assert [] == problems(manifests)


def test_the_watcher_is_the_same_as_without_it(manifests: list[Manifest]) -> None:
    assert {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "Service"} < {
        key.partition(" ")[0] for key in of_part(manifests, NAME)
    }
    plain = by_name(kustomized(DEPLOY / "overlays" / "metrics-server"))
    del plain["Namespace load-watcher"]
    watcher = plain["Deployment load-watcher"]["spec"]["template"]["spec"]
    watcher["priorityClassName"] = "system-cluster-critical"  # without it, the load of the extender would become stale
    assert plain == by_name([each for each in manifests if NAME not in each["metadata"]["name"]])


def test_its_pods_are_hardened_as_those_of_the_watcher(manifests: list[Manifest]) -> None:
    own, watcher = (only(manifests, "Deployment", name)["spec"]["template"]["spec"] for name in (NAME, "load-watcher"))
    for field in ("securityContext", "enableServiceLinks", "terminationGracePeriodSeconds"):
        assert watcher[field] == own[field]
    (container,), (other,) = own["containers"], watcher["containers"]
    for field in ("securityContext", "startupProbe", "livenessProbe", "readinessProbe"):
        assert other[field] == container[field]
    assert other["image"] == container["image"]
    assert "memory" in container["resources"]["limits"]


def test_all_selectors_select_its_pods_and_none_of_the_watcher_does(manifests: list[Manifest]) -> None:
    labels = only(manifests, "Deployment", NAME)["spec"]["template"]["metadata"]["labels"]
    selectors = [
        only(manifests, "Deployment", NAME)["spec"]["selector"]["matchLabels"],
        only(manifests, "Service", NAME)["spec"]["selector"],
        only(manifests, "PodDisruptionBudget", NAME)["spec"]["selector"]["matchLabels"],
        only(manifests, "NetworkPolicy", NAME)["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector == labels for selector in selectors)
    assert not only(manifests, "Service", "load-watcher")["spec"]["selector"].items() <= labels.items()
    watcher = only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    (rule,) = (each for each in only(manifests, "NetworkPolicy", NAME)["spec"]["egress"] if "to" in each)
    assert rule["to"][0]["podSelector"]["matchLabels"].items() <= watcher.items()


def test_it_requests_the_installed_service(manifests: list[Manifest]) -> None:
    """Also in a release with another name, with TLS and a protected watcher."""
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


def test_its_port_differs_from_that_of_the_watcher() -> None:
    rendered = charted({**SEPARATE, "config": {"server": {"port": 2020, "host": "::"}}})
    assert {"host": "::"} == settings_of(rendered)["server"]


def test_it_is_an_allowed_client_of_the_watcher() -> None:
    clients = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    rendered = charted({**SEPARATE, "networkPolicy": {"from": clients}})
    (rule,) = only(rendered, "NetworkPolicy")["spec"]["ingress"]
    allowed = [each["podSelector"]["matchLabels"]["app.kubernetes.io/name"] for each in rule["from"][:-1]]
    assert [NAME, "load-watcher-test"] == allowed
    (own,) = only(rendered, "NetworkPolicy", NAME)["spec"]["ingress"]
    assert [SCHEDULER, *clients] == own["from"]


def test_only_the_scheduler_reaches_the_extender(manifests: list[Manifest]) -> None:
    """In the watcher, also components that read its load; but not each client, as for a watcher without an extender."""
    own = only(manifests, "NetworkPolicy", NAME)
    assert [[SCHEDULER]] == [rule["from"] for rule in own["spec"]["ingress"]]
    (rule,) = only(kustomized(DEPLOY / "overlays" / "extender"), "NetworkPolicy")["spec"]["ingress"]
    assert SCHEDULER == rule["from"][0]
    assert all("podSelector" in each for each in rule["from"])
    assert "from" not in only(kustomized(DEPLOY / "overlays" / "metrics-server"), "NetworkPolicy")["spec"]["ingress"][0]


def labels_of(rendered: list[Manifest], kind: str, name: str) -> tuple[str, dict[str, str]]:
    """The namespace and the labels of the pods of a workload."""
    found = only(rendered, kind, name)
    return found["metadata"]["namespace"], found["spec"]["template"]["metadata"]["labels"]


def admits(policies: list[Manifest], namespace: str, labels: dict[str, str], *, to: dict[str, str]) -> bool:
    """Whether the policies of the namespace load-watcher admit a pod to the pods with the labels `to`."""
    selecting = [each["spec"] for each in policies if matches(each["spec"]["podSelector"], to)]
    assert selecting
    peers = [rule.get("from") for spec in selecting for rule in spec["ingress"]]
    return any(each is None for each in peers) or any(
        matches(peer["podSelector"], labels)
        and (
            matches(peer["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
            if "namespaceSelector" in peer
            else namespace == "load-watcher"
        )
        for some in peers
        for peer in some or ()
        if "podSelector" in peer
    )


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Label selectors of Kubernetes, with the operator In."""
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ())
    )


def policies_of(rendered: list[Manifest]) -> list[Manifest]:
    return [each for each in rendered if each["kind"] == "NetworkPolicy"]


@pytest.mark.parametrize("with_helm", [False, True], ids=["kustomize", "helm"])
@pytest.mark.parametrize("part", ["agent", "qrm"])
def test_agents_and_resource_managers_reach_a_watcher_with_the_extender(part: str, with_helm: bool) -> None:
    """Those of deploy/ are in their own namespaces; a pod of another namespace with the same labels is refused."""
    extender = DEPLOY / "overlays" / "extender"
    rendered = charted({"scheduler": {"enabled": True}}) if with_helm else kustomized(extender)
    _, watcher = labels_of(rendered, "Deployment", "load-watcher")
    namespace, labels = labels_of(kustomized(DEPLOY / part), "DaemonSet", f"load-watcher-{part}")
    assert "load-watcher" != namespace
    assert admits(policies_of(rendered), namespace, labels, to=watcher)
    assert not admits(policies_of(rendered), "default", labels, to=watcher)


@pytest.mark.parametrize("part", ["agent", "qrm"])
@pytest.mark.parametrize("policy", [{}, {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], ids=["default", "from"])
def test_agents_and_resource_managers_of_the_release_reach_the_watcher(part: str, policy: dict[str, Any]) -> None:
    rendered = charted({"scheduler": {"enabled": True}, part: {"enabled": True}, "networkPolicy": policy})
    _, watcher = labels_of(rendered, "Deployment", "load-watcher")
    namespace, labels = labels_of(rendered, "DaemonSet", f"load-watcher-{part}")
    assert admits(policies_of(rendered), namespace, labels, to=watcher)


PROMETHEUS = {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/instance": "k8s"}


@pytest.mark.parametrize("separate", [False, True])
def test_prometheus_reaches_the_extender_if_configured(separate: bool) -> None:
    """From any namespace, until its namespace is named; without a ServiceMonitor it is refused."""
    values: dict[str, Any] = {"scheduler": {"enabled": True, "separate": separate}}
    monitored = charted({**values, "serviceMonitor": {"enabled": True}})
    named = charted(
        {**values, "serviceMonitor": {"enabled": True}, "networkPolicy": {"prometheusNamespace": "monitoring"}}
    )
    name = NAME if separate else "load-watcher"
    _, serving = labels_of(monitored, "Deployment", name)
    assert [] == problems(monitored) == problems(named)
    assert admits(policies_of(monitored), "anywhere", PROMETHEUS, to=serving)
    assert not admits(policies_of(monitored), "anywhere", {"app.kubernetes.io/name": "web"}, to=serving)
    assert admits(policies_of(named), "monitoring", PROMETHEUS, to=serving)
    assert not admits(policies_of(named), "anywhere", PROMETHEUS, to=serving)
    assert not admits(policies_of(charted(values)), "monitoring", PROMETHEUS, to=serving)


def upgraded(separate: bool, policy: dict[str, Any]) -> str:
    """The objects of `helm upgrade`."""
    values = with_images({"scheduler": {"enabled": True, "separate": separate}, "networkPolicy": policy})
    return helm(
        "template", "load-watcher", CHART, "--is-upgrade", "--namespace", "load-watcher", "--values", "-", given=values
    )


@pytest.mark.parametrize("separate", [False, True])
def test_an_upgrade_restricts_the_extender_only_by_a_decision(separate: bool) -> None:
    """The default refuses a kube-scheduler on the host network, so an upgrade does not choose it silently."""
    with pytest.raises(ChartError, match=r"networkPolicy\.scheduler is not set.* \[\] to admit every client as before"):
        upgraded(separate, {})
    decided: list[dict[str, Any]] = [{"scheduler": []}, {"scheduler": [SCHEDULER]}, {"from": [SCHEDULER]}]
    for policy in (*decided, {"enabled": False}):
        upgraded(separate, policy)


@pytest.mark.parametrize("separate", [False, True])
def test_an_empty_list_of_schedulers_admits_the_earlier_clients(separate: bool) -> None:
    """Each client, or those of networkPolicy.from."""
    name, clients = NAME if separate else "load-watcher", [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    values: dict[str, Any] = {"scheduler": {"enabled": True, "separate": separate}}
    everyone = charted({**values, "networkPolicy": {"scheduler": []}})
    assert ["ports"] == [key for rule in only(everyone, "NetworkPolicy", name)["spec"]["ingress"] for key in rule]
    some = only(charted({**values, "networkPolicy": {"scheduler": [], "from": clients}}), "NetworkPolicy", name)
    (rule,) = some["spec"]["ingress"]
    assert clients == [each for each in rule["from"] if "ipBlock" in each]
    assert SCHEDULER not in rule["from"]
    assert [] == problems([*everyone, some])


@pytest.mark.parametrize("separate", [False, True])
def test_a_scheduler_on_the_host_network_is_named_by_its_addresses(separate: bool) -> None:
    """As docs/tasks/deploy.md shows: a pod selector does not match it."""
    (documented,) = (each for each in DOCUMENTED if "networkPolicy" in each)
    peers = documented["networkPolicy"]["scheduler"]
    assert all("ipBlock" in each for each in peers)
    rendered = charted({"scheduler": {"enabled": True, "separate": separate}, **documented})
    policy = only(rendered, "NetworkPolicy", NAME if separate else "load-watcher")
    ((*allowed,),) = [rule["from"] for rule in policy["spec"]["ingress"]]
    assert peers == allowed[: len(peers)]
    assert SCHEDULER not in allowed


@pytest.mark.parametrize("binds", [False, True], ids=["scores", "binds"])
async def test_it_runs_with_the_installed_settings_and_uses_each_right(tmp_path: Path, binds: bool) -> None:
    """Only paths and addresses differ. The watcher, which does not exist, has no right for it."""
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
        assert PORT == settings[ServerSettings].port
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


def test_its_own_chart_values_are_used() -> None:
    storage = {"ephemeral-storage": "2Gi"}
    resources = {"requests": {"cpu": "1", "memory": "1Gi", **storage}, "limits": {"memory": "1Gi", **storage}}
    rendered = charted({"scheduler": {**SEPARATE["scheduler"], "replicaCount": 3, "resources": resources}})
    spec = only(rendered, "Deployment", NAME)["spec"]
    assert (3, resources) == (spec["replicas"], spec["template"]["spec"]["containers"][0]["resources"])
