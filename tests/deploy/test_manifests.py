"""The installation in a cluster: manifests by kustomize and a chart by Helm, rendered by both, validated with the
published schemas, compared with each other and with the requests of the service."""

from __future__ import annotations

import copy
import re
import shutil
import socket
import tomllib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession, web

from load_watcher.doctor.scheduler.configuration import check_configuration
from scorers.extender.service import SchedulerModule
from scorers.profiles.profiles import validate
from tests.deploy.rendering import (
    CHART,
    NAME,
    ChartError,
    Manifest,
    charted,
    helm,
    kustomized,
    only,
    plainly_named,
    pod_template,
    schema_errors,
    settings_in,
)
from tests.fakes.kube import KINDS, LEASES, PODS, FakeKube
from tests.fakes.kube_rules import has_labels
from tests.fakes.snapshots import WINDOWS
from tests.real.parts import REPOSITORY
from tests.waiting import eventually
from tests.watcher.koordinator.test_publisher import STEADY, Run, run, service
from watcher import __version__
from watcher.agent_clients.settings import AgentsSettings
from watcher.core.config.settings import Settings
from watcher.core.koordinator.collect_policy import CollectPolicies, PolicyOverride, PolicyRule
from watcher.core.review.settings import ReviewSettings
from watcher.platform.http.runner import Runner
from watcher.platform.http.settings import ServerSettings
from watcher.platform.modules import ServiceModule
from watcher.service.server import Watcher
from watcher.service.settings.loading import load
from watcher.service.settings.tables import PARTS, TABLES
from watcher.sources.settings import ProviderSettings
from watcher.store.settings import StoreSettings

pytestmark = [pytest.mark.real, pytest.mark.slow]

DEPLOY = REPOSITORY / "deploy"
PROMETHEUS = {"name": "prometheus", "address": "http://prometheus-k8s.monitoring.svc:9090"}
# Values with which the chart renders the same as an overlay.
SAME: dict[str, dict[str, Any]] = {
    "metrics-server": {},
    "prometheus": {"config": {"provider": PROMETHEUS}},
    "extender": {"scheduler": {"enabled": True}},
}
BINDING = {"default": {"bind": True}}
PUBLISHING = {"config": {"koordinator": {"publish": True}}}
MARKING = {"config": {"marks": {"taints": True, "annotation": True, "pressure": True}}}
THRESHOLDS = {"config": {"koordinator": {"thresholds": True}}}
FROM_CLUSTER = {"default": {"plugins": [{"name": "LoadAwareScheduling", "args": {"nodeMetricSource": "cluster"}}]}}
SHOWING = {
    f"{part}s": {"config": {f"{part}s": {"pods": {"selector": f"app.kubernetes.io/name={name}", "namespace": name}}}}
    for part, name in (("agent", "load-watcher-agent"), ("qrm", "load-watcher-qrm"))
}
SECRET = {"existingSecret": "load-watcher"}
MONITORED = {"serviceMonitor": {"enabled": True}}
ALERTING = {"prometheusRule": {"enabled": True}}
# Of Kubernetes: the oldest one with the used fields and with schemas in the package, and the newest.
VERSIONS = ("1.27.0", "1.37.0")
NODE_METRIC = "slo.koordinator.sh/v1alpha1/nodemetrics"
WRITING = ("get", "list", "watch", "create", "update", "patch", "delete")
SINCE = {"flowcontrol.apiserver.k8s.io/v1": "1.29.0", "admissionregistration.k8s.io/v1": "1.30"}
"""API versions newer than the oldest of VERSIONS; deploy/flowcontrol, the component agent-node-restriction, and
values in the chart use them."""
UNPUBLISHED = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}  # the package has no schemas of them


@pytest.fixture(scope="module", params=sorted(SAME))
def overlay(request: pytest.FixtureRequest) -> tuple[str, list[Manifest]]:
    """The name of an overlay and its objects."""
    return request.param, kustomized(DEPLOY / "overlays" / request.param)


@pytest.fixture(scope="module")
def manifests() -> list[Manifest]:
    """The objects for metrics-server."""
    return kustomized(DEPLOY / "overlays" / "metrics-server")


# --- valid for Kubernetes --------------------------------------------------------------------------------------------


def problems(rendered: list[Manifest]) -> list[str]:
    return [
        f"{version} {manifest['kind']} {error}"
        for version in VERSIONS
        for manifest in rendered
        if manifest["kind"] not in UNPUBLISHED and version >= SINCE.get(manifest["apiVersion"], "")
        for error in schema_errors(manifest, version=version)
    ]


def test_an_overlay_is_valid_for_kubernetes(overlay: tuple[str, list[Manifest]]) -> None:
    """By the published schemas, in which unknown fields are errors."""
    assert [] == problems(overlay[1])


CHARTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "prometheus": SAME["prometheus"],
    "everything": {
        "nodes": 20_000,
        **SECRET,
        **MONITORED,
        "flowSchema": {"enabled": True},
        "prometheusRule": {"enabled": True, "labels": {"a": "b"}, "runbooks": "https://git.example.com/load-watcher/"},
        "image": {"repository": "registry.example.com/load-watcher", "tag": "1.2.3", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "replicaCount": 3,
        "fullnameOverride": "other",
        "serviceAccount": {"create": True, "name": "someone", "annotations": {"a": "b"}},
        "service": {"type": "NodePort", "annotations": {"a": "b"}},
        "networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "egress": [{"ports": [{"port": 9090}]}]},
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "scheduler": {"enabled": True, "profiles": BINDING},
        "agent": {
            "enabled": True,
            "existingSecret": "load-watcher-agent",
            "pages": True,
            "nodeRestriction": True,
            "podMonitor": {"enabled": True, "labels": {"a": "b"}},
        },
        "qrm": {
            "enabled": True,
            "config": {"qrm": {"mode": "cri", "evict_inadmissible": True, "publish_capacity": True}},
            "nodeRestriction": True,
            "podMonitor": {"enabled": True, "labels": {"a": "b"}},
            "extraVolumes": [{"name": "sockets", "hostPath": {"path": "/var/lib/katalyst", "type": "Directory"}}],
            "extraVolumeMounts": [{"name": "sockets", "mountPath": "/var/lib/katalyst"}],
        },
        "commonLabels": {"team": "nodes"},
        "podOrigin": True,
        "nodeRestriction": True,
        "dashboards": {"enabled": True, "annotations": {"folder": "load"}},
        "extraProviders": ["datadog"],
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
        "securityContext": {"privileged": False},
        "probes": {"startup": {"failureThreshold": 60}},
        "extraObjects": [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "more", "namespace": "{{ .Release.Namespace }}"},
            },
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: text, namespace: {{ .Release.Namespace }}}}",
        ],
        "extraEnv": [{"name": "LOG_LEVEL", "value": "debug"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    },
    "nothing": {
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
        "podDisruptionBudget": {"enabled": False},
        "networkPolicy": {"enabled": False},
    },
}


@pytest.mark.parametrize("name", CHARTS)
def test_the_chart_is_valid_for_kubernetes(name: str) -> None:
    """With each value used at least once."""
    assert [] == problems(charted(CHARTS[name]))


@pytest.mark.parametrize(
    ("values", "request_", "limit"),
    [
        ({}, "256Mi", "512Mi"),
        ({"nodes": 100}, "256Mi", "512Mi"),
        ({"nodes": 10_000}, "300Mi", "600Mi"),
        ({"nodes": 50_000}, "660Mi", "1320Mi"),
        ({"nodes": 50_000, "resources": {"limits": {"memory": "2Gi"}}}, "660Mi", "2Gi"),
    ],
)
def test_the_memory_limit_follows_the_number_of_nodes(values: dict[str, Any], request_: str, limit: str) -> None:
    """Also that of a separate extender. docs/tasks/deploy.md has the formula; an explicit value replaces it."""
    own = {"resources": values["resources"]} if "resources" in values else {}
    rendered = charted({**values, "scheduler": {"enabled": True, "separate": True, **own}})
    deployments = [each for each in rendered if each["kind"] == "Deployment"]
    assert 2 == len(deployments)
    for deployment in deployments:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        resources = container["resources"]
        requests = resources["requests"]
        assert ("100m", request_, limit) == (requests["cpu"], requests["memory"], resources["limits"]["memory"])


def test_each_value_of_the_chart_is_tested() -> None:
    """A value that no test sets may have no effect."""
    known = yaml.safe_load((CHART / "values.yaml").read_text()).keys()
    tried = {key for values in CHARTS.values() for key in values}
    assert {"nameOverride", "resources", "storage"} == known - tried  # overridden, or the same in each rendering


def test_the_settings_are_mounted_where_the_program_reads_them(overlay: tuple[str, list[Manifest]]) -> None:
    """In the file of the variable, mounted from the existing ConfigMap."""
    spec = pod_template(overlay[1])["spec"]
    (container,) = spec["containers"]
    (named,) = (Path(each["value"]) for each in container["env"] if each["name"] == "LOAD_WATCHER_CONFIG")
    (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == str(named.parent))
    (volume,) = (each for each in spec["volumes"] if each["name"] == mount["name"])
    (config,) = (each for each in overlay[1] if each["kind"] == "ConfigMap")
    assert config["metadata"]["name"] == volume["configMap"]["name"]
    assert {named.name} == config["data"].keys()


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("Deployment", ("spec", "template", "spec", "containers", 0, "readinessProbe")),
        ("Deployment", ("spec", "strategy", "rollingUpdate")),
        ("Service", ("spec",)),
        ("NetworkPolicy", ("spec",)),
        ("PodDisruptionBudget", ("spec",)),
        ("ClusterRole", ("rules", 0)),
        ("ServiceAccount", ()),
    ],
    ids=str,
)
def test_a_misspelt_field_is_detected(manifests: list[Manifest], kind: str, place: tuple[Any, ...]) -> None:
    """So the checks are effective: each field, misspelt, is an error."""
    manifest = only(manifests, kind)
    where: Any = manifest
    for step in place:
        where = where[step]
    for field in where:
        broken = copy.deepcopy(manifest)
        inside: Any = broken
        for step in place:
            inside = inside[step]
        inside[f"{field}x"] = inside.pop(field)
        if place or field not in ("apiVersion", "kind"):
            assert schema_errors(broken, version=VERSIONS[-1]), field


# --- the chart -------------------------------------------------------------------------------------------------------


def test_helm_lint_has_no_messages() -> None:
    """Neither warnings nor recommendations."""
    assert not re.search(r"\[(INFO|WARNING|ERROR)\]", helm("lint", "--strict", CHART))


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"replicas": 3}, "replicas"),
        ({"image": {"repo": "x"}}, "repo"),
        ({"replicaCount": "two"}, "replicaCount"),
        ({"config": {"provider": {"name": None}}}, "name"),
        ({"config": {"provider": {"name": "host"}}}, "provider"),
        ({"config": {"store": "sqlite"}}, "store"),
        ({"config": {"server": {"port": 2021}}}, "port"),
        ({"config": {"provider": {"nmae": "prometheus"}}}, "additional properties 'nmae' not allowed"),
        (
            {"config": {"provider": {"name": "promethus"}}},
            '"promethus" is not a provider; use metrics-server, prometheus',
        ),
        ({"config": {"provider": {"name": "prometheus"}}}, "provider prometheus has no default address"),
        ({"config": {"refrsh": {}}}, "additional properties 'refrsh' not allowed"),
        ({"config": {"refresh": {"interval": "soon"}}}, "'soon' does not match"),
        ({"config": {"store": {"max_size": "4GiB"}}}, r"max_size \(4GiB\) must be less than storage.data \(1536Mi\)"),
        ({"config": {"store": {"max_size": 1610612736}}}, "must be less than storage.data"),
        ({"storage": {"data": "big"}}, '"big" is not a size'),
        ({"image": {"digest": "sha256:12"}}, "digest"),
        ({"image": {"repository": ""}}, "image.repository is not set, and no image is published"),
        ({"agent": {"enabled": True, "image": {"repository": ""}}}, "agent.image.repository is not set"),
        ({"agent": {"config": {"agent": {"mode": "enforced"}}}}, "mode"),
        ({"qrm": {"config": {"qrm": {"reserved_cpu": "0"}}}}, "reserved_cpu"),
        ({"config": {"scheduler": {"default": {}}}}, "scheduler"),
        ({"scheduler": {"profile": {}}}, "profile"),
    ],
    ids=str,
)
def test_a_misspelt_value_is_refused(values: dict[str, Any], reported: str) -> None:
    """Before the installation."""
    with pytest.raises(ChartError, match=reported):
        charted(values)


def normal(manifest: Manifest) -> Manifest:
    """A manifest without the parts that only one of the two tools adds: the hash in a ConfigMap's name, Helm's labels,
    and the annotation by which a change of the settings restarts pods. The settings are compared as they are read."""
    plain = plainly_named(manifest, NAME)
    marks = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")
    for mark in marks:
        plain["metadata"]["labels"].pop(mark, None)
    if plain["kind"] == "Deployment":
        annotations = plain["spec"]["template"]["metadata"].pop("annotations", {})
        assert set(annotations) <= {"checksum/config"}
    if plain["kind"] == "ConfigMap":
        plain["data"] = tomllib.loads(plain["data"]["load-watcher.toml"])
    return plain


def by_name(rendered: list[Manifest]) -> dict[str, Manifest]:
    found = {f"{each['kind']} {each['metadata']['name']}": each for each in map(normal, rendered)}
    assert len(found) == len(rendered)
    return found


def test_the_chart_and_the_manifests_are_equal(overlay: tuple[str, list[Manifest]]) -> None:
    """Except for the namespace, which Helm leaves to its user."""
    name, rendered = overlay
    expected = by_name(rendered)
    del expected["Namespace load-watcher"]
    if name == "prometheus":  # an overlay has no namespace for an address
        namespace = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        expected["NetworkPolicy load-watcher"]["spec"]["egress"][-1]["to"] = [namespace]
    assert expected == by_name(charted(SAME[name]))


@pytest.mark.parametrize(
    "values",
    [
        SECRET,
        MONITORED,
        ALERTING,
        {"rbac": {"pods": True}},
        {"scheduler": {"enabled": True}, "rbac": {"nodeMetrics": True}},
        PUBLISHING,
        THRESHOLDS,
        MARKING,
        *SHOWING.values(),
    ],
    ids=["secret", "monitor", "alerts", "pods", "NodeMetrics", "publishing", "thresholds", "marks", *SHOWING],
)
def test_a_single_value_of_the_chart_is_valid_for_kubernetes(values: dict[str, Any]) -> None:
    assert [] == problems(charted(values))


def test_the_runbooks_of_the_alerts_can_be_changed() -> None:
    """Each runbook, and no other part of the rules."""
    runbooks = "https://git.example.com/load-watcher/"
    (rules,) = (each["spec"] for each in charted(ALERTING) if each["kind"] == "PrometheusRule")
    (led,) = (
        each["spec"]
        for each in charted({"prometheusRule": {"enabled": True, "runbooks": runbooks}})
        if each["kind"] == "PrometheusRule"
    )
    assert yaml.safe_load((DEPLOY / "alerts.yaml").read_text()) == rules
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule["annotations"]["runbook_url"] = f"{runbooks}{rule['annotations']['runbook_url']}"
    assert rules == led


def test_a_release_with_any_name_is_consistent() -> None:
    """Names that refer to each other are derived in one place."""
    rendered = charted({"fullnameOverride": "other"}, namespace="monitoring")
    only(rendered, "Service", "other")
    assert "other" == only(rendered, "Deployment", "other")["spec"]["template"]["spec"]["serviceAccountName"]
    (subject,) = only(rendered, "ClusterRoleBinding", "other.monitoring")["subjects"]
    assert {"kind": "ServiceAccount", "name": "other", "namespace": "monitoring"} == subject


def test_with_a_certificate_all_requests_use_https() -> None:
    """Otherwise no pod becomes ready."""
    files = {"tls_cert": "/run/secrets/load-watcher/tls.crt", "tls_key": "/run/secrets/load-watcher/tls.key"}
    rendered = charted({**SECRET, **MONITORED, "config": {"server": files}})
    assert [] == problems(rendered)
    (container,) = pod_template(rendered)["spec"]["containers"]
    probes = [container[each]["httpGet"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert ["HTTPS"] * 3 == [probe["scheme"] for probe in probes]
    (endpoint,) = only(rendered, "ServiceMonitor")["spec"]["endpoints"]
    assert "https" == endpoint["scheme"]


def monitored_endpoints(manifests: list[Manifest]) -> list[dict[str, Any]]:
    """The endpoints of all monitors of the Prometheus operator."""
    lists = {"ServiceMonitor": "endpoints", "PodMonitor": "podMetricsEndpoints"}
    return [each for found in manifests if (key := lists.get(found["kind"])) for each in found["spec"][key]]


def test_each_monitor_keeps_the_labels_of_the_series() -> None:
    """Otherwise a target label `node` would rename all nodes to the one on which load-watcher runs."""
    monitors = charted(MONITORED)
    for part in ("agent", "qrm"):  # separate values, because each gets an image
        monitors += charted({part: {"enabled": True, "podMonitor": {"enabled": True}}})
    assert [True] * 3 == [each.get("honorLabels") for each in monitored_endpoints(monitors)]


def test_a_field_of_the_endpoint_overrides_this() -> None:
    given = {"serviceMonitor": {"enabled": True, "endpoint": {"honorLabels": False, "scrapeTimeout": "5s"}}}
    (endpoint,) = monitored_endpoints(charted(given))
    assert (endpoint["honorLabels"], endpoint["scrapeTimeout"]) == (False, "5s")


def test_without_any_right_the_pods_have_no_token() -> None:
    """A source outside of Kubernetes, and its names of nodes."""
    rendered = charted({"config": {"provider": PROMETHEUS}, "rbac": {"nodes": False}})
    assert not {"ClusterRole", "ClusterRoleBinding"} & {each["kind"] for each in rendered}
    assert pod_template(rendered)["spec"]["automountServiceAccountToken"] is False


# --- the settings ----------------------------------------------------------------------------------------------------


def read(text: str, directory: Path) -> Settings:
    """The settings as the pod reads them; SettingsError if they are invalid."""
    path = directory / "load-watcher.toml"
    path.write_text(text)
    # as in the image, and as Kubernetes sets it in each pod
    environ = {"LOAD_WATCHER_DEFAULT_SERVER_HOST": "::", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    return load(flags={}, environ=environ, file=path, cwd=directory)


def test_the_settings_are_valid(overlay: tuple[str, list[Manifest]], tmp_path: Path) -> None:
    """Those that the pod reads, with a volume larger than the limit of the database."""
    name, rendered = overlay
    settings = read(settings_in(rendered), tmp_path)
    source = "prometheus" if name == "prometheus" else "metrics-server"
    assert (source, "::", 2020) == (
        settings[ProviderSettings].name,
        settings[ServerSettings].host,
        settings[ServerSettings].port,
    )
    assert ({"scheduler"} if name == "extender" else set()) == settings.parts.keys()
    assert [] == validate(settings.parts.get("scheduler", {}))
    assert "sqlite:////data/load-watcher.db" == settings[StoreSettings].url
    (data,) = (each for each in pod_template(rendered)["spec"]["volumes"] if each["name"] == "data")
    most = settings[StoreSettings].max_size
    assert most is not None
    assert most < int(data["emptyDir"]["sizeLimit"].removesuffix("Mi")) * 2**20


def test_any_settings_can_be_given_as_values(tmp_path: Path) -> None:
    """Numbers, nested tables, names that need quotes in TOML; null removes a default of the chart."""
    given = {
        "server": {"hosts": ["load.example.com"]},
        "provider": {
            **PROMETHEUS,
            "headers": {"X-Scope-OrgID": "team-a"},
            "metrics": ["CPU", "Memory"],
            "queries": {"CPU": {"expression": 'sum by (node) (up{a="<é>"})', "unit": "ratio"}},
        },
        "review": {"outage_fraction": 0.5, "carry_slots": 3},
        "store": {"upgrade": False, "max_size": None},
    }
    settings = read(settings_in(charted({"config": given})), tmp_path)
    assert (("load.example.com",), "default") == (
        settings[ServerSettings].hosts,
        settings.origins.get("store.max_size", "default"),
    )
    assert "team-a" == settings[ProviderSettings].headers["X-Scope-OrgID"].reveal()
    assert ("CPU", "Memory") == settings[ProviderSettings].metrics
    assert 'sum by (node) (up{a="<é>"})' == settings[ProviderSettings].queries["CPU"].expression
    assert (0.5, 3, False) == (
        settings[ReviewSettings].outage_fraction,
        settings[ReviewSettings].carry_slots,
        settings[StoreSettings].upgrade,
    )


def test_the_watcher_finds_the_agents_of_its_own_release(tmp_path: Path) -> None:
    """By the labels of their pods, in their namespace, with their token; only if the value is set."""
    (values,) = (each for each in DOCUMENTED if "agent" in each)
    rendered = charted(values, namespace="elsewhere")
    (named,) = (config for config in rendered if config["kind"] == "ConfigMap" and config["metadata"]["name"] == NAME)
    secret = tmp_path / "token"
    secret.write_text("of the agents")
    text = named["data"]["load-watcher.toml"].replace("/run/secrets/load-watcher-agent/token", str(secret))
    agents = read(text, tmp_path)[AgentsSettings]
    assert agents.pods is not None
    assert not agents.report_pods
    agent = only(rendered, "DaemonSet", "load-watcher-agent")
    labels = agent["spec"]["template"]["metadata"]["labels"]
    assert has_labels({"metadata": {"labels": labels}}, agents.pods.selector)
    own = pod_template(rendered)["metadata"]["labels"]
    assert not has_labels({"metadata": {"labels": own}}, agents.pods.selector)
    assert (
        "elsewhere"
        == agents.pods.namespace
        == only(rendered, "Role", f"{NAME}-agents.elsewhere")["metadata"]["namespace"]
    )
    (port,) = (each["containerPort"] for each in agent["spec"]["template"]["spec"]["containers"][0]["ports"])
    assert port == agents.pods.port
    (container,) = pod_template(rendered)["spec"]["containers"]
    (mounted,) = (each["name"] for each in container["volumeMounts"] if "load-watcher-agent" in each["mountPath"])
    volumes = {each["name"]: each for each in pod_template(rendered)["spec"]["volumes"]}
    assert "load-watcher-agent" == volumes[mounted]["secret"]["secretName"]

    silent = charted({"agent": {**values["agent"], "pages": False}})
    assert not [
        each for each in silent if each["kind"] == "Role" and each["metadata"]["name"].startswith(f"{NAME}-agents")
    ]
    assert pod_template(charted()) == {**pod_template(silent)}
    with pytest.raises(ChartError, match=r"agent\.pages requires agent\.existingSecret"):
        charted({"agent": {"enabled": True, "pages": True}})


def test_agents_by_label_need_a_token_and_no_right_in_the_whole_cluster() -> None:
    """With another source, which needs no right, and several selections in a namespace."""
    selection = "app=agent"
    config = {"agents": {"pods": selection}, "qrms": {"pods": selection}}
    rendered = charted({"config": {"provider": PROMETHEUS, **config}, "rbac": {"nodes": False}})
    assert pod_template(rendered)["spec"]["automountServiceAccountToken"]
    assert ["Role", "RoleBinding"] == sorted(
        each["kind"] for each in rendered if "rbac.authorization.k8s.io" in each["apiVersion"]
    )
    egress = only(rendered, "NetworkPolicy")["spec"]["egress"]
    assert [2023, 2024, 9090] == [
        each["ports"][0]["port"] for each in egress if "namespaceSelector" in str(each.get("to"))
    ]


def test_any_profile_can_be_given_as_values() -> None:
    """Tables in lists, which TOML writes differently from JSON; null removes a key or a profile of the chart."""
    plugin = {"name": "HighLoadFilter", "args": {"usageThresholds": {"cpu": 90.5, "a/b": 1}, "failOpen": None}}
    given = {"packing": {"plugins": [plugin, {"name": "Peaks", "args": {}}], "precise_scores": True}, "default": None}
    text = settings_in(charted({"scheduler": {"enabled": True, "profiles": given}}))
    args = {"usageThresholds": {"cpu": 90.5, "a/b": 1}}
    plugins = [{"name": "HighLoadFilter", "args": args}, {"name": "Peaks", "args": {}}]
    assert {"packing": {"plugins": plugins, "precise_scores": True}} == tomllib.loads(text)["scheduler"]
    assert "scheduler" not in tomllib.loads(settings_in(charted({"scheduler": {"profiles": given}})))


DOCUMENTED = [
    yaml.safe_load(text)
    for text in re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "tasks" / "deploy.md").read_text(), re.DOTALL)
]
EXAMPLES = [values for values in DOCUMENTED if "config" in values]


@pytest.mark.parametrize("values", EXAMPLES, ids=[each["config"].popitem()[0] for each in copy.deepcopy(EXAMPLES)])
def test_the_values_in_the_documentation_work(values: dict[str, Any], tmp_path: Path) -> None:
    """Unchanged; only the files do not exist here."""
    rendered = charted(values)
    assert [] == problems(rendered)
    (tmp_path / "secret").write_text("a token")
    text = re.sub(r'"/run/secrets/load-watcher/[^"]+"', f'"{tmp_path}/secret"', settings_in(rendered))
    assert read(text, tmp_path)[ProviderSettings].name in ("metrics-server", "prometheus")
    assert "existingSecret" in values


def test_the_overlay_in_the_documentation_works(tmp_path: Path) -> None:
    """Beside a clone, with the settings of the overlay that it extends."""
    shutil.copytree(DEPLOY, tmp_path / "load-watcher" / "deploy")
    (values,) = (each for each in DOCUMENTED if each.get("kind") == "Kustomization")
    (mine := tmp_path / "my-load-watcher").mkdir()
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(values))
    shutil.copy(DEPLOY / "overlays" / "prometheus" / "load-watcher.toml", mine)
    rendered = kustomized(mine)
    assert [] == problems(rendered)
    assert "registry.example.com/load-watcher:0.1.0" == pod_template(rendered)["spec"]["containers"][0]["image"]


def test_the_profile_in_the_documentation_works() -> None:
    """The value changes an argument of the chart's profile."""
    (values,) = (each for each in DOCUMENTED if "scheduler" in each)
    scheduler = tomllib.loads(settings_in(charted(values)))["scheduler"]
    assert [] == validate(scheduler)
    assert 50 == scheduler["default"]["plugins"][0]["args"]["targetUtilization"]


def test_the_settings_of_the_chart_are_known_to_the_service() -> None:
    """A misspelt section in the default values would prevent the start of the pod."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["config"].keys() <= {*TABLES, *PARTS}


def test_versions_are_those_of_the_package() -> None:
    """One release has the program, the image and the chart."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {__version__} == {chart["version"], chart["appVersion"]}
    base = yaml.safe_load((DEPLOY / "base" / "kustomization.yaml").read_text())
    assert [__version__] == [image["newTag"] for image in base["images"]]


# --- security and selectors of pods ---------------------------------------------------------------------------------


def test_pods_are_hardened(overlay: tuple[str, list[Manifest]]) -> None:
    """By the strictest of Kubernetes' standards, with write access to their volumes only."""
    spec = pod_template(overlay[1])["spec"]
    (container,) = spec["containers"]
    assert {"type": "RuntimeDefault"} == spec["securityContext"]["seccompProfile"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["runAsUser"] > 0
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container["securityContext"]
    writable = {each["name"] for each in spec["volumes"] if "emptyDir" in each}
    assert {"data": "/data", "tmp": "/tmp"} == {
        each["name"]: each["mountPath"] for each in container["volumeMounts"] if each["name"] in writable
    }
    resources = container["resources"]
    assert {"cpu", "memory", "ephemeral-storage"} == resources["requests"].keys()
    assert {"memory", "ephemeral-storage"} == resources["limits"].keys()
    volumes = sum(int(each["emptyDir"]["sizeLimit"][:-2]) for each in spec["volumes"] if "emptyDir" in each)
    assert volumes + 256 == int(resources["limits"]["ephemeral-storage"].removesuffix("Mi"))
    assert {"kubernetes.io/os": "linux"} == spec["nodeSelector"]


def test_all_selectors_select_the_pods(overlay: tuple[str, list[Manifest]]) -> None:
    """A selector without pods fails silently."""
    rendered = overlay[1]
    labels = pod_template(rendered)["metadata"]["labels"]
    policy = only(rendered, "NetworkPolicy")["spec"]
    selectors = [
        only(rendered, "Deployment")["spec"]["selector"]["matchLabels"],
        only(rendered, "Service")["spec"]["selector"],
        only(rendered, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        policy["podSelector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in pod_template(rendered)["spec"]["topologySpreadConstraints"]),
    ]
    assert len(selectors) >= 6
    for selector in selectors:
        assert selector
        assert selector.items() <= labels.items()


def test_there_are_two_replicas_of_which_one_may_be_unavailable(overlay: tuple[str, list[Manifest]]) -> None:
    """A new one must be ready before an old one ends."""
    spec = only(overlay[1], "Deployment")["spec"]
    assert 2 == spec["replicas"]
    assert {"maxUnavailable": 0, "maxSurge": 1} == spec["strategy"]["rollingUpdate"]
    assert 1 == only(overlay[1], "PodDisruptionBudget")["spec"]["maxUnavailable"]


# --- with the service ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def serving(settings: Settings, *, parts: Sequence[ServiceModule]) -> AsyncIterator[tuple[Watcher, str]]:
    """Run the service; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    watcher = Watcher(settings, parts=parts)
    runner = Runner(watcher.app, shutdown_timeout=1.0)
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield watcher, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await runner.cleanup()


def granted(rendered: list[Manifest]) -> set[tuple[str, str]]:
    """(verb, resource in the fake server's notation) of the roles."""
    versions = {"": "", "metrics.k8s.io": "metrics.k8s.io/v1beta1", "slo.koordinator.sh": "slo.koordinator.sh/v1alpha1"}
    roles = [each for each in rendered if each["kind"] in ("ClusterRole", "Role")]
    return {
        (verb, f"{versions.get(group, f'{group}/v1') or 'v1'}/{resource}")
        for rule in (rule for role in roles for rule in role["rules"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {}),
        ({"rbac": {"pods": True}}, {"refresh.pods": "on"}),
        ({"scheduler": {"enabled": True}}, {}),
        ({"scheduler": {"enabled": True, "profiles": BINDING}}, {}),
        ({"scheduler": {"enabled": True, "profiles": FROM_CLUSTER}, "rbac": {"nodeMetrics": True}}, {}),
        (SHOWING["agents"], {}),
    ],
    ids=["nodes", "pods too", "extender", "extender that binds", "extender by NodeMetrics", "agents by label"],
)
async def test_the_service_runs_with_these_settings_and_uses_each_right(
    tmp_path: Path, values: dict[str, Any], wanted: dict[str, str]
) -> None:
    """Only the API server, the database and the address differ. All other requests are refused. (Another test compares
    the settings and rights of the manifests.)"""
    rendered = charted(values)
    rights = granted(rendered)

    async def story(kube: FakeKube) -> None:
        config = tmp_path / "load-watcher.toml"
        config.write_text(settings_in(rendered).replace("/data/", f"{tmp_path}/"))
        flags = {
            "server.host": "127.0.0.1",
            "provider.kubeconfig": str(kube.kubeconfig(tmp_path / "kubeconfig")),
            **wanted,
        }
        settings = load(flags=flags, environ={}, file=config, cwd=tmp_path)
        async with serving(settings, parts=(SchedulerModule(),) if settings.parts else ()) as (watcher, url):
            await eventually(lambda: watcher.view.published, what="a first document")
            if ("create", "v1/pods/binding") in rights:
                binding = {"PodName": "web", "PodNamespace": "default", "PodUID": "web", "Node": "a"}
                bind = f"{url}/scheduler/default/bind"
                async with ClientSession() as session, session.post(bind, json=binding) as answer:
                    assert {"Error": ""} == await answer.json()
            if settings[AgentsSettings].pods is not None:
                async with ClientSession() as session, session.get(f"{url}/api/v1/agents") as answer:
                    assert 200 == answer.status  # this request starts the list
            await eventually(lambda: {(each.verb, each.resource) for each in kube.asked} == rights, what="all rights")
            # a refused request is one of these
            findings = watcher.view.refresher.findings_document().findings
            assert not {"query_failed", "source"} & {each.kind for each in findings}
            (container,) = pod_template(rendered)["spec"]["containers"]
            async with ClientSession() as session:
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    async with session.get(f"{url}{container[probe]['httpGet']['path']}") as answer:
                        # a first start with metrics-server has no window yet
                        assert (503 if probe == "readinessProbe" else 200) == answer.status

    with FakeKube() as kube:
        everything = {(verb, each) for verb in ("get", "list", "watch") for each in KINDS}
        everything.add(("create", "v1/pods/binding"))
        kube.put(
            PODS, "default/web", metadata={"name": "web", "namespace": "default", "uid": "web"}, spec={}, status={}
        )
        kube.define(NODE_METRIC, "NodeMetric")
        everything |= {(verb, NODE_METRIC) for verb in WRITING}
        kube.forbidden = everything - rights
        kube.node("a")
        kube.usage("a", time=datetime.now(UTC).isoformat())
        await story(kube)


def test_writing_node_metrics_uses_each_of_its_rights() -> None:
    """The additional rights of the chart: to create an object, to change its policy, and to write its status."""
    rights = granted(charted(PUBLISHING)) - granted(charted())
    parts = [f"{NODE_METRIC}{part}" for part in ("", "/status")]
    source = service({"a": STEADY})

    async def story(go: Run) -> None:
        await go.until(lambda: go.server.names(NODE_METRIC) and go.status("a"), what="the object")
        rule = PolicyRule(PolicyOverride(report_interval_s=30), names=("a",))
        source.collect_policies = CollectPolicies(rules=(rule,), windows=WINDOWS)
        source.clock += 11.0  # the renewal of the Lease
        await go.until(lambda: {(each.verb, each.resource) for each in go.server.asked} == rights, what="all rights")

    def prepare(kube: FakeKube) -> None:
        kube.forbidden = {(verb, each) for verb in WRITING for each in (*parts, LEASES)} - rights

    run(source, story, prepare=prepare)


# --- the scheduler's side --------------------------------------------------------------------------------------------


SCHEDULERS = {
    "target-load-packing.yaml": "TargetLoadPacking",
    "load-variation-risk-balancing.yaml": "LoadVariationRiskBalancing",
    "low-risk-over-commitment.yaml": "LowRiskOverCommitment",
}


def test_there_is_a_configuration_for_each_plug_in() -> None:
    assert {*SCHEDULERS, "extender.yaml"} == {path.name for path in (DEPLOY / "scheduler").iterdir()}


def test_the_extender_is_documented_and_requests_the_installed_service(manifests: list[Manifest]) -> None:
    """By the name, namespace and port of the Service, and an existing profile."""
    text = (DEPLOY / "scheduler" / "extender.yaml").read_text()
    assert [] == list(check_configuration(text))
    (extender,) = yaml.safe_load(text)["extenders"]
    (profile,) = yaml.safe_load(text)["profiles"]
    assert "plugins" not in profile  # while load-watcher is unavailable, kube-scheduler ranks nodes without it
    page = (REPOSITORY / "docs" / "concepts" / "scheduling.md").read_text()
    (block,) = re.findall(r"```yaml\n(extenders:.*?)```", page, re.DOTALL)
    (documented,) = yaml.safe_load(block)["extenders"]
    assert "filter" == documented.pop("filterVerb")  # a comment in the project's file: its profile has no filter
    assert documented == extender
    service = only(manifests, "Service")
    (port,) = service["spec"]["ports"]
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}"
    (profile,) = tomllib.loads(settings_in(kustomized(DEPLOY / "overlays" / "extender")))["scheduler"]
    assert f"http://{host}/scheduler/{profile}" == extender["urlPrefix"]


@pytest.mark.parametrize(("name", "plugin"), SCHEDULERS.items())
def test_the_doctor_accepts_a_scheduler_configuration(name: str, plugin: str) -> None:
    """It checks the fields, the arguments, and plug-ins that must be disabled."""
    text = (DEPLOY / "scheduler" / name).read_text()
    assert [] == list(check_configuration(text))
    (profile,) = yaml.safe_load(text)["profiles"]
    assert [plugin] == [each["name"] for each in profile["plugins"]["score"]["enabled"]]
    assert {"NodeResourcesFit", "NodeResourcesBalancedAllocation"} == {
        each["name"] for each in profile["plugins"]["score"]["disabled"]
    }
    assert ("preScore" in profile["plugins"]) == (plugin == "LowRiskOverCommitment")


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_scheduler_requests_the_installed_service(manifests: list[Manifest], name: str) -> None:
    """By its name, namespace and port."""
    (profile,) = yaml.safe_load((DEPLOY / "scheduler" / name).read_text())["profiles"]
    (config,) = profile["pluginConfig"]
    service = only(manifests, "Service")
    (port,) = service["spec"]["ports"]
    expected = f"http://{service['metadata']['name']}.{service['metadata']['namespace']}.svc:{port['port']}"
    assert expected == config["args"]["watcherAddress"]
