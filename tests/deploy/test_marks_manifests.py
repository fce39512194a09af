"""The rights, the policy and the uninstall hook of the marks on nodes ([marks])."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from scorers.marks.annotation import ANNOTATION_KEY
from scorers.marks.degrees import EFFECT, KEYS
from scorers.marks.writer import MARKS_LEASE
from tests.deploy.rendering import DEPLOY, NAME, Manifest, charted, composed, helm_hooks, only, settings_in
from tests.deploy.test_manifests import MARKING, by_name, granted, problems
from watcher.core.koordinator.usage_thresholds import ANNOTATION

pytestmark = [pytest.mark.real, pytest.mark.slow]

HOOK = f"{NAME}-marks-remove"


def with_marks(**marks: bool) -> list[Manifest]:
    return charted({"config": {"marks": marks}})


def added_rights(**marks: bool) -> set[tuple[str, str]]:
    return granted(with_marks(**marks)) - granted(charted())


def test_rights_are_granted_only_for_the_parts_that_are_on() -> None:
    assert added_rights() == added_rights(taints=False) == set()
    assert added_rights(taints=True, annotation=True, preview=True) == set()
    writing = {("get", "v1/nodes"), ("patch", "v1/nodes"), ("create", "v1/events")}
    lease = {(verb, "coordination.k8s.io/v1/leases") for verb in ("create", "get", "patch")}
    assert added_rights(taints=True) == added_rights(annotation=True) == writing | lease
    assert added_rights(pressure=True) == {("list", "v1/pods"), ("watch", "v1/pods")}


def test_the_rights_on_leases_are_limited_to_that_of_the_marks() -> None:
    rules = only(with_marks(taints=True), "Role", f"{NAME}-marks")["rules"]
    assert [each.get("resourceNames") for each in rules if "patch" in each["verbs"]] == [[MARKS_LEASE]]


def test_the_component_and_the_chart_are_equal(tmp_path: Path) -> None:
    """Except for the settings, which the user of the component writes, and the hook."""
    overlay = composed(tmp_path, DEPLOY / "overlays/metrics-server", "marks")
    assert [] == problems(overlay)
    ours = by_name(overlay)
    theirs = by_name([each for each in charted({**MARKING, "nodeRestriction": True}) if not helm_hooks(each)])
    for each in (ours, theirs):
        for name in ("ClusterRole load-watcher", f"ConfigMap {NAME}"):
            each[name]["data"] = None
        each["ClusterRole load-watcher"]["rules"].sort(key=str)
    del ours["Namespace load-watcher"]
    assert ours == theirs


def test_the_policy_has_the_keys_that_the_service_writes() -> None:
    policy = only(charted({"nodeRestriction": True}), "ValidatingAdmissionPolicy", f"{NAME}-service")
    values = {each["name"]: each["expression"] for each in policy["spec"]["variables"]}
    assert values["keys"] == str([ANNOTATION, ANNOTATION_KEY])
    assert values["taints"] == str(list(KEYS))
    assert f"each.effect == '{EFFECT}'" in policy["spec"]["validations"][-1]["expression"]


def test_an_uninstall_removes_the_marks_with_the_rights_of_the_service() -> None:
    rendered = charted(MARKING)
    job = only(rendered, "Job", HOOK)
    assert helm_hooks(job) == "pre-delete"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["marks", "remove"]
    service = only(rendered, "Deployment")["spec"]["template"]["spec"]
    for part in ("serviceAccountName", "automountServiceAccountToken", "securityContext"):
        assert pod[part] == service[part]
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "config")
    assert container["env"][0]["value"].startswith(mount["mountPath"])


def test_the_service_and_its_policies_do_not_select_the_pod_of_the_hook() -> None:
    rendered = charted(MARKING)
    labels = only(rendered, "Job", HOOK)["spec"]["template"]["metadata"]["labels"].items()
    assert not only(rendered, "Service")["spec"]["selector"].items() <= labels
    assert not only(rendered, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels


@pytest.mark.parametrize(
    "values", [{}, {"config": {"marks": {"taints": True, "preview": True}}}, {**MARKING, "rbac": {"create": False}}]
)
def test_without_marks_or_their_rights_there_is_no_hook(values: dict[str, Any]) -> None:
    assert not [each for each in charted(values) if each["kind"] == "Job"]


def test_the_settings_are_those_of_the_values() -> None:
    assert tomllib.loads(settings_in(charted(MARKING)))["marks"] == MARKING["config"]["marks"]
