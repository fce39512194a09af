"""Rules of the Kubernetes API without a server: selectors, patches, quantities, descriptions of failures."""

import copy
import re
from collections.abc import Iterator
from typing import Any

from watcher.core.kubernetes.quantity import nano

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
}
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MERGE_KEYS = {"conditions": "type", "addresses": "type", "containers": "name", "ownerReferences": "uid"}
"""Lists that a strategic patch merges; others (for example taints) are replaced."""
FIELDS = {
    "v1/pods": {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase", "status.podIP"},
    "v1/nodes": {"spec.unschedulable"},
}
"""Fields of selectors besides metadata.name and metadata.namespace."""

MANAGED_METADATA = {"labels", "annotations"}
"""The metadata that have managers here; the real server has some more."""

Item = dict[str, Any]


class Refusal(Exception):  # it is a response
    """The server's error in place of the requested object."""

    def __init__(self, code: int, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.body = status_object(code, message, **details)


def status_object(code: int, message: str, *, reason: str = "", **details: Any) -> Item:
    """Kubernetes' description of a failure."""
    reason = reason or REASONS.get(code, "InternalError")
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "code": code}
    return {**status, "message": message, **({"details": details} if details else {})}


def group_of(resource: str) -> tuple[str, str]:
    """The API group of "policy/v1/poddisruptionbudgets" or "v1/pods/status", "" for the core one, and the rest."""
    match = re.fullmatch(r"(?:(.+)/)?v\d\w*/(.+)", resource)
    assert match is not None, resource
    return match[1] or "", match[2]


def full_name(resource: str) -> str:
    """The name in messages: "pods", "nodemetrics.slo.koordinator.sh"."""
    group, plural = group_of(resource)
    return f"{plural}.{group}" if group else plural


def check_event(event: Item, namespace: str) -> None:
    """An Event must be in the namespace of its object; Events of cluster-scoped objects are in "default"."""
    name, involved = event["metadata"]["name"], event.get("involvedObject", {}).get("namespace", "")
    if namespace != (involved or "default"):
        why = f'involvedObject.namespace: Invalid value: "{involved}": does not match event.namespace'
        raise Refusal(422, f'Event "{name}" is invalid: {why}', name=name, kind="Event")
    if len(event.get("message", "").encode()) > 1024:
        raise Refusal(422, f'Event "{name}" is invalid: message: Invalid value: "": can have at most 1024 bytes')


# --- selectors -------------------------------------------------------------------------------------------------------

_SET = re.compile(r"\s*(!?)([\w./-]+)\s*(?:(==?|!=)\s*([\w.-]*)|\s(in|notin)\s*\(([^)]*)\))?\s*(?:,|$)")


def has_labels(item: Item, selector: str) -> bool:
    """Whether an object's labels match a selector: "a=b,c!=d,e in (f, g),h,!i"."""
    labels, at = item["metadata"].get("labels", {}), 0
    while at < len(selector):
        match = _SET.match(selector, at)
        if match is None or match.end() == at:
            raise Refusal(400, f"unable to parse requirement: {selector}")
        at = match.end()
        absent, key, sign, value, word, values = match.groups()
        if word:
            fits = (labels.get(key) in {each.strip() for each in values.split(",")}) == (word == "in")
        elif sign:
            fits = (labels.get(key) == value) == (sign != "!=")
        else:
            fits = (key in labels) != bool(absent)
        if not fits:
            return False
    return True


def has_fields(item: Item, selector: str, *, resource: str) -> bool:
    """Whether an object's fields match a selector: "spec.nodeName=a,status.phase!=Failed"."""
    for term in filter(None, selector.split(",")):
        label, sign, value = re.split(r"(!=|==?)", term, maxsplit=1)
        if label not in {"metadata.name", "metadata.namespace"} | FIELDS.get(resource, set()):
            raise Refusal(400, f"field label not supported: {label}")
        found: Any = item
        for part in label.split("."):
            found = found.get(part, "") if isinstance(found, dict) else ""
        text = str(found).lower() if isinstance(found, bool) else found
        if (text == value) == (sign == "!="):
            return False
    return True


# --- patches ---------------------------------------------------------------------------------------------------------


def patched(item: Item, change: Any, content_type: str) -> Item:
    """An object after a patch."""
    if content_type == JSON_PATCH:
        return _after_operations(item, change)
    result = _merged(item, change, strategic=content_type == STRATEGIC_PATCH)
    assert isinstance(result, dict)
    return result


def _merged(old: Any, change: Any, *, strategic: bool) -> Any:
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        by = MERGE_KEYS.get(key) if strategic else None
        if key.startswith("$"):
            continue  # directives, of which kubectl sends the order of elements
        if value is None:
            result.pop(key, None)
        elif by is not None and isinstance(value, list):
            rows = {row[by]: row for row in result.get(key, [])}
            for row in value:
                rows[row[by]] = _merged(rows.get(row[by]), row, strategic=True)
            result[key] = list(rows.values())
        else:
            result[key] = _merged(result.get(key), value, strategic=strategic)
    return result


def _after_operations(item: Item, operations: list[Item]) -> Item:
    result = copy.deepcopy(item)
    for operation in operations:
        *way, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        place: Any = result
        try:
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _operate(place, last, operation)
        except (KeyError, IndexError, ValueError) as error:
            raise Refusal(422, f"the server rejected our request due to an error in our request: {error}") from None
    return result


def _operate(place: Any, last: str, operation: Item) -> None:
    key: Any = (len(place) if last == "-" else int(last)) if isinstance(place, list) else last
    match operation["op"]:
        case "add" if isinstance(place, list):
            place.insert(key, operation["value"])
        case "add":
            place[key] = operation["value"]
        case "replace":
            del place[key]
            place.insert(key, operation["value"]) if isinstance(place, list) else place.update(
                {key: operation["value"]}
            )
        case "remove":
            del place[key]
        case "test" if place[key] != operation["value"]:
            raise ValueError(f"testing value {operation['path']} failed")


# --- managed fields --------------------------------------------------------------------------------------------------


def managed(old: Item, new: Item, entries: list[Item], *, manager: str, part: str, version: str) -> list[Item]:
    """managedFields after `manager` wrote `new` over `old`: a changed field belongs to its writer alone, and a removed
    field to no manager. `part` is the subresource of the write."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    written = {path for path, value in after.items() if before.get(path, _leaves) != value}
    owners = {(each["manager"], each.get("subresource", "")): set(_paths(each["fieldsV1"])) for each in entries}
    for paths in owners.values():
        paths -= written
        paths &= after.keys()
    owners[manager, part] = owners.get((manager, part), set()) | written
    return [
        {
            "manager": name,
            "operation": "Update",
            "apiVersion": version,
            "time": "2026-11-21T08:00:00Z",
            "fieldsType": "FieldsV1",
            "fieldsV1": _as_fields(paths),
            **({"subresource": subresource} if subresource else {}),
        }
        for (name, subresource), paths in owners.items()
        if paths
    ]


def _leaves(item: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in item.items():
        path = (*at, key)
        unmanaged = path[0] == "metadata" and path != ("metadata",) and path[1] not in MANAGED_METADATA
        if unmanaged or path[0] in ("apiVersion", "kind"):
            continue
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _paths(fields: Item, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in fields.items():
        if key.startswith("f:"):
            path = (*at, key.removeprefix("f:"))
            yield from _paths(inner, path) if inner else [path]


def _as_fields(paths: set[tuple[str, ...]]) -> Item:
    fields: Item = {}
    for path in sorted(paths):
        place = fields
        for part in path:
            place = place.setdefault(f"f:{part}", {})
    return fields


# --- quantities ------------------------------------------------------------------------------------------------------


def canonical(quantity: str) -> str:
    """A quantity as Kubernetes writes it: without fraction, in the largest unit that allows this ("4000" is "4k")."""
    left = nano(quantity)
    sign, left = ("-", -left) if left < 0 else ("", left)
    binary = quantity.endswith("i") and left % 10**9 == 0 and left // 10**9 >= 1024
    if binary:
        left //= 10**9
        units, base = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], 1024
    else:
        exponent = "e" in quantity.lower()[1:] and quantity[-1].isdigit()
        units = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"]
        units, base = ([f"e{power}" for power in range(-9, 19, 3)] if exponent else units), 1000
    at = 0
    while left and left % base == 0 and at + 1 < len(units):
        left, at = left // base, at + 1
    suffix = units[at] if left else ""
    return f"{sign}{left}{'' if suffix == 'e0' else suffix}"
