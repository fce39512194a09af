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
import numpy.typing as npt

from watcher.arrays import F64
from watcher.core.kubernetes.objects import Pod
from watcher.decoding.json_text import JsonDecoder

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


class HostPriority(msgspec.Struct, frozen=True, gc=False, rename={"host": "Host", "score": "Score"}):
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


_SPELLING = {"pod": "Pod", "nodes": "Nodes", "node_names": "NodeNames"}


class _SmallArgs(msgspec.Struct, frozen=True, rename=_SPELLING):
    """ExtenderArgs in encoded form: views of the body, which take no memory. The names are decoded at once, which is
    quicker."""

    pod: msgspec.Raw = msgspec.Raw()
    nodes: msgspec.Raw = msgspec.Raw()
    node_names: list[str] | None = None


class _LargeArgs(msgspec.Struct, frozen=True, rename=_SPELLING):
    """As _SmallArgs, with the names in encoded form."""

    pod: msgspec.Raw = msgspec.Raw()
    nodes: msgspec.Raw = msgspec.Raw()
    node_names: msgspec.Raw = msgspec.Raw()


class _EncodedList(msgspec.Struct, frozen=True):
    items: msgspec.Raw = msgspec.Raw()


MAX_POD_BYTES = 2 << 20  # etcd, and therefore the API server, refuses objects above 1.5 MiB
MAX_POD_VALUES = 50_000
MAX_NODES = 100_000
MAX_NAMES_BYTES = 16 << 20
MAX_NODE_BRACES = 1_000_000  # a Node of a cloud provider has about 60 JSON objects
LARGE_BODY = 1 << 20
"""Bytes; larger bodies are decoded with more checks and without repair of the keys, outside the event loop."""

_SMALL = JsonDecoder(_SmallArgs)
_LARGE = JsonDecoder(_LargeArgs)
_POD = JsonDecoder(Pod)
_NAMES = JsonDecoder(list[str] | None)
_LIST = JsonDecoder(_EncodedList | None)
_ITEMS = JsonDecoder(list[msgspec.Raw])
_ITEM_NAMES = JsonDecoder(list[_NodeObject])
_BINDING = JsonDecoder(ExtenderBindingArgs)
_FIELDS = JsonDecoder(dict[str, msgspec.Raw])
_ANYTHING = JsonDecoder(Any)
_NULL = b"null"
_ANY_CASE = {
    "pod": "Pod",
    "nodes": "Nodes",
    "nodenames": "NodeNames",
    "podname": "PodName",
    "podnamespace": "PodNamespace",
    "poduid": "PodUID",
    "node": "Node",
}


class TooMuch(ValueError):
    """A body is well-formed as far as it was read, but would take too much memory or time."""


def read_args(body: bytes | bytearray) -> tuple[ExtenderArgs, list[str]]:
    """Decode ExtenderArgs; also return the names of its nodes, in order. Nodes of the same name count once, because
    kube-scheduler adds the scores of a name.
    Raises ValueError with the problem, TooMuch above the limits of this module.

    Each member is checked before it is decoded, because decoded JSON can take 20 times the memory of its text."""
    encoded: _SmallArgs | _LargeArgs
    if len(body) <= LARGE_BODY:
        encoded = _read_small(body)
    else:
        encoded = _read(_LARGE, body)
        if not (encoded.nodes or encoded.node_names):
            raise ValueError("Nodes and NodeNames are missing; in large bodies, the case of keys matters")
    pod = _read_pod(encoded.pod)
    names = _read_names(encoded.node_names)
    if names is not None:
        names = list(dict.fromkeys(names))
        return ExtenderArgs(pod, None, names), names
    items, names = _read_items(encoded.nodes)
    return ExtenderArgs(pod, None if items is None else NodeList(items), None), names


def _read_small(body: bytes | bytearray) -> _SmallArgs:
    """Split a small body into its members; repair the case of the keys if needed."""
    try:
        args: _SmallArgs = _SMALL.decode(body)
    except msgspec.DecodeError:
        return _repaired(body)  # for the error message
    return args if args.pod and (args.nodes or args.node_names is not None) else _repaired(body)


def _repaired(body: bytes | bytearray) -> _SmallArgs:
    args: _SmallArgs = _read(_SMALL, _normalized(body))
    return args


def _read_pod(encoded: msgspec.Raw) -> Pod:
    text = memoryview(encoded)
    if len(text) > MAX_POD_BYTES:
        raise TooMuch(f"the Pod is larger than {MAX_POD_BYTES >> 20} MiB")
    if len(text) > MAX_POD_VALUES and count(text, b",") > MAX_POD_VALUES:
        raise TooMuch(f"the Pod has more than {MAX_POD_VALUES} values")
    if not len(text) or text == _NULL:
        raise ValueError("Pod is missing")
    try:
        pod: Pod = _POD.decode(text)
    except msgspec.DecodeError:
        pod = _read(_POD, msgspec.json.encode(_nulls_removed(text)))
    return pod


def _nulls_removed(pod: memoryview) -> Any:
    try:
        return without_nulls(_read(_ANYTHING, pod))
    except RecursionError:
        raise ValueError("the Pod is nested too deeply") from None


def _read_names(names: msgspec.Raw | list[str] | None) -> list[str] | None:
    """Decode NodeNames; None if it is absent."""
    found: list[str] | None
    if isinstance(names, msgspec.Raw):
        text = memoryview(names)
        if not len(text):
            return None
        if len(text) > MAX_NAMES_BYTES:
            raise TooMuch(f"NodeNames is larger than {MAX_NAMES_BYTES >> 20} MiB")
        if count(text, b",") >= MAX_NODES:
            raise TooMuch(f"more than {MAX_NODES} nodes")
        found = _read(_NAMES, text)
    else:
        found = names
    if found is not None and len(found) > MAX_NODES:
        raise TooMuch(f"more than {MAX_NODES} nodes")
    return found


def _read_items(encoded: msgspec.Raw) -> tuple[list[msgspec.Raw] | None, list[str]]:
    """Decode the whole nodes, None if they are absent, and their names."""
    text = memoryview(encoded)
    nodes: _EncodedList | None = _read(_LIST, text) if len(text) else None
    if nodes is None:
        return None, []
    text = memoryview(nodes.items)
    if not len(text) or text == _NULL:
        return [], []
    if count(text, b"{") > MAX_NODE_BRACES:
        raise TooMuch(f"the Nodes have more than {MAX_NODE_BRACES} JSON objects")
    # fails at the first item that is not an object, so the number of items is at most that of the objects
    names = [node.metadata.name for node in _read(_ITEM_NAMES, text)]
    if len(names) > MAX_NODES:
        raise TooMuch(f"more than {MAX_NODES} nodes")
    items: list[msgspec.Raw] = _read(_ITEMS, text)
    first = dict(zip(reversed(names), reversed(items), strict=True)) if len(set(names)) < len(names) else {}
    return (list(first.values()), list(first)) if first else (items, names)


def count(text: memoryview, character: bytes) -> int:
    """The number of occurrences of a character, without a copy of the text."""
    octets, wanted = np.frombuffer(text, dtype=np.uint8), ord(character)
    step = 1 << 20
    return sum(int(np.count_nonzero(octets[at : at + step] == wanted)) for at in range(0, len(octets), step))


def read_binding(body: bytes | bytearray) -> ExtenderBindingArgs:
    """Decode ExtenderBindingArgs. Raises ValueError with the problem."""
    try:
        args: ExtenderBindingArgs = _BINDING.decode(body)
    except msgspec.DecodeError:  # normalize the keys, also for the error message
        args = _read(_BINDING, _normalized(body))
    return args


def _read(decoder: JsonDecoder[Any], body: bytes | bytearray | memoryview | msgspec.Raw) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def _normalized(body: bytes | bytearray) -> bytes:
    """Normalize the case of keys."""
    given: dict[str, msgspec.Raw] = _read(_FIELDS, body)
    return msgspec.json.encode({_ANY_CASE.get(name.lower(), name): value for name, value in given.items()})


def items_of(args: ExtenderArgs) -> list[msgspec.Raw]:
    """Return the whole nodes of the request, in order."""
    return (args.nodes.items if args.nodes else None) or []


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


def integer_scores(scores: F64, most: int) -> npt.NDArray[np.int64]:
    """Convert scores 0 to 100 to the integers 0 to `most` that kube-scheduler receives."""
    return np.floor(scores * (most / 100.0) + 0.5).astype(np.int64)


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
