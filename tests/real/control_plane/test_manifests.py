"""What deploy/ contains, on a real API server: each object is accepted with strict field validation and without a
warning, and pods comply with the Pod Security level of their namespace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import Manifest, charted, composed
from tests.deploy.test_manifests import CHARTS
from tests.real.control_plane.manifests import DEPLOY, apply, define, define_policies, overlay
from tests.real.kube import ApiServer
from tests.real.parts import find_go_module

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

MONITORS = ("servicemonitors", "podmonitors", "prometheusrules")
BASES = sorted(
    str(path.parent.relative_to(DEPLOY))
    for path in DEPLOY.rglob("kustomization.yaml")
    if path.parent.parent.name != "components"
)
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
VIOLATIONS = {"baseline": "hostPath volumes", "restricted": "restricted volume types"}
OTHERS = ("charts", "load-watcher-agent", "load-watcher-qrm")
"""Namespaces that the manifests under test do not contain."""


@pytest.fixture(scope="module")
def prepared(cluster: ApiServer) -> ApiServer:
    """The API server has the definitions of the Prometheus operator and of the policies, and a namespace per level of
    Pod Security."""
    operator = find_go_module("github.com/prometheus-operator/prometheus-operator") / "example/prometheus-operator-crd"
    define(
        cluster, *(yaml.safe_load((operator / f"monitoring.coreos.com_{each}.yaml").read_text()) for each in MONITORS)
    )
    define_policies(cluster)
    for name in OTHERS:
        cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})  # 409 if it exists
    for level in VIOLATIONS:
        labels = {"pod-security.kubernetes.io/enforce": level}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": level, "labels": labels}}
        assert apply(cluster, namespace).ok
    return cluster


def base_of(component: str) -> str:
    """Return the directory of deploy to which a component belongs, by its name."""
    return next((each for each in ("agent", "qrm") if component.startswith(f"{each}-")), "overlays/extender")


def problems(api: ApiServer, rendered: list[Manifest]) -> list[str]:
    """Apply manifests in dry-run, and Namespaces really; return refusals and warnings of the API server."""
    found = []
    for manifest in sorted(rendered, key=lambda each: each["kind"] != "Namespace"):
        options = {} if manifest["kind"] == "Namespace" else {"dryRun": "All"}
        answer = apply(api, manifest, **options)
        problem = answer.headers.get("Warning", "") if answer.ok else answer.text
        found += [f"{manifest['kind']} {manifest['metadata']['name']}: {problem}"] if problem else []
    return found


@pytest.mark.parametrize("base", BASES)
def test_a_directory_is_applied_without_a_problem(prepared: ApiServer, base: str) -> None:
    """As `kubectl apply -k` does."""
    assert [] == problems(prepared, overlay(base))


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_applied_without_a_problem(prepared: ApiServer, tmp_path: Path, component: str) -> None:
    """In addition to the directory to which it belongs."""
    assert [] == problems(prepared, composed(tmp_path, DEPLOY / base_of(component), component))


@pytest.mark.parametrize("name", CHARTS)
def test_the_chart_is_applied_without_a_problem(prepared: ApiServer, name: str) -> None:
    """With the values of the tests of the chart, in a namespace without a level of Pod Security."""
    assert [] == problems(prepared, charted(CHARTS[name], namespace="charts"))


@pytest.mark.parametrize("name", ["throttle", "evict"])
def test_a_policy_is_applied_without_a_problem(prepared: ApiServer, name: str) -> None:
    """By the schema of the CustomResourceDefinitions, which refuses unknown fields."""
    policies = list(yaml.safe_load_all((DEPLOY / f"agent/policies/{name}.yaml").read_text()))
    assert [] == problems(prepared, policies)
    policies[0]["spec"]["colour"] = "red"
    (problem,) = problems(prepared, policies[:1])
    assert "spec.colour" in problem


# --- Pod Security ----------------------------------------------------------------------------------------------------


def refusal(api: ApiServer, pod: Manifest, *, namespace: str) -> str:
    """Return why a pod may not be created in a namespace, "" if it may."""
    answer = api.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    return "" if answer.ok else str(answer.json()["message"])


def pod_of(rendered: list[Manifest], kind: str) -> tuple[Manifest, str]:
    """Return a pod of the only Deployment or DaemonSet, and its namespace."""
    (workload,) = (each for each in rendered if each["kind"] == kind)
    template: dict[str, Any] = workload["spec"]["template"]
    return {"metadata": {**template["metadata"], "name": "secure"}, "spec": template["spec"]}, workload["metadata"][
        "namespace"
    ]


@pytest.mark.parametrize("name", [each for each in BASES if each.startswith("overlays/")])
def test_the_service_complies_with_the_level_restricted(prepared: ApiServer, name: str) -> None:
    """Its namespace enforces the level."""
    rendered = overlay(name)
    assert [] == problems(prepared, [each for each in rendered if each["kind"] == "Namespace"])
    pod, namespace = pod_of(rendered, "Deployment")
    assert "" == refusal(prepared, pod, namespace=namespace)
    assert "" == refusal(prepared, pod, namespace="restricted")
    pod["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    assert "allowPrivilegeEscalation" in refusal(prepared, pod, namespace=namespace)


@pytest.mark.parametrize("components", [("agent",), ("agent-restore",), ("qrm", "qrm-cri"), ("qrm-restore",)])
def test_node_processes_need_the_level_privileged(
    prepared: ApiServer, tmp_path: Path, components: tuple[str, ...]
) -> None:
    """Their namespaces have it: they mount directories of the host, which the other levels forbid."""
    rendered = composed(tmp_path, DEPLOY / components[0], *components[1:])
    assert [] == problems(prepared, [each for each in rendered if each["kind"] == "Namespace"])
    pod, namespace = pod_of(rendered, "DaemonSet")
    assert "" == refusal(prepared, pod, namespace=namespace)
    for level, violation in VIOLATIONS.items():
        assert violation in refusal(prepared, pod, namespace=level)
