"""Arguments of plug-ins: from the JSON or YAML that users have, checked whole, with every problem named.

Upstream replaces a bad value by the default without a word, and a plug-in then "does nothing"; here it is an error that
says where, what, and what would be right.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from watcher.model import Window

ArgsT = TypeVar("ArgsT", bound="Arguments")

NOT_OURS = {
    "watcherAddress": "the extender reads the watcher that it was told of",
    "metricProvider": "the watcher has the source of metrics",
    "metricsUpdateIntervalSeconds": "the watcher's refresh.interval says how often",
}
"""What upstream's plug-ins take to find their metrics; pasted here it is passed over, with a notice."""


class Arguments(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The arguments of a plug-in: fields with upstream's names, defaults, and constraints as msgspec.Meta."""

    def problems(self) -> list[str]:
        """What is wrong beyond each field by itself."""
        return []

    def unserved(self, windows: Sequence[Window]) -> list[str]:
        """What of them this watcher, which keeps these windows, cannot serve."""
        return []


class ArgumentsError(ValueError):
    """Arguments that cannot be used; `problems` has all of them."""

    def __init__(self, plugin: str, problems: list[str]) -> None:
        super().__init__(f"arguments of {plugin}: " + "; ".join(problems))
        self.problems = tuple(problems)


def read_arguments(
    plugin: str, kind: type[ArgsT], given: Mapping[str, Any], *, windows: Sequence[Window] = ()
) -> tuple[ArgsT, tuple[str, ...]]:
    """The arguments, and notices about what was passed over. `windows` are those of the watcher, where they are known.
    Raises ArgumentsError."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    notices, values = [], {}
    problems = {name: [f"{name}: is needed"] for name, field in fields.items() if field.required and name not in given}
    for name, value in given.items():
        if name in fields:
            try:
                values[fields[name].name] = msgspec.convert(value, hints[fields[name].name])
            except msgspec.ValidationError as error:
                problems[name] = _unfit(name, value, hints[fields[name].name], error)
        elif name in NOT_OURS:
            notices.append(f"{plugin}: {name} is not used here: {NOT_OURS[name]}")
        elif name == "kind" and value != f"{plugin}Args":
            problems[name] = [f"kind: {_shown(value)} are the arguments of another plug-in; here {plugin}Args belong"]
        elif name not in ("apiVersion", "kind"):
            problems[name] = [_unknown(str(name), list(fields))]
    told = [each for of_one in problems.values() for each in of_one]
    if any(field.required and field.name not in values for field in fields.values()):
        raise ArgumentsError(plugin, told)
    arguments = kind(**values)
    found = [*arguments.problems(), *(arguments.unserved(windows) if windows else ())]
    if problems:  # beside them what is said of others that were given: a default may be no match for one
        found = [each for each in found if (named := _argument_in(each)) in given and named not in problems]
    if told or found:
        raise ArgumentsError(plugin, [*told, *found])
    return arguments, tuple(notices)


def schema_of(kind: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of the arguments."""
    schema = msgspec.json.schema(kind)
    for each in schema.get("$defs", {}).values():
        if text := each.get("description"):
            each["description"] = " ".join(text.split())
    return schema


def _unfit(name: str, value: Any, hint: Any, error: msgspec.ValidationError) -> list[str]:
    """What is wrong with an argument of this type; of a map with which of its entries."""
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
    known = f"; known are {', '.join(choices)}" if choices else ""
    return f"{name}: {_lowered(error.removesuffix(' - at `$`'))}{known} (given: {_shown(value)})"


def _choices(hint: Any, path: Sequence[str]) -> list[str]:
    """Which texts there may be in an argument of this type, under these keys."""
    if typing.get_origin(hint) is Literal:
        return [each for each in typing.get_args(hint) if each]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        names = {field.encode_name: field.name for field in msgspec.structs.fields(hint)}
        return _choices(typing.get_type_hints(hint)[names[path[0]]], path[1:]) if path and path[0] in names else []
    return [each for part in typing.get_args(hint) for each in _choices(part, path)]


def _argument_in(problem: str) -> str:
    """Which argument a problem is about: "resources.cpu: …" """
    return problem.partition(":")[0].partition(".")[0]


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    told = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    return f"{name if name.isidentifier() else _shown(name)}: there is no such argument; {told}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
