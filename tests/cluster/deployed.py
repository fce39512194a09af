"""The project's manifests on a cluster: applied with kubectl, with the images of this checkout."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.images import AGENT, BUSYBOX, SERVICE
from tests.deploy.rendering import DeployComponent
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

PROGRAM = "/opt/load-watcher/bin/load-watcher"
IMAGES = {"load-watcher": SERVICE, "load-watcher-agent": AGENT}


@contextlib.contextmanager
def applied(
    cluster: Cluster,
    directory: Path,
    name: str,
    components: Sequence[DeployComponent] = (),
    *,
    rules: Sequence[Mapping[str, Any]] = (),
    images: Mapping[str, str] = IMAGES,
) -> Iterator[str]:
    """Apply deploy/NAME with components, as `prepared` describes; yield the namespace.

    At the end the objects are deleted and their pods are gone.
    """
    path = prepared(directory, name, components, rules=rules, images=images)
    kubectl = cluster.control_plane.kubectl
    kubectl("apply", "-k", str(path))
    try:
        yield yaml.safe_load((path / "kustomization.yaml").read_text())["namespace"]
    finally:
        kubectl("delete", "-k", str(path), "--ignore-not-found", "--wait=true", "--timeout=300s")


def prepared(
    directory: Path,
    name: str,
    components: Sequence[DeployComponent] = (),
    *,
    rules: Sequence[Mapping[str, Any]] = (),
    images: Mapping[str, str] = IMAGES,
) -> Path:
    """Return the path of deploy/NAME in a copy below `directory`, with the images of this checkout, with further
    components, and with further rules of the ClusterRole `load-watcher`, as a user edits kustomization.yaml."""
    copy = directory / "deploy"
    if not copy.exists():
        shutil.copytree(REPOSITORY / "deploy", copy)
    path = copy / name
    document = yaml.safe_load((REPOSITORY / "deploy" / name / "kustomization.yaml").read_text())
    up = "../" * (name.count("/") + 1)
    document["components"] = [*document.get("components", ()), *(f"{up}components/{each}" for each in components)]
    if rules:
        patch = [{"op": "add", "path": "/rules/-", "value": dict(each)} for each in rules]
        target = {"kind": "ClusterRole", "name": "load-watcher"}
        document.setdefault("patches", []).append({"patch": yaml.safe_dump(patch), "target": target})
    document["images"] = [
        {"name": each, **dict(zip(("newName", "newTag"), image.rsplit(":", 1), strict=True))}
        for each, image in images.items()
    ]
    (path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return path


def wait_ready(cluster: Cluster, namespace: str, selector: str, count: int, timeout: float = 120) -> list[Any]:
    """Wait until `count` pods are Ready; return them. The failure has their states and logs."""

    def ready() -> list[Any] | None:
        found = cluster.control_plane.get("pods", "-n", namespace, "-l", selector)["items"]
        return found if len(found) == count and all(map(is_ready, found)) else None

    try:
        found = wait_for(ready, what=f"{count} pods {selector} to be Ready", timeout=timeout)
    except BaseException:
        for verb in ("describe", "logs"):
            print(cluster.control_plane.kubectl(verb, "pods", "-n", namespace, "-l", selector, check=False)[-6000:])
        print(cluster.control_plane.kubectl("logs", "-n", namespace, "-l", selector, "--tail=60", check=False))
        raise
    assert found is not None
    return found


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is Ready and not about to end."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def pod(name: str, node: str, *, command: Sequence[str], requests: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a pod of busybox on a node; with `requests` they are its limits as well."""
    container: dict[str, Any] = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": list(command),
    }
    if requests:
        container["resources"] = {"requests": dict(requests), "limits": dict(requests)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]},
    }


def deployment(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Deployment of one pod with this spec."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": dict(spec)}
    selector = {"matchLabels": labels}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": selector, "template": template},
    }


@contextlib.contextmanager
def created(cluster: Cluster, *objects: Mapping[str, Any], namespace: str = "default") -> Iterator[None]:
    """Create objects, and delete them at the end."""
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    cluster.control_plane.kubectl("apply", "-n", namespace, "-f", "-", given=document)
    try:
        yield
    finally:
        gone = ("--ignore-not-found", "--wait=true", "--timeout=300s")
        cluster.control_plane.kubectl("delete", "-n", namespace, "-f", "-", *gone, given=document)


def doctor(cluster: Cluster, namespace: str, pod: str, *arguments: str) -> tuple[list[Any], list[Any]]:
    """Return the failures and warnings, and all results, of the doctor in a pod."""
    command = ("exec", "-n", namespace, pod, "--", PROGRAM, "doctor", "-o", "json", *arguments)
    done = cluster.control_plane.kubectl_process(*command)
    assert done.stdout, f"the doctor in {pod} printed nothing: {done.stderr}"
    report = json.loads(done.stdout)
    assert (done.returncode == 0) == (report["counts"]["fail"] == 0), done.stderr
    return [each for each in report["checks"] if each["status"] in ("fail", "warn")], report["checks"]
