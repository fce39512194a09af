"""What kube-scheduler sends to an extender and takes back: `k8s.io/kube-scheduler/extender/v1`.

The Go types have no JSON names, so the keys are the names of their fields; Go reads keys in any case, and so people
write them in lower case by hand: both are read here. To Go a null is what is not there, and so it is here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from scorers.plugin_api.json import without_nulls
from watcher.core.kubernetes.objects import Pod

MOST = 10
"""The highest score of an extender (MaxExtenderPriority)."""


class NodeList(msgspec.Struct, frozen=True):
    """Nodes as they came: only the names are looked at."""

    items: list[msgspec.Raw] | None = None


class _Name(msgspec.Struct, frozen=True):
    name: str = ""


class _Named(msgspec.Struct, frozen=True):
    metadata: _Name = _Name()


class ExtenderArgs(msgspec.Struct, frozen=True, rename={"pod": "Pod", "nodes": "Nodes", "node_names": "NodeNames"}):
    """Which pod, and which nodes: by name (nodeCacheCapable), or whole."""

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
    """The nodes that may have the pod, in the form in which they were sent, and why the others may not.
    `unresolvable` is for nodes that would not take the pod if others went, where kube-scheduler preempts none; load is
    never that."""

    nodes: NodeList | None = None
    node_names: list[str] | None = None
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, rename={"host": "Host", "score": "Score"}):
    """The score of one node."""

    host: str
    score: int


class ExtenderBindingArgs(
    msgspec.Struct,
    frozen=True,
    rename={"name": "PodName", "namespace": "PodNamespace", "uid": "PodUID", "node": "Node"},
):
    """Which pod is to run where."""

    name: str
    namespace: str
    uid: str
    node: str


class ExtenderBindingResult(msgspec.Struct, frozen=True, rename={"error": "Error"}):
    """ "" where the pod was bound."""

    error: str = ""


_ARGS = msgspec.json.Decoder(ExtenderArgs)
_BINDING = msgspec.json.Decoder(ExtenderBindingArgs)
_NAMED = msgspec.json.Decoder(_Named)
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
    """Raises ValueError that says what is wrong with them."""
    args = _as_it_is(body)
    if args is None or args.pod is None or (args.nodes is None and args.node_names is None):
        args = _read(_ARGS, _as_go_reads(body))
    if args.pod is None:
        raise ValueError("there is no Pod")
    return args


def _as_it_is(body: bytes) -> ExtenderArgs | None:
    """As kube-scheduler sends them, None for what has to be looked at twice."""
    try:
        return _ARGS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def read_binding(body: bytes) -> ExtenderBindingArgs:
    """Raises ValueError that says what is wrong with them."""
    try:
        args: ExtenderBindingArgs = _BINDING.decode(body)
    except (msgspec.DecodeError, RecursionError):  # what is wrong is told in the case that Go has
        args = _read(_BINDING, _as_go_reads(body))
    return args


def _read(decoder: msgspec.json.Decoder[Any], body: bytes | msgspec.Raw) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _as_go_reads(body: bytes) -> bytes:
    """Keys in the case that Go writes, and the pod without nulls."""
    given: dict[str, msgspec.Raw] = _read(_FIELDS, body)
    fields: dict[str, Any] = {_ANY_CASE.get(name.lower(), name): value for name, value in given.items()}
    if (pod := fields.get("Pod")) is not None:
        try:
            fields["Pod"] = without_nulls(_read(_ANYTHING, pod))
        except RecursionError:
            raise ValueError("the Pod is nested too deep") from None
    return msgspec.json.encode(fields)


def items_of(args: ExtenderArgs) -> list[msgspec.Raw]:
    """The whole nodes that are asked about, in their order."""
    return (args.nodes.items if args.nodes else None) or []


def name_of(node: msgspec.Raw) -> str:
    """Of a whole node, of which nothing else is read; ValueError for one that is none."""
    try:
        return _NAMED.decode(node).metadata.name
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"a node cannot be read: {error}") from None


def filtered(
    args: ExtenderArgs, names: Sequence[str], failed: Mapping[str, str], unresolvable: Collection[str] = ()
) -> ExtenderFilterResult:
    """The answer to `args`, whose nodes have these names: why some failed, and which of these for good."""
    parts = (
        {name: why for name, why in failed.items() if name not in unresolvable},
        {name: why for name, why in failed.items() if name in unresolvable},
    )
    if args.node_names is not None:
        return ExtenderFilterResult(None, [name for name in names if name not in failed], *parts)
    kept = [item for item, name in zip(items_of(args), names, strict=True) if name not in failed]
    return ExtenderFilterResult(NodeList(kept), None, *parts)
