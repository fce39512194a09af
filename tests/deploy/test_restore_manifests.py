"""deploy/agent-restore and deploy/qrm-restore build with each component, also if the directory below them has it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path

import pytest

from tests.deploy.rendering import COMPONENTS, Manifest, copied, kustomized, only
from tests.deploy.test_manifests import granted

pytestmark = [pytest.mark.real, pytest.mark.slow]

MODES = ("qrm-cri", "qrm-nri")
ARGUMENTS = {"agent": ["agent", "restore", "--missing-ok"], "qrm": ["qrm", "restore", "--missing-ok"]}
RIGHTS = {
    "agent": {
        ("create", "v1/events"),
        ("get", "v1/nodes"),
        ("patch", "v1/nodes"),
        ("patch", "v1/nodes/status"),
    },
    "qrm": set[tuple[str, str]](),
}


def of_part(part: str) -> list[str]:
    """The components of the agent or of the manager, without those that set a mode of the manager."""
    return sorted({path.name for path in COMPONENTS.glob(f"{part}-*")} - set(MODES))


def few_and_all(names: list[str]) -> Iterator[tuple[str, ...]]:
    """None, each, each pair, and all: two incompatible components are in a pair."""
    return chain.from_iterable(combinations(names, size) for size in (0, 1, 2, len(names)))


CASES = [
    *(("agent", components) for components in few_and_all(of_part("agent"))),
    *(("qrm", components) for components in few_and_all(of_part("qrm"))),
    *(("qrm", (mode, *more)) for mode in MODES for more in ((), of_part("qrm"))),
]


@pytest.mark.parametrize(("part", "components"), CASES, ids=lambda each: "+".join(each) or "plain")
def test_it_builds_with_the_components_of_the_directory_below(
    tmp_path: Path, part: str, components: tuple[str, ...]
) -> None:
    """As where the components are enabled in deploy/agent/kustomization.yaml or deploy/qrm/kustomization.yaml."""
    deploy = copied(tmp_path, **{part: components})
    running, rendered = kustomized(deploy / part), kustomized(deploy / f"{part}-restore")
    before, after = pod_of(running, part), pod_of(rendered, part)
    (agent,), (restore,) = before["containers"], after["initContainers"]
    assert ARGUMENTS[part] == restore["args"]
    for field in ("image", "env", "volumeMounts", "securityContext"):
        assert agent[field] == restore[field]
    assert before["volumes"] == after["volumes"]
    assert RIGHTS[part] == granted(rendered)


@pytest.mark.parametrize("mode", MODES)
def test_the_mode_may_be_in_both_directories(tmp_path: Path, mode: str) -> None:
    below, both = tmp_path / "below", tmp_path / "both"
    once = kustomized(copied(below, qrm=[mode]) / "qrm-restore")
    assert once == kustomized(copied(both, qrm=[mode], qrm_restore=[mode]) / "qrm-restore")
    (restore,) = pod_of(once, "qrm")["initContainers"]
    modes = [each["value"] for each in restore["env"] if each["name"] == "LOAD_WATCHER_QRM_MODE"]
    assert [mode.removeprefix("qrm-")] == modes


def pod_of(rendered: list[Manifest], part: str) -> Manifest:
    spec: Manifest = only(rendered, "DaemonSet", f"load-watcher-{part}")["spec"]["template"]["spec"]
    return spec
