"""A pod from a manifest as people write them: a Pod, or what makes pods.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import yaml

from scorers.plugin_api.json import without_nulls

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
DEEPEST = 100
"""Levels of a document; a pod has twenty."""
_DOCUMENT_START = re.compile(r"^---(?=\s|$)", re.MULTILINE)


def read_pod(text: str | bytes) -> dict[str, Any]:
    """The first pod of a YAML or JSON text, with a name, an owner where something makes it, and requests where only
    limits are given, as it would come out of the API server. Raises ValueError that says what is wrong."""
    whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return _first_pod(_documents(whole, aliases=True))


def read_pasted_pod(text: bytes) -> dict[str, Any]:
    """The same of a text from anybody: a few lines of aliases stand for gigabytes, and no pod needs one. Raises
    ValueError."""
    try:
        whole = text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is no YAML: {error}") from None
    return _first_pod(_documents(whole, aliases=False))


def _first_pod(documents: Sequence[Any]) -> dict[str, Any]:
    if not documents:
        raise ValueError("there is nothing in it")
    for document in documents:
        if isinstance(document, Mapping) and _kind_of(document) in WHERE:
            return _defaulted(_pod_in(document))
    raise ValueError(f"there is no pod in it: {', '.join(map(_told, documents))}; known are {', '.join(WHERE)}")


def _told(document: Any) -> str:
    if isinstance(document, Mapping):
        return _kind_of(document) if document.get("kind") else "something without a kind"
    return "a list" if isinstance(document, list) else f"{str(document)[:40]!r}"


def _documents(text: str, *, aliases: bool) -> list[Any]:
    """All that are not empty."""
    found: list[Any] = []
    try:
        for part in filter(str.strip, _DOCUMENT_START.split(text)):
            _look_at(part, aliases=aliases)
            found += _listed(msgspec.to_builtins(msgspec.yaml.decode(part), str_keys=True))
    except (yaml.YAMLError, msgspec.DecodeError, RecursionError, TypeError) as error:  # TypeError: no key of JSON
        raise ValueError(f"it is no YAML of Kubernetes: {' '.join(str(error).split())}") from None
    return [each for each in found if each]


def _look_at(part: str, *, aliases: bool) -> None:
    """Refuse a document that must not be made objects of: libyaml recurses, and one of thirty thousand levels would
    end the process."""
    depth = 0
    for event in yaml.parse(part, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent) and not aliases:
            raise ValueError("it has aliases (*name), which are not taken here: write out what they stand for")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")


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
