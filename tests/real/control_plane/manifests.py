"""Applying manifests as `kubectl apply --server-side --validate=strict` does."""

import json
from collections.abc import Iterable

import requests
import yaml

from agent.policy.schema import GROUP
from tests.deploy.rendering import Manifest, kustomized
from tests.real.kube import DEFINITIONS, ApiServer
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

DEPLOY = REPOSITORY / "deploy"
APPLY = {"Content-Type": "application/apply-patch+yaml"}
STRICT = {"fieldManager": "tests", "fieldValidation": "Strict", "force": "true"}


def collection(api: ApiServer, manifest: Manifest) -> str:
    """Return the path of the collection to which an object belongs, by the API server's discovery."""
    version = manifest["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    kinds = api.ask("GET", root).json()["resources"]
    (found,) = (each for each in kinds if each["kind"] == manifest["kind"] and "/" not in each["name"])
    inner = f"namespaces/{manifest['metadata']['namespace']}/" if found["namespaced"] else ""
    return f"{root}/{inner}{found['name']}"


def apply(api: ApiServer, manifest: Manifest, **parameters: str) -> requests.Response:
    """Apply a manifest; return the API server's response."""
    path = f"{collection(api, manifest)}/{manifest['metadata']['name']}"
    body = json.dumps(manifest)
    return api.session.patch(f"{api.url}{path}", data=body, headers=APPLY, params={**STRICT, **parameters}, timeout=30)


def apply_all(api: ApiServer, rendered: Iterable[Manifest]) -> None:
    """Apply manifests, the Namespaces first. Fails if the API server refuses one, or warns about one."""
    for manifest in sorted(rendered, key=lambda each: each["kind"] != "Namespace"):
        answer = apply(api, manifest)
        what = f"{manifest['kind']} {manifest['metadata']['name']}"
        assert answer.ok, f"{what}: {answer.text}"
        assert "Warning" not in answer.headers, f"{what}: {answer.headers['Warning']}"


def delete_all(api: ApiServer, rendered: Iterable[Manifest]) -> None:
    """Delete the objects of manifests except the Namespaces, which cannot end without a controller."""
    for manifest in rendered:
        if manifest["kind"] != "Namespace":
            path = f"{collection(api, manifest)}/{manifest['metadata']['name']}"
            assert api.ask("DELETE", path).status_code in (200, 404), path


def define_policies(api: ApiServer, *, group: str = GROUP) -> None:
    """Install the policy definitions of deploy/agent, or the same for another API group, such as Crane's."""
    define(api, *yaml.safe_load_all((DEPLOY / "agent/crds.yaml").read_text().replace(GROUP, group)))


def define(api: ApiServer, *definitions: Manifest) -> None:
    """Install CustomResourceDefinitions, and wait until they are served."""
    apply_all(api, definitions)
    names = [definition["metadata"]["name"] for definition in definitions]
    wait_for(lambda: all(_established(api, name) for name in names), what=f"{names} to be established")


def _established(api: ApiServer, name: str) -> bool:
    conditions = api.ask("GET", f"{DEFINITIONS}/{name}").json().get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def overlay(name: str) -> list[Manifest]:
    """Render a directory of deploy."""
    return kustomized(DEPLOY / name)
