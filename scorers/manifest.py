"""A pod from a manifest as people write them: a Pod, or what makes pods.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

WHERE = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Kind -> where its pod stands."""


def read_pod(text: str | bytes) -> dict[str, Any]:
    """The first pod of a YAML or JSON text, with a name and requests where only limits are given, as the API server
    would make it. Raises ValueError that says what is wrong."""
    documents = [part for part in _documents(text) if part]
    if not documents:
        raise ValueError("there is nothing in it")
    for document in documents:
        if isinstance(document, Mapping) and document.get("kind") in WHERE:
            return _defaulted(_pod_in(document))
    kinds = [str(each.get("kind")) if isinstance(each, Mapping) else type(each).__name__ for each in documents]
    raise ValueError(f"there is no pod in it: {', '.join(kinds)}; known are {', '.join(WHERE)}")


def read_pasted_pod(text: bytes) -> dict[str, Any]:
    """The same of a text from anybody: a few lines of aliases stand for gigabytes, and no pod needs one. Raises
    ValueError."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        aliased = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text.decode(), Loader=loader))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"it is no YAML: {told}") from None
    if aliased:
        raise ValueError("it has aliases (*name), which are not taken here: write out what they stand for")
    return read_pod(text)


def _documents(text: str | bytes) -> list[Any]:
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    try:
        return [msgspec.yaml.decode(part) for part in f"\n{whole}".split("\n---") if part.strip()]
    except msgspec.DecodeError as error:
        raise ValueError(f"it is no YAML: {error}") from None


def _pod_in(document: Mapping[str, Any]) -> dict[str, Any]:
    found: Any = document
    for key in WHERE[str(document["kind"])]:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("spec"), Mapping):
        path = ".".join((*WHERE[str(document["kind"])], "spec"))
        raise ValueError(f"the {document['kind']} has no {path}")
    outer = document.get("metadata")
    name = outer.get("name", "pod") if isinstance(outer, Mapping) else "pod"
    metadata = {"name": name, "namespace": "default", **(found.get("metadata") or {})}
    return {"metadata": metadata, "spec": dict(found["spec"])}


def _defaulted(pod: dict[str, Any]) -> dict[str, Any]:
    spec = pod["spec"]
    for part in ("containers", "initContainers"):
        if isinstance(spec.get(part), list):
            spec[part] = [_with_requests(each) for each in spec[part]]
    return pod


def _with_requests(container: Any) -> Any:
    resources = container.get("resources") if isinstance(container, Mapping) else None
    if not isinstance(resources, Mapping):
        return container
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, "requests": requests}}
