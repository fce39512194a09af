"""A pod from a manifest as people write them: a Pod, or what makes pods.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import yaml

from scorers.plain import without_nulls

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
    """The first pod of a YAML or JSON text, with a name, an owner where something makes it, and requests where only
    limits are given, as it would come out of the API server. Raises ValueError that says what is wrong."""
    documents = [part for part in _documents(text) if part]
    if not documents:
        raise ValueError("there is nothing in it")
    for document in documents:
        if isinstance(document, Mapping) and _kind_of(document) in WHERE:
            return _defaulted(_pod_in(document))
    kinds = [_kind_of(each) if isinstance(each, Mapping) else type(each).__name__ for each in documents]
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
        found = [msgspec.yaml.decode(part) for part in f"\n{whole}".split("\n---") if part.strip()]
        return [each for part in found for each in _listed(msgspec.to_builtins(part, str_keys=True))]
    except (msgspec.DecodeError, RecursionError, TypeError) as error:  # the last: a key that JSON cannot have
        raise ValueError(f"it is no YAML of Kubernetes: {error}") from None


def _listed(document: Any) -> list[Any]:
    """What `kubectl get -o yaml` gives of several objects is a List of them."""
    if isinstance(document, Mapping) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        return list(map(without_nulls, document["items"]))
    return [without_nulls(document)]


def _kind_of(document: Mapping[str, Any]) -> str:
    return str(document.get("kind"))


def _pod_in(document: Mapping[str, Any]) -> dict[str, Any]:
    kind = _kind_of(document)
    found: Any = document
    for key in WHERE[kind]:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("spec"), Mapping):
        raise ValueError(f"the {kind} has no {'.'.join((*WHERE[kind], 'spec'))}")
    outer = _mapping(document, "metadata", kind)
    named = {"name": outer.get("name", "pod"), "namespace": outer.get("namespace", "default")}
    metadata = {**named, **_mapping(found, "metadata", kind)}
    if WHERE[kind]:  # a pod is in the namespace of what makes it, and belongs to it
        owner = {"kind": kind, "name": named["name"], "controller": True}
        metadata |= {"namespace": named["namespace"], "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": dict(found["spec"])}


def _defaulted(pod: dict[str, Any]) -> dict[str, Any]:
    """A limit is the request too where there is none; of the pod as a whole only where no container asks for any."""
    spec, asked = pod["spec"], set()
    for part in ("containers", "initContainers"):
        if isinstance(spec.get(part), list):
            spec[part] = [_with_requests(each) for each in spec[part]]
            asked |= {name for each in spec[part] for name in _requested(each)}
    return {**pod, "spec": _with_requests(spec, but=asked)}


def _with_requests(holder: Any, *, but: Collection[str] = ()) -> Any:
    resources = holder.get("resources") if isinstance(holder, Mapping) else None
    if not isinstance(resources, Mapping):
        return holder
    limits, own = _mapping(resources, "limits", "resources"), _mapping(resources, "requests", "resources")
    requests = {**{name: limit for name, limit in limits.items() if name not in but}, **own}
    return {**holder, "resources": {**resources, "requests": requests}}


def _requested(container: Any) -> Collection[str]:
    resources = container.get("resources") if isinstance(container, Mapping) else None
    return resources["requests"] if isinstance(resources, Mapping) else ()


def _mapping(given: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    found = given.get(key, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{key} of the {where} is no mapping: {str(found)[:40]!r}")
    return found
