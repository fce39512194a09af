"""Read a pod from a hand-written manifest: a Pod or a workload that creates pods.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from scorers.plugin_api.wire import without_nulls
from watcher.decoding.text import decode_text
from watcher.decoding.yaml_text import decode_yaml

POD_TEMPLATE_PATHS = {
    "Pod": (),
    "Deployment": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
"""Kind -> path of its pod template."""
_DOCUMENT_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)


def read_pod(text: str | bytes) -> dict[str, Any]:
    """Return the first pod of a YAML or JSON text as the API server would default it: with a name, an owner for pods of
    workloads, and requests copied from limits. Raises ValueError with the problem."""
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return _first_pod(_documents(whole, aliases=True))


def read_pasted_pod(text: bytes) -> dict[str, Any]:
    """As `read_pod` for untrusted text: rejects YAML aliases, because a few lines of them can expand to gigabytes.
    Raises ValueError."""
    try:
        whole = decode_text(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"invalid YAML: {error}") from None
    return _first_pod(_documents(whole, aliases=False))


def _first_pod(documents: Sequence[Any]) -> dict[str, Any]:
    if not documents:
        raise ValueError("the document is empty")
    for document in documents:
        if isinstance(document, Mapping) and _kind_of(document) in POD_TEMPLATE_PATHS:
            return _defaulted(_pod_in(document))
    raise ValueError(
        f"no pod found, only: {', '.join(map(_kind_text, documents))}; supported kinds: {', '.join(POD_TEMPLATE_PATHS)}"
    )


def _kind_text(document: Any) -> str:
    if isinstance(document, Mapping):
        return _kind_of(document) if document.get("kind") else "an object without a kind"
    return "a list" if isinstance(document, list) else f"{str(document)[:40]!r}"


def _documents(text: str, *, aliases: bool) -> list[Any]:
    """Return all documents that are not empty."""
    found: list[Any] = []
    begin = 0
    try:
        for part in _DOCUMENT_START.split(text):
            if part.strip():
                value = decode_yaml(part, aliases=aliases, line=text.count("\n", 0, begin))
                found += _listed(msgspec.to_builtins(value, str_keys=True))
            begin += len(part) + len("---")
    except (msgspec.DecodeError, TypeError) as error:  # TypeError: a key that JSON does not allow
        raise ValueError(f"invalid YAML for Kubernetes: {error}") from None
    return [each for each in found if each]


def _listed(document: Any) -> list[Any]:
    """Return the items of a List (the output of `kubectl get -o yaml` for several objects), or the document itself."""
    if isinstance(document, Mapping) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        return list(map(without_nulls, document["items"]))
    return [without_nulls(document)]


def _kind_of(document: Mapping[str, Any]) -> str:
    return str(document.get("kind"))


def _pod_in(document: Mapping[str, Any]) -> dict[str, Any]:
    kind = _kind_of(document)
    found: Any = document
    for key in POD_TEMPLATE_PATHS[kind]:
        found = found.get(key) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("spec"), Mapping):
        raise ValueError(f"the {kind} has no {'.'.join((*POD_TEMPLATE_PATHS[kind], 'spec'))}")
    outer = _mapping(document, "metadata", kind)
    named = {"name": outer.get("name", "pod"), "namespace": outer.get("namespace", "default")}
    metadata = {**named, **_mapping(found, "metadata", kind)}
    if POD_TEMPLATE_PATHS[kind]:  # a pod has the namespace of its workload, which owns it
        owner = {"apiVersion": document.get("apiVersion", ""), "kind": kind, "name": named["name"], "controller": True}
        metadata |= {"namespace": named["namespace"], "ownerReferences": [owner]}
    return {"metadata": metadata, "spec": dict(found["spec"])}


def _defaulted(pod: dict[str, Any]) -> dict[str, Any]:
    """Copy limits to missing requests, for the whole pod only for resources that no container requests."""
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
        raise ValueError(f"{key} of the {where} is not a mapping: {str(found)[:40]!r}")
    return found
