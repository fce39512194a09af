"""The chart itself: its generated files, the network rules from addresses, and the names of releases."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from scorers.profiles.registry import PLUGINS, factory_of
from tests.deploy.chart_files import generated
from tests.deploy.rendering import (
    CHART,
    NAME,
    ChartError,
    Manifest,
    charted,
    documents,
    helm,
    kustomized,
    only,
    pod_template,
    settings_in,
    with_images,
)
from tests.deploy.test_manifests import CHARTS, DEPLOY, PROMETHEUS, problems
from tests.modules.programs import MODULES
from tests.settings_pages import example
from watcher.core.windows.settings import RefreshSettings
from watcher.service.settings.loading import load

pytestmark = [pytest.mark.real, pytest.mark.slow]

EVERYTHING = {**CHARTS["everything"], "fullnameOverride": ""}
SEPARATE = {**EVERYTHING, "scheduler": {"enabled": True, "separate": True}}


@pytest.mark.parametrize(("path", "content"), [pytest.param(*each, id=each[0].name) for each in generated()])
def test_a_file_of_the_chart_with_another_source_is_up_to_date(path: Path, content: str) -> None:
    """`python -m tests.deploy.chart_files` writes them. They are files, because archives and Windows do not keep
    links."""
    assert content == path.read_text()
    assert not path.is_symlink()


def test_the_chart_requires_the_oldest_tested_version() -> None:
    tested = sorted(tuple(map(int, path.name.split("-")[1].split("."))) for path in MODULES.glob("kubernetes-*"))
    major, minor = tested[0]
    assert f">={major}.{minor}.0-0" == yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"]


def test_each_setting_with_its_default_is_accepted(tmp_path: Path) -> None:
    """The schema in values.schema.json refuses no value of the example file, and the pod reads them as given."""
    defaults = tomllib.loads(example())
    del defaults["server"]["host"]
    rendered = charted({"config": {**defaults, "provider": {**defaults["provider"], "name": "metrics-server"}}})
    file = tmp_path / "load-watcher.toml"
    file.write_text(settings_in(rendered))
    assert 60.0 == load(flags={}, environ={}, file=file, cwd=tmp_path)[RefreshSettings].interval


def profile(name: str, **args: Any) -> dict[str, Any]:
    return {"scheduler": {"enabled": True, "profiles": {"default": {"plugins": [{"name": name, "args": args}]}}}}


@pytest.mark.parametrize("name", PLUGINS)
def test_each_argument_with_its_default_or_null_is_accepted(name: str) -> None:
    arguments = factory_of(name).arguments
    args = msgspec.to_builtins(arguments())
    for given in (args, dict.fromkeys(args), {"kind": f"{name}Args", "watcherAddress": "http://x:2020"}):
        charted(profile(name, **given))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (profile("TargetLoadPackin"), '"TargetLoadPackin" is not a plug-in; use TargetLoadPacking, LoadVariationRisk'),
        (profile("TargetLoadPacking", targetUtilisation=50), "additional properties 'targetUtilisation' not allowed"),
        (profile("TargetLoadPacking", targetUtilization=100), "targetUtilization"),
        (profile("Peaks", NodePowerModel={"node-1": {"k0": 1}}), "'k1', 'k2'"),
        (profile("HighLoadFilter", kind="PeaksArgs"), "kind"),
        ({"scheduler": {"profiles": {"default": {"plugins": [{"name": "Peaks", "weight": 0}]}}}}, "weight"),
        ({"scheduler": {"profiles": {"default": {"precise_score": True}}}}, "'precise_score' not allowed"),
        ({"scheduler": {"profiles": {"default": {"reserve": "never"}}}}, "reserve"),
    ],
    ids=str,
)
def test_an_invalid_profile_is_refused(values: dict[str, Any], message: str) -> None:
    """As by `load-watcher config check`."""
    with pytest.raises(ChartError, match=message):
        charted(values)


def test_a_plugin_of_another_package_may_have_any_arguments() -> None:
    values = profile("Weather", anything=[1])
    values["scheduler"]["extraPlugins"] = ["Weather"]
    assert [{"name": "Weather", "args": {"anything": [1]}}] == tomllib.loads(settings_in(charted(values)))["scheduler"][
        "default"
    ]["plugins"]


# --- egress ----------------------------------------------------------------------------------------------------------


def opened(values: dict[str, Any], name: str = NAME) -> list[tuple[list[int], list[str]]]:
    """The egress rules after those of every installation: ports, and namespaces (none: any address)."""
    every = 2 if name == NAME else 3  # a separate extender also connects to the watcher
    rules = only(charted(values), "NetworkPolicy", name)["spec"]["egress"][every:]
    key = "kubernetes.io/metadata.name"
    return [
        (
            [each["port"] for each in rule["ports"]],
            [each["namespaceSelector"]["matchLabels"][key] for each in rule.get("to", ())],
        )
        for rule in rules
    ]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://prometheus-k8s.monitoring.svc:9090", ([9090], ["monitoring"])),
        ("http://user:p@prometheus.monitoring.svc.cluster.local:8080/x", ([8080], ["monitoring"])),
        ("http://prometheus-server.monitoring.svc", ([80, 9090], ["monitoring"])),
        ("https://prometheus.monitoring.svc/", ([443, 9090], ["monitoring"])),
        ("http://prometheus:9090", ([9090], [NAME])),
        ("http://prometheus.monitoring", ([80, 9090], [])),
        ("https://prometheus.example.com/tenant", ([443], [])),
        ("http://10.1.2.3:9090", ([9090], [])),
        ("http://[fd00::1]", ([80], [])),
    ],
)
def test_the_source_can_be_reached(address: str, expected: tuple[list[int], list[str]]) -> None:
    """And nothing else: the namespace is that of a Service, and the second port the one on which Prometheus listens."""
    assert [expected] == opened({"config": {"provider": {**PROMETHEUS, "address": address}}})


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://lw@db.databases.svc/lw", ([5432], ["databases"])),
        ("postgresql+psycopg://lw@a.example.com,b.example.com:5433/lw?sslmode=require", ([5432, 5433], [])),
    ],
)
def test_the_database_can_be_reached(url: str, expected: tuple[list[int], list[str]]) -> None:
    assert [expected] == opened({"config": {"store": {"url": url}}})


def test_other_services_in_the_settings_can_be_reached() -> None:
    config = {"agents": {"urls": ["http://agent.x.svc:2023"]}, "qrms": {"urls": ["http://q:2024"]}}
    assert [([2023], ["x"]), ([2024], [NAME])] == opened({"config": config})
    assert [] == opened({})
    extender = {"extender": {"watcher": "https://watcher.other.svc"}}
    separate: dict[str, Any] = {"scheduler": {"enabled": True, "separate": True}}
    assert [([443], ["other"])] == opened({**separate, "config": extender}, f"{NAME}-extender")
    assert [] == opened(separate, f"{NAME}-extender")


def test_the_address_in_the_old_environment_variable_is_reachable() -> None:
    given = {"METRICS_PROVIDER_NAME": "Prometheus", "METRICS_PROVIDER_ADDRESS": "http://prometheus.monitoring.svc:9090"}
    environment = [{"name": name, "value": value} for name, value in given.items()]
    assert [([9090], ["monitoring"])] == opened({"extraEnv": environment})


# --- releases --------------------------------------------------------------------------------------------------------


def identities(rendered: list[Manifest]) -> set[tuple[str, str, str]]:
    return {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]) for each in rendered}


def release(name: str, namespace: str, values: dict[str, Any]) -> list[Manifest]:
    options = ("--namespace", namespace, "--values", "-")
    return documents(helm("template", name, CHART, *options, given=with_images(values)))


@pytest.mark.parametrize("values", [EVERYTHING, SEPARATE], ids=["inner extender", "separate extender"])
def test_releases_do_not_share_objects(values: dict[str, Any]) -> None:
    """Two names in a namespace, and one name in two namespaces; with each component, and the pod of `helm test`."""
    values = {**values, "serviceAccount": {"create": True}, "extraObjects": []}
    first, second = (identities(release(name, "shared", values)) for name in ("a", "b"))
    assert first
    assert first.isdisjoint(second)
    assert first.isdisjoint(identities(release("a", "elsewhere", values)))


def test_common_labels_are_on_each_object_and_pod() -> None:
    rendered = release("a", "b", {**SEPARATE, "extraObjects": [], "commonLabels": {"team": "nodes"}})
    assert {"Pod", "DaemonSet", "Deployment"} < {each["kind"] for each in rendered}
    for each in rendered:
        assert "nodes" == each["metadata"]["labels"].get("team"), each["metadata"]["name"]
        if "template" in each.get("spec", {}):
            assert "nodes" == each["spec"]["template"]["metadata"]["labels"]["team"]
            assert "team" not in each["spec"]["selector"]["matchLabels"]


def test_an_image_may_have_a_digest() -> None:
    digest = f"sha256:{'a' * 64}"
    image = {"repository": "registry.example.com/lw", "tag": "1.0", "digest": digest}
    rendered = charted(
        {"image": image, "agent": {"enabled": True, "image": {"repository": "r/agent", "digest": digest}}}
    )
    assert f"registry.example.com/lw@{digest}" == pod_template(rendered)["spec"]["containers"][0]["image"]
    agent = only(rendered, "DaemonSet", f"{NAME}-agent")["spec"]["template"]["spec"]["containers"][0]
    assert f"r/agent@{digest}" == agent["image"]


# --- security, dashboards, priority ----------------------------------------------------------------------------------


def test_openshift_assigns_the_ids() -> None:
    """By values that docs/tasks/deploy.md names."""
    values = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))
    chart = charted({"podSecurityContext": values, "scheduler": {"enabled": True, "separate": True}})
    deployments = [each for each in chart if each["kind"] == "Deployment"]
    assert 2 == len(deployments)
    for each in deployments:
        context = each["spec"]["template"]["spec"]["securityContext"]
        assert {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} == context
    page = (DEPLOY.parent / "docs/tasks/deploy.md").read_text()
    assert all(f"{key}: null" in page for key in values)


def test_components_that_kube_scheduler_depends_on_are_critical() -> None:
    def classes(values: dict[str, Any]) -> set[str | None]:
        pods = [each["spec"]["template"]["spec"] for each in charted(values) if each["kind"] == "Deployment"]
        return {each.get("priorityClassName") for each in pods}

    assert {None} == classes({})
    assert {"system-cluster-critical"} == classes({"scheduler": {"enabled": True, "separate": True}})
    assert {"mine"} == classes({"scheduler": {"enabled": True}, "priorityClassName": "mine"})
    (deployment,) = (each for each in kustomized(DEPLOY / "overlays/extender") if each["kind"] == "Deployment")
    assert "system-cluster-critical" == deployment["spec"]["template"]["spec"]["priorityClassName"]


def test_the_dashboards_are_config_maps_for_the_side_car() -> None:
    rendered = charted({"dashboards": {"enabled": True, "labels": {"grafana_dashboard": "yes"}}})
    assert [] == problems(rendered)
    maps = [each for each in rendered if each["metadata"]["labels"].get("grafana_dashboard") == "yes"]
    shown = {name: json.loads(text) for each in maps for name, text in each["data"].items()}
    files = {path.name: json.loads(path.read_text()) for path in (DEPLOY.parent / "dashboards").glob("*.json")}
    assert files == shown
    assert len(files) == len(maps)
