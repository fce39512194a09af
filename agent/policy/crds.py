"""The CustomResourceDefinitions for a cluster that has no Crane, made from the fields that are read (`schema`).

Where Crane is installed its own stay: what load-watcher adds is in annotations, which no definition prunes.

    python -m agent.policy.crds > deploy/agent/crds.yaml
"""

from __future__ import annotations

import sys
import types
import typing
from typing import Annotated, Any, Literal

import msgspec
import yaml

from agent.policy import schema
from agent.policy.schema import NoEffect

Json = dict[str, Any]

RESOURCES: tuple[tuple[str, str, str, type[msgspec.Struct]], ...] = (
    ("NodeQOS", "nodeqoss", "nq", schema.NodeQosSpec),
    ("AvoidanceAction", "avoidanceactions", "avoid", schema.AvoidanceActionSpec),
    ("PodQOS", "podqoss", "pq", schema.PodQosSpec),
)
REQUIRED: dict[type[msgspec.Struct], tuple[str, ...]] = {
    schema.NodeQosSpec: ("rules",),
    schema.Rule: ("name", "metricRule", "actionName"),
    schema.MetricRule: ("name", "value"),
    schema.LabelRequirement: ("key", "operator"),
    schema.ScopeRequirement: ("scopeName", "operator", "values"),
}
_SCALARS: dict[Any, Json] = {str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}}
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}


def definition(kind: str, plural: str, short: str, spec: type[msgspec.Struct]) -> Json:
    """One CustomResourceDefinition."""
    text = {"type": "string"}
    properties = {"apiVersion": text, "kind": text, "metadata": {"type": "object"}, "spec": _of_struct(spec)}
    properties["status"] = {"type": "object", **_ANYTHING}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower(), "shortNames": [short]}
    version = {
        "name": schema.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": properties}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{schema.GROUP}"},
        "spec": {"group": schema.GROUP, "scope": "Cluster", "names": names, "versions": [version]},
    }


def _of(kind: Any) -> Json:
    if typing.get_origin(kind) is Annotated:
        base, *marks = typing.get_args(kind)
        if any(isinstance(mark, NoEffect) for mark in marks):
            return dict(_ANYTHING)
        return {**_of(base), **_bounds(marks)}
    if kind == schema.Quantity or kind == schema.Quantity | None:
        return {"x-kubernetes-int-or-string": True}
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return _of(next(each for each in typing.get_args(kind) if each is not type(None)))
    arguments = typing.get_args(kind)
    match typing.get_origin(kind):
        case origin if origin is Literal:
            return {"type": "string", "enum": [each for each in arguments if each]}
        case origin if origin is tuple:
            return {"type": "array", "items": _of(arguments[0])}
        case origin if origin is dict:
            return {"type": "object", "additionalProperties": _of(arguments[1])}
    return _of_struct(kind) if kind not in _SCALARS else dict(_SCALARS[kind])


def _of_struct(kind: type[msgspec.Struct]) -> Json:
    hints = typing.get_type_hints(kind, include_extras=True)
    properties = {field.encode_name: _of(hints[field.name]) for field in msgspec.structs.fields(kind)}
    required = {"required": list(REQUIRED[kind])} if kind in REQUIRED else {}
    return {
        "type": "object",
        "description": " ".join((kind.__doc__ or "").split()),
        **required,
        "properties": properties,
    }


def _bounds(marks: list[Any]) -> Json:
    found: Json = {}
    for mark in marks:
        given = {"minimum": mark.ge, "maximum": mark.le, "maxLength": mark.max_length}
        found |= {name: value for name, value in given.items() if value is not None}
    return found


class _Dumper(yaml.SafeDumper):
    """Writes out what stands there twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def definitions() -> str:
    """All of them, as YAML."""
    heading = "# Made by python -m agent.policy.crds; not for clusters where Crane has its own.\n"
    made = [definition(*each) for each in RESOURCES]
    return heading + yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=120)


if __name__ == "__main__":
    sys.stdout.write(definitions())
