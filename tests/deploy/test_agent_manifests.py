"""The agent's DaemonSet: valid for Kubernetes, the same with kustomize and with Helm, and with all that the program
needs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.policy.crds import definitions
from agent.service.rights import required_rights
from agent.service.settings import AgentSettings, read_settings
from tests.deploy.rendering import ChartError, Manifest, charted, composed, documents, kustomized, of_part, only
from tests.deploy.test_manifests import DEPLOY, problems, read
from watcher.service.settings.loading import load

pytestmark = [pytest.mark.real, pytest.mark.slow]

NAME = "load-watcher-agent"
MONITORED = {"agent": {"enabled": True, "podMonitor": {"enabled": True}}}
TOKEN = {"agent": {"enabled": True, "existingSecret": NAME}}
RESTORE = {"agent": {"enabled": True, "restore": True}}
ENFORCE = {"agent": {"enabled": True, "config": {"agent": {"mode": "enforce"}}}}
PREVIEW_RULES = {("", "nodes", "get"), ("", "nodes/pods", "get")}
ENFORCING_RULES = {
    ("", "nodes", "list"),
    ("", "nodes", "patch"),
    ("", "nodes/status", "patch"),
    ("", "pods", "get"),
    ("", "pods/eviction", "create"),
    ("", "events", "create"),
}


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    """As rendered by kustomize."""
    return kustomized(DEPLOY / "agent")


@pytest.fixture(scope="module")
def chart() -> list[Manifest]:
    """As rendered by Helm into the namespace of kustomize."""
    return charted(MONITORED, namespace=NAME)


def test_the_manifests_are_valid_for_kubernetes(manifests: list[Manifest], chart: list[Manifest]) -> None:
    assert [] == problems(manifests)
    assert [] == problems(chart)


def agents(rendered: list[Manifest]) -> dict[str, Manifest]:
    return of_part(rendered, NAME)


def test_the_chart_and_the_manifests_are_equal(manifests: list[Manifest], chart: list[Manifest]) -> None:
    expected, found = agents(manifests), agents(chart)
    assert {"DaemonSet", "ClusterRole", "ConfigMap"} <= {each.partition(" ")[0] for each in expected}
    assert found.pop(f"PodMonitor {NAME}")
    assert expected == found


def pod_of(rendered: list[Manifest]) -> dict[str, Any]:
    spec: dict[str, Any] = only(rendered, "DaemonSet", NAME)["spec"]["template"]["spec"]
    return spec


def test_with_a_token_all_pages_are_at_the_address_of_the_pod(tmp_path: Path) -> None:
    chart = charted(TOKEN, namespace=NAME)
    assert [] == problems(chart)
    pod = pod_of(chart)
    (container,) = pod["containers"]
    (file,) = (each["value"] for each in container["env"] if each["name"] == "LOAD_WATCHER_AGENT_TOKEN_FILE")
    (mounted,) = (each["name"] for each in container["volumeMounts"] if each["mountPath"] == str(Path(file).parent))
    assert [NAME] == [each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == mounted]
    assert {"name": "LOAD_WATCHER_DEFAULT_AGENT_METRICS_HOST", "value": "$(POD_IP)"} in container["env"]
    token = tmp_path / "token"
    token.write_text("secret")
    environ = {"LOAD_WATCHER_AGENT_TOKEN_FILE": str(token)}
    loaded = load(flags={"provider.name": "host"}, environ=environ, file=None, cwd=tmp_path)
    assert token == read_settings(loaded.parts["agent"], cwd=tmp_path)[0].token_file


def test_the_rights_of_enforcement_are_removed(tmp_path: Path) -> None:
    """Each object that the component adds with rights is replaced by agent-restore, under the same name."""
    enforcing = agents(composed(tmp_path, DEPLOY / "agent", "agent-enforce"))
    rbac = {name for name in enforcing if name.partition(" ")[0] in ("Role", "RoleBinding", "ClusterRole")}
    assert f"Role {NAME}" in rbac
    assert rbac <= agents(kustomized(DEPLOY / "agent-restore")).keys()


def test_removed_agents_restore_first(manifests: list[Manifest]) -> None:
    """Each pod restores with the settings of the agent, and then waits."""
    rendered, chart = kustomized(DEPLOY / "agent-restore"), charted(RESTORE, namespace=NAME)
    assert [] == problems(rendered) + problems(chart)
    ours, theirs = agents(rendered), agents(chart)
    # Helm removes these two; kubectl would leave them with the rights of enforcement.
    role = ours.pop(f"Role {NAME}")
    del ours[f"RoleBinding {NAME}"]
    assert ours == theirs
    assert [] == role["rules"]
    agent, pod = pod_of(manifests), pod_of(rendered)
    (running,), (restoring,), (idle,) = agent["containers"], pod["initContainers"], pod["containers"]
    assert ["agent", "restore", "--missing-ok"] == restoring["args"]
    for part in ("image", "env", "volumeMounts", "securityContext"):
        assert running[part] == restoring[part]
    assert ["sleep", "infinity"] == idle["command"]
    assert not {"args", "volumeMounts", "ports", "livenessProbe"} & idle.keys()
    assert {each["name"] for each in agent["volumes"]} == {each["name"] for each in pod["volumes"]}
    assert rules(rendered) == {
        ("", "nodes", "get"),
        ("", "nodes", "patch"),
        ("", "nodes/status", "patch"),
        ("", "events", "create"),
    }


def test_it_is_disabled_by_default_and_not_selected_by_the_service_of_the_watcher(chart: list[Manifest]) -> None:
    assert {} == agents(charted())
    labels = only(chart, "DaemonSet", NAME)["spec"]["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in chart if each["kind"] == "Service"]
    assert selectors
    assert not [each for each in selectors if each.items() <= labels.items()]


def settings(rendered: list[Manifest], directory: Path) -> AgentSettings:
    """The settings as the program reads them."""
    (config,) = (each for each in rendered if each["kind"] == "ConfigMap" and NAME in each["metadata"]["name"])
    text = config["data"]["load-watcher.toml"]
    found, wrong = read_settings(read(f'{text}\n[provider]\nname = "host"\n', directory).parts["agent"], cwd=directory)
    assert [] == wrong
    return found


def test_its_settings_name_its_volumes(manifests: list[Manifest], tmp_path: Path) -> None:
    found = settings(manifests, tmp_path)
    assert ("preview", "127.0.0.1") == (found.mode, found.host)
    spec = only(manifests, "DaemonSet", NAME)["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    host = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    mounted = {each["mountPath"]: host.get(each["name"]) for each in container["volumeMounts"]}
    assert "/proc" == mounted[str(found.proc)]
    assert "/sys/fs/cgroup" == mounted[str(found.cgroup)]
    assert "/var/lib/load-watcher-agent" == mounted[str(found.state_file.parent)]
    assert [found.metrics_port] == [each["containerPort"] for each in container["ports"]]
    namespace, _, name = found.control.partition("/")
    control = only(manifests, "ConfigMap", name)
    assert namespace == control["metadata"]["namespace"]


def rules(rendered: list[Manifest]) -> set[tuple[str, str, str]]:
    """The rights of the ClusterRole: (apiGroup, resource, verb)."""
    found = agents(rendered)[f"ClusterRole {NAME}"]["rules"]
    return {
        (group, resource, verb)
        for rule in found
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def environment(rendered: list[Manifest]) -> dict[str, str | None]:
    """The variables of the agent's container; None for a field of the pod."""
    (container,) = pod_of(rendered)["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


def test_preview_may_only_read_its_node_and_its_kubelet(manifests: list[Manifest]) -> None:
    """No watch, no list, and no right to change anything."""
    assert PREVIEW_RULES == rules(manifests)
    assert not [each for each in manifests if each["kind"] in ("Role", "RoleBinding")]
    hosts = [each for each in pod_of(manifests)["containers"][0]["env"] if each["name"] == "HOST_IP"]
    assert ["status.hostIP"] == [each["valueFrom"]["fieldRef"]["fieldPath"] for each in hosts]


def test_enforcement_is_one_component_with_its_rights(tmp_path: Path) -> None:
    rendered, chart = composed(tmp_path, DEPLOY / "agent", "agent-enforce"), charted(ENFORCE, namespace=NAME)
    assert [] == problems(rendered) + problems(chart)
    assert PREVIEW_RULES | ENFORCING_RULES == rules(rendered) == rules(chart)
    assert "enforce" == environment(rendered)["LOAD_WATCHER_AGENT_MODE"]
    ours, theirs = agents(rendered), agents(chart)
    assert ours.keys() == theirs.keys()
    for name in (f"Role {NAME}", f"RoleBinding {NAME}"):
        assert ours[name] == theirs[name]
    for manifests, control in ((rendered, "agent-control"), (chart, f"{NAME}-control")):
        (role,) = only(manifests, "Role", NAME)["rules"]
        assert {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [control]} == {
            key: value for key, value in role.items() if key != "verbs"
        }
        assert ["get", "patch"] == role["verbs"]
        only(manifests, "ConfigMap", control)


@pytest.mark.parametrize("values", [{}, {"control": {"enforcement": "on"}}])
def test_the_brake_is_only_set_by_operators(manifests: list[Manifest], values: dict[str, Any]) -> None:
    """A new apply, or an upgrade of the chart, does not release it. Earlier values have "on"."""
    for rendered in (manifests, charted({"agent": {"enabled": True, **values}}, namespace=NAME)):
        (data,) = (each["data"] for each in rendered if "nodes-at-once" in each.get("data", {}))
        assert {"evictions-per-minute", "nodes-at-once"} == data.keys()


@pytest.mark.parametrize("value", ["off", "restore"])
def test_the_chart_refuses_to_set_the_brake(value: str) -> None:
    with pytest.raises(ChartError, match=f'kubectl -n there patch configmap {NAME}-control .*"enforcement":"{value}"'):
        charted({"agent": {"enabled": True, "control": {"enforcement": value}}}, namespace="there")


@pytest.mark.parametrize(("part", "policies"), [("agent", 2), ("qrm", 1)])
def test_a_component_and_the_chart_limit_tokens_to_their_nodes(tmp_path: Path, part: str, policies: int) -> None:
    """Not by default, because the policies need Kubernetes 1.30."""
    name = f"load-watcher-{part}"
    rendered = composed(tmp_path, DEPLOY / part, f"{part}-node-restriction")
    chart = charted({part: {"enabled": True, "nodeRestriction": True}}, namespace=name)
    ours, theirs = of_part(rendered, name), of_part(chart, name)
    added = {each for each in ours if each.startswith("ValidatingAdmissionPolicy")}
    assert 2 * policies == len(added)
    for each in added:
        assert ours[each] == theirs[each]
    assert added == {each for each in theirs if each.startswith("ValidatingAdmissionPolicy")}
    for plain in (kustomized(DEPLOY / part), charted({part: {"enabled": True}}, namespace=name)):
        assert not [each for each in plain if each["kind"].startswith("ValidatingAdmissionPolicy")]
    account = f"system:serviceaccount:{name}:{name}"
    for policy in (each for each in ours.values() if each["kind"] == "ValidatingAdmissionPolicy"):
        assert [account] == [each["expression"].split("'")[1] for each in policy["spec"]["matchConditions"]]
        assert "Fail" == policy["spec"]["failurePolicy"]


@pytest.mark.parametrize("value", ["podOrigin", "nodeRestriction"])
def test_the_chart_has_policies_of_the_cluster(value: str) -> None:
    """Not by default, because they need Kubernetes 1.30."""
    chart = charted({value: True}, namespace="load-watcher")
    assert [] == problems(chart)
    (policy,) = (each for each in chart if each["kind"] == "ValidatingAdmissionPolicy")
    (binding,) = (each for each in chart if each["kind"] == "ValidatingAdmissionPolicyBinding")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert not [each for each in charted({}) if each["kind"].startswith("ValidatingAdmissionPolicy")]


def test_the_rights_are_those_that_the_doctor_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, for each way to install it."""
    monkeypatch.setenv("NODE_NAME", "node-1")
    monkeypatch.setenv("HOST_IP", "10.0.0.7")
    policies = tmp_path / "policies"
    ways: dict[tuple[str, ...], AgentSettings] = {
        (): AgentSettings(policies=policies),
        ("agent-enforce",): AgentSettings(policies=policies, mode="enforce"),
        ("agent-api-policies",): AgentSettings(),
        ("agent-enforce", "agent-api-policies"): AgentSettings(mode="enforce"),
    }
    for number, (components, own) in enumerate(ways.items()):
        (directory := tmp_path / str(number)).mkdir()
        rendered = composed(directory, DEPLOY / "agent", *components)
        needed = {(each.resource.group, each.what, each.verb) for each in required_rights(own) if not each.namespace}
        assert needed == rules(rendered), components
        there = {each["kind"] for each in rendered}
        assert ("Role" in there) is any(each.namespace for each in required_rights(own))
    own = AgentSettings(policies=policies, pods="api")
    chart = charted({"agent": {"enabled": True, "config": {"agent": {"pods": "api"}}}}, namespace=NAME)
    assert {(each.resource.group, each.what, each.verb) for each in required_rights(own)} == rules(chart)


def test_a_component_and_the_chart_enable_policies_from_the_api(tmp_path: Path) -> None:
    policies = composed(tmp_path, DEPLOY / "agent", "agent-api-policies")
    of_chart = charted({"agent": {"enabled": True, "apiPolicies": True}}, namespace=NAME)
    assert [] == problems(policies) + problems(of_chart)
    assert agents(policies) == agents(of_chart)
    assert "LOAD_WATCHER_AGENT_POLICIES" not in environment(policies)
    assert "policies" not in {each["name"] for each in pod_of(policies)["volumes"]}
    kinds = {each["spec"]["names"]["plural"] for each in documents(definitions())}
    for api_group in ("load-watcher.io", "ensurance.crane.io"):
        assert kinds == {resource for group, resource, _ in rules(policies) if group == api_group}


def test_policies_are_files_of_an_optional_config_map(manifests: list[Manifest]) -> None:
    (volume,) = (each for each in pod_of(manifests)["volumes"] if each["name"] == "policies")
    assert {"name": f"{NAME}-policies", "optional": True} == volume["configMap"]
    (container,) = pod_of(manifests)["containers"]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "policies")
    assert mount["mountPath"] == environment(manifests)["LOAD_WATCHER_AGENT_POLICIES"]
    given = {"batch.yaml": "kind: List\nitems: []\n"}
    rendered = charted({"agent": {"enabled": True, "policies": given}}, namespace=NAME)
    assert [] == problems(rendered)
    own = charted({"agent": {"enabled": True, "config": {"agent": {"policies": "/mine"}}}}, namespace=NAME)
    assert "LOAD_WATCHER_AGENT_POLICIES" not in environment(own)  # it would take precedence over the settings
    assert {"batch.yaml": "kind: List\nitems: []"} == {
        name: text.strip() for name, text in only(rendered, "ConfigMap", f"{NAME}-policies")["data"].items()
    }
    with pytest.raises(ChartError, match="policies"):
        charted({"agent": {"policies": {"batch.txt": "x"}}})


def test_a_self_signed_certificate_of_the_kubelet_is_mounted(tmp_path: Path) -> None:
    rendered = composed(tmp_path, DEPLOY / "agent", "agent-kubelet-certificate")
    given = {"agent": {"enabled": True, "kubeletCertificate": "/var/lib/kubelet/pki/kubelet.crt"}}
    chart = charted(given, namespace=NAME)
    assert [] == problems(rendered) + problems(chart)
    assert agents(rendered) == agents(chart)
    (mount,) = (
        each for each in pod_of(rendered)["containers"][0]["volumeMounts"] if each["name"] == "kubelet-certificate"
    )
    assert environment(rendered)["LOAD_WATCHER_AGENT_KUBELET_CA_FILE"] == f"{mount['mountPath']}/kubelet.crt"
    (volume,) = (each for each in pod_of(rendered)["volumes"] if each["name"] == "kubelet-certificate")
    assert volume["hostPath"] == {"path": "/var/lib/kubelet/pki", "type": "Directory"}
    assert mount["readOnly"]
    file = "/host/kubelet-pki/kubelet.crt"
    environ = {"LOAD_WATCHER_AGENT_KUBELET_NAME": "node-1", "LOAD_WATCHER_AGENT_KUBELET_CA_FILE": file}
    loaded = load(flags={"provider.name": "host"}, environ=environ, file=None, cwd=tmp_path)
    found, wrong = read_settings(loaded.parts["agent"], cwd=tmp_path)
    assert ([], "node-1", Path(file)) == (wrong, found.kubelet_name, found.kubelet_ca_file)


def test_other_settings_and_names_of_the_chart(tmp_path: Path) -> None:
    given: dict[str, Any] = {"config": {"agent": {"mode": "enforce", "evictions_per_node": 2}}, "enabled": True}
    rendered = charted({"agent": given, "fullnameOverride": "other"}, namespace="somewhere")
    (config,) = (each for each in rendered if each["metadata"]["name"] == "other-agent" and each["kind"] == "ConfigMap")
    agent = tomllib.loads(config["data"]["load-watcher.toml"])["agent"]
    assert ("enforce", 2, "somewhere/other-agent-control") == (
        agent["mode"],
        agent["evictions_per_node"],
        agent["control"],
    )
    only(rendered, "DaemonSet", "other-agent")


@pytest.mark.parametrize("values", [{"enable": True}, {"control": {"enforcement": "onn"}}, {"stateDirectory": "here"}])
def test_a_misspelt_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ChartError, match="agent"):
        charted({"agent": values})
