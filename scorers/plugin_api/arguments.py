"""Parse and validate the arguments of scheduling plug-ins.

Users give arguments as JSON or YAML. All problems are reported at once, each with the argument, the error, and the
accepted values. Upstream silently replaces an invalid value by its default; here it is an error.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from watcher.core.messages import nearest
from watcher.model import Window

ArgsT = TypeVar("ArgsT", bound="Arguments")

IGNORED_ARGUMENTS = {
    "watcherAddress": "the extender reads metrics from the load-watcher service that it runs in",
    "metricProvider": "the metrics source is configured in load-watcher",
    "metricsUpdateIntervalSeconds": "load-watcher's setting refresh.interval sets the interval",
}
"""Upstream arguments that configure the metrics source, and the reason why they are ignored here (with a notice)."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base class for the arguments of a plug-in: fields with upstream's names and defaults, and msgspec.Meta
    constraints. `removed` are former arguments, each with what to use instead, as an imperative."""

    removed: ClassVar[Mapping[str, str]] = {}

    def problems(self) -> list[str]:
        """Return problems that a single field's type and constraints cannot express."""
        return []

    def window_problems(self, windows: Sequence[Window]) -> list[str]:
        """Return problems with arguments that need a window which this watcher does not provide."""
        return []


class ArgumentsError(ValueError):
    """Invalid arguments of a plug-in; `problems` lists all problems."""

    def __init__(self, plugin: str, problems: list[str]) -> None:
        super().__init__(f"arguments of {plugin}: " + "; ".join(problems))
        self.problems = tuple(problems)


def read_arguments(
    plugin: str, kind: type[ArgsT], given: Mapping[str, Any], *, windows: Sequence[Window] = ()
) -> tuple[ArgsT, tuple[str, ...]]:
    """Return the arguments and notices about ignored keys. `windows` are the watcher's windows, empty when unknown.
    Raises ArgumentsError."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    notices, values = [], {}
    problems = {
        name: [f"{name}: is required"] for name, field in fields.items() if field.required and name not in given
    }
    for name, value in given.items():
        if name in fields:
            try:
                values[fields[name].name] = msgspec.convert(value, hints[fields[name].name])
            except msgspec.ValidationError as error:
                problems[name] = _type_errors(name, value, hints[fields[name].name], error)
        elif name in kind.removed:
            problems[name] = [f"{name}: was removed in this version; {kind.removed[name]}"]
        elif name in IGNORED_ARGUMENTS:
            notices.append(f"{plugin}: {name} is ignored: {IGNORED_ARGUMENTS[name]}")
        elif name == "kind" and value != f"{plugin}Args":
            problems[name] = [f"kind: {_quoted(value)} belongs to another plug-in; use {plugin}Args"]
        elif name not in ("apiVersion", "kind"):
            problems[name] = [_unknown(str(name), list(fields))]
    message = [each for of_one in problems.values() for each in of_one]
    if any(field.required and field.name not in values for field in fields.values()):
        raise ArgumentsError(plugin, message)
    arguments = kind(**values)
    found = [*arguments.problems(), *(arguments.window_problems(windows) if windows else ())]
    if problems:  # report problems of the given arguments only: a default may conflict with an invalid one
        found = [each for each in found if (named := _argument_in(each)) in given and named not in problems]
    if message or found:
        raise ArgumentsError(plugin, [*message, *found])
    return arguments, tuple(notices)


def schema_of(kind: type[Arguments]) -> dict[str, Any]:
    """Return the JSON schema of the arguments."""
    schema = msgspec.json.schema(kind)
    for each in schema.get("$defs", {}).values():
        if text := each.get("description"):
            each["description"] = " ".join(text.split())
    return schema


def _type_errors(name: str, value: Any, hint: Any, error: msgspec.ValidationError) -> list[str]:
    """Return the type errors of an argument; for a map, one per invalid entry."""
    if typing.get_origin(hint) is dict and isinstance(value, Mapping):
        found = []
        for key, one in value.items():
            try:
                msgspec.convert({key: one}, hint)
            except msgspec.ValidationError as of_entry:
                found.append(_unfit_one(f"{name}.{key}", one, hint, str(of_entry).replace("`$[...]`", "`$`")))
        if found:
            return found
    return [_unfit_one(name, value, hint, str(error))]


def _unfit_one(name: str, value: Any, hint: Any, error: str) -> str:
    choices = _choices(hint, re.findall(r"\.(\w+)", error.partition(" - at ")[2])) if "enum value" in error else []
    known = f"; valid values: {', '.join(choices)}" if choices else ""
    return f"{name}: {_lowered(error.removesuffix(' - at `$`'))}{known} (given: {_quoted(value)})"


def _choices(hint: Any, path: Sequence[str]) -> list[str]:
    """Return the texts that an argument of this type accepts at this key path."""
    if typing.get_origin(hint) is Literal:
        return [each for each in typing.get_args(hint) if each]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        names = {field.encode_name: field.name for field in msgspec.structs.fields(hint)}
        return _choices(typing.get_type_hints(hint)[names[path[0]]], path[1:]) if path and path[0] in names else []
    return [each for part in typing.get_args(hint) for each in _choices(part, path)]


def _argument_in(problem: str) -> str:
    """Return the argument that a problem is about: "resources" for "resources.cpu: …"."""
    return problem.partition(":")[0].partition(".")[0]


def _unknown(name: str, known: list[str]) -> str:
    near = nearest(name, known)
    message = f"did you mean {near}?" if near else f"valid arguments: {', '.join(sorted(known))}"
    return f"{name if name.isidentifier() else _quoted(name)}: unknown argument; {message}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _quoted(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
