"""Arguments of plug-ins: from the JSON or YAML that users have, checked whole, with every problem named.

Upstream replaces a bad value by the default without a word, and a plug-in then "does nothing"; here it is an error that
says where, what, and what would be right.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

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
    notices, problems, values = [], [], {}
    for name, value in given.items():
        if name in fields:
            try:
                values[fields[name].name] = msgspec.convert(value, hints[fields[name].name])
            except msgspec.ValidationError as error:
                problems.append(f"{name}: {_lowered(str(error))} (given: {_shown(value)})")
        elif name in NOT_OURS:
            notices.append(f"{plugin}: {name} is not used here: {NOT_OURS[name]}")
        elif name not in ("apiVersion", "kind"):
            problems.append(_unknown(str(name), list(fields)))
    if problems:
        raise ArgumentsError(plugin, problems)
    arguments = kind(**values)
    if problems := [*arguments.problems(), *(arguments.unserved(windows) if windows else ())]:
        raise ArgumentsError(plugin, problems)
    return arguments, tuple(notices)


def schema_of(kind: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of the arguments."""
    return msgspec.json.schema(kind)


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    told = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    return f"{_shown(name)}: there is no such argument; {told}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _shown(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
