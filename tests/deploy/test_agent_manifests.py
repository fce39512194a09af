"""The agent's DaemonSet: fit for Kubernetes, the same by kustomize and by Helm, and what the program needs to run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.policy.crds import definitions
from agent.service.settings import AgentSettings, read_settings
from tests.deploy.rendering import ChartError, Manifest, charted, composed, documents, kustomized, of_part, only
from tests.deploy.test_manifests import DEPLOY, problems, read
from watcher.platform.settings.loading import load

pytestmark = [pytest.mark.real, pytest.mark.slow]

NAME = "load-watcher-agent"
MONITORED = {"agent": {"enabled": True, "podMonitor": {"enabled": True}}}
TOKEN = {"agent": {"enabled": True, "existingSecret": NAME}}
RESTORE = {"agent": {"enabled": True, "restore": True}}


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """As installed by kustomize, with the component."""
    return composed(tmp_path_factory.mktemp("agent"), DEPLOY / "agent", "agent-podmonitor")


@pytest.fixture(scope="module")
def chart() -> list[Manifest]:
    """As installed by Helm into the namespace that kustomize makes."""
    return charted(MONITORED, namespace=NAME)


def test_it_is_what_kubernetes_takes(manifests: list[Manifest], chart: list[Manifest]) -> None:
    assert [] == problems(manifests)
    assert [] == problems(chart)


def agents(rendered: list[Manifest]) -> dict[str, Manifest]:
    return of_part(rendered, NAME)


def test_the_chart_and_the_manifests_agree(manifests: list[Manifest], chart: list[Manifest]) -> None:
    expected = agents(manifests)
    assert {"DaemonSet", "PodMonitor", "ClusterRole", "ConfigMap"} <= {each.partition(" ")[0] for each in expected}
    assert expected == agents(chart)


def pod_of(rendered: list[Manifest]) -> dict[str, Any]:
    spec: dict[str, Any] = only(rendered, "DaemonSet", NAME)["spec"]["template"]["spec"]
    return spec


def test_with_a_token_all_pages_are_at_the_address_of_the_pod(tmp_path: Path) -> None:
    rendered = composed(tmp_path, DEPLOY / "agent", "agent-token")
    chart = charted(TOKEN, namespace=NAME)
    assert [] == problems(rendered) + problems(chart)
    assert agents(rendered) == agents(chart)
    pod = pod_of(rendered)
    (container,) = pod["containers"]
    (file,) = (each["value"] for each in container["env"] if each["name"] == "LOAD_WATCHER_AGENT_TOKEN_FILE")
    (mounted,) = (each["name"] for each in container["volumeMounts"] if each["mountPath"] == str(Path(file).parent))
    assert [NAME] == [each["secret"]["secretName"] for each in pod["volumes"] if each["name"] == mounted]
    assert "agent.metrics_host=$(POD_IP)" in container["args"]
    token = tmp_path / "token"
    token.write_text("secret")
    environ = {"LOAD_WATCHER_AGENT_TOKEN_FILE": str(token)}
    loaded = load(flags={"provider.name": "host"}, environ=environ, file=None, cwd=tmp_path)
    assert token == read_settings(loaded.parts["agent"], cwd=tmp_path)[0].token_file


def test_the_agents_can_be_taken_away_in_good_order(manifests: list[Manifest]) -> None:
    """Each pod restores with what the agent had, and then does nothing."""
    rendered, chart = kustomized(DEPLOY / "agent-restore"), charted(RESTORE, namespace=NAME)
    assert [] == problems(rendered) + problems(chart)
    assert agents(rendered) == agents(chart)
    agent, pod = pod_of(manifests), pod_of(rendered)
    (running,), (restoring,), (idle,) = agent["containers"], pod["initContainers"], pod["containers"]
    assert ["agent", "restore", "--missing-ok"] == restoring["args"]
    for part in ("image", "env", "volumeMounts", "securityContext"):
        assert running[part] == restoring[part]
    assert ["sleep", "infinity"] == idle["command"]
    assert not {"args", "volumeMounts", "ports", "livenessProbe"} & idle.keys()
    assert {each["name"] for each in agent["volumes"]} == {each["name"] for each in pod["volumes"]}


def test_it_is_off_by_default_and_the_watchers_service_does_not_find_it(chart: list[Manifest]) -> None:
    assert {} == agents(charted())
    labels = only(chart, "DaemonSet", NAME)["spec"]["template"]["metadata"]["labels"]
    selectors = [each["spec"]["selector"] for each in chart if each["kind"] == "Service"]
    assert selectors
    assert not [each for each in selectors if each.items() <= labels.items()]


def settings(rendered: list[Manifest], directory: Path) -> AgentSettings:
    """As the program reads them."""
    (config,) = (each for each in rendered if each["kind"] == "ConfigMap" and NAME in each["metadata"]["name"])
    text = config["data"]["load-watcher.toml"]
    found, wrong = read_settings(read(f'{text}\n[provider]\nname = "host"\n', directory).parts["agent"], cwd=directory)
    assert [] == wrong
    return found


def test_its_settings_are_where_its_volumes_are(manifests: list[Manifest], tmp_path: Path) -> None:
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
    rules = only(manifests, "Role", NAME)["rules"]
    assert [[name]] == [each["resourceNames"] for each in rules]


def test_it_may_read_the_policies_that_there_are(manifests: list[Manifest]) -> None:
    kinds = {each["spec"]["names"]["plural"] for each in documents(definitions())}
    rules = only(manifests, "ClusterRole", NAME)["rules"]
    (granted,) = (each["resources"] for each in rules if each["apiGroups"] == ["ensurance.crane.io"])
    assert set(granted) == kinds


def test_other_settings_and_names_by_the_chart(tmp_path: Path) -> None:
    given: dict[str, Any] = {"config": {"agent": {"mode": "enforce", "evictions_per_node": 2}}, "enabled": True}
    rendered = charted({"agent": given, "fullnameOverride": "other"}, namespace="somewhere")
    (config,) = (each for each in rendered if each["metadata"]["name"] == "other-agent" and each["kind"] == "ConfigMap")
    agent = tomllib.loads(config["data"]["load-watcher.toml"])["agent"]
    assert ("enforce", 2, "somewhere/agent-control") == (agent["mode"], agent["evictions_per_node"], agent["control"])
    only(rendered, "DaemonSet", "other-agent")


@pytest.mark.parametrize("values", [{"enable": True}, {"control": {"enforcement": "onn"}}, {"stateDirectory": "here"}])
def test_a_typo_in_a_value_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ChartError, match="agent"):
        charted({"agent": values})
