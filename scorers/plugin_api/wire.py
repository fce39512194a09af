"""Messages between kube-scheduler and an extender: `k8s.io/kube-scheduler/extender/v1`.

The Go types have no JSON names, so the keys are their field names. Go accepts keys in any case and treats null as
absent; both are supported here, because hand-written requests often use lower case.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from watcher.core.kubernetes.objects import Pod

MAX_EXTENDER_PRIORITY = 10
"""Highest score of an extender (MaxExtenderPriority)."""


class NodeList(msgspec.Struct, frozen=True):
    """Whole nodes in encoded form; only their names are decoded."""

    items: list[msgspec.Raw] | None = None


class _ObjectMeta(msgspec.Struct, frozen=True):
    name: str = ""


class _NodeObject(msgspec.Struct, frozen=True):
    metadata: _ObjectMeta = _ObjectMeta()


class ExtenderArgs(msgspec.Struct, frozen=True, rename={"pod": "Pod", "nodes": "Nodes", "node_names": "NodeNames"}):
    """A pod and its candidate nodes: by name (nodeCacheCapable) or as whole objects."""

    pod: Pod | None = None
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class ExtenderFilterResult(
    msgspec.Struct,
    frozen=True,
    rename={
        "nodes": "Nodes",
        "node_names": "NodeNames",
        "failed": "FailedNodes",
        "unresolvable": "FailedAndUnresolvableNodes",
        "error": "Error",
    },
):
    """The nodes that pass, in the form of the request, and the reasons for rejecting the others. `unresolvable` are
    nodes where preempting other pods would not help; high load never counts as such."""

    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename={"host": "Host", "score": "Score"}):
    """Score of one node, 0 to 10 or, with precise scores, 0 to 100."""

    host: str
    score: int


class ExtenderBindingArgs(
    msgspec.Struct,
    frozen=True,
    rename={"name": "PodName", "namespace": "PodNamespace", "uid": "PodUID", "node": "Node"},
):
    """The pod to bind and its node."""

    name: str
    namespace: str
    uid: str
    node: str


class ExtenderBindingResult(msgspec.Struct, frozen=True, rename={"error": "Error"}):
    """`error` is "" if the pod was bound."""

    error: str = ""


_ARGS = msgspec.json.Decoder(ExtenderArgs)
_BINDING = msgspec.json.Decoder(ExtenderBindingArgs)
_NAMED = msgspec.json.Decoder(_NodeObject)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANYTHING = msgspec.json.Decoder()
_ANY_CASE = {
    "pod": "Pod",
    "nodes": "Nodes",
    "nodenames": "NodeNames",
    "podname": "PodName",
    "podnamespace": "PodNamespace",
    "poduid": "PodUID",
    "node": "Node",
}


def read_args(body: bytes) -> ExtenderArgs:
    """Decode ExtenderArgs. Raises ValueError with the problem."""
    args = _decode_canonical(body)
    if args is None or args.pod is None or (args.nodes is None and args.node_names is None):
        args = _read(_ARGS, _normalized(body))
    if args.pod is None:
        raise ValueError("Pod is missing")
    return args


def _decode_canonical(body: bytes) -> ExtenderArgs | None:
    """Decode the form that kube-scheduler sends; None if the body needs normalization."""
    try:
        return _ARGS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_binding(body: bytes) -> ExtenderBindingArgs:
    """Decode ExtenderBindingArgs. Raises ValueError with the problem."""
    try:
        args: ExtenderBindingArgs = _BINDING.decode(body)
    except (msgspec.DecodeError, RecursionError):  # normalize the keys, also for the error message
        args = _read(_BINDING, _normalized(body))
    return args


def _read(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _normalized(body: bytes) -> bytes:
    """Normalize the case of keys and remove nulls from the pod."""
    given: dict[str, msgspec.Raw] = _read(_FIELDS, body)
    fields: dict[str, Any] = {_ANY_CASE.get(name.lower(), name): value for name, value in given.items()}
    if (pod := fields.get("Pod")) is not None:
        try:
            fields["Pod"] = without_nulls(_read(_ANYTHING, pod))
        except RecursionError:
            raise ValueError("the Pod is nested too deeply") from None
    return msgspec.json.encode(fields)


def items_of(args: ExtenderArgs) -> list[msgspec.Raw]:
    """Return the whole nodes of the request, in order."""
    return (args.nodes.items if args.nodes else None) or []


def name_of(node: msgspec.Raw) -> str:
    """Return the name of an encoded node. Raises ValueError for invalid data."""
    try:
        return _NAMED.decode(node).metadata.name
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"invalid node: {error}") from None


def filter_result(
    args: ExtenderArgs, names: Sequence[str], failed: Mapping[str, str], unresolvable: Collection[str] = ()
) -> ExtenderFilterResult:
    """Build the filter response for `args`, whose nodes have these names, from the rejection reasons."""
    parts = (
        {name: why for name, why in failed.items() if name not in unresolvable},
        {name: why for name, why in failed.items() if name in unresolvable},
    )
    if args.node_names is not None:
        return ExtenderFilterResult(None, [name for name in names if name not in failed], *parts)
    kept = [item for item, name in zip(items_of(args), names, strict=True) if name not in failed]
    return ExtenderFilterResult(NodeList(kept), None, *parts)


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python value; a value that is not finite becomes None."""
    found = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


def plain_map(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert all values of a map and its nested maps."""
    return {name: plain_map(value) if isinstance(value, Mapping) else plain(value) for name, value in values.items()}


def without_nulls(document: Any) -> Any:
    """Remove keys with null values at all levels: Go, and therefore Kubernetes, treats them as absent."""
    if isinstance(document, Mapping):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(each) for each in document] if isinstance(document, list) else document
