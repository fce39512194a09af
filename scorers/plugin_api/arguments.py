"""Parse and validate the arguments of scheduling plug-ins.

Users give arguments as JSON or YAML. All problems are reported at once, each with the argument, the error, and the
accepted values. Upstream silently replaces an invalid value by its default; here it is an error.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec

from watcher.core.config.fields import Field
from watcher.core.config.reader import Report, lacks, made, readable
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


class _ArgumentReport(Report):
    """The problems of the arguments of a plug-in, by argument."""

    def __init__(self, plugin: str, kind: type[Arguments]) -> None:
        super().__init__()
        self.problems: dict[str, list[str]] = {}
        self.notices: list[str] = []
        self._plugin, self._removed = plugin, kind.removed

    def unknown(self, name: str, known: Collection[str]) -> None:
        if self.path[:-1]:
            self._add(_unknown(name, known))
        elif name in self._removed:
            self._add(f"was removed in this version; {self._removed[name]}")
        elif name in IGNORED_ARGUMENTS:
            self.notices.append(f"{self._plugin}: {name} is ignored: {IGNORED_ARGUMENTS[name]}")
        elif name not in ("apiVersion", "kind"):
            self._add(_unknown(name, known))

    def missing(self, field: Field) -> None:
        self._add("is required")

    def unfit(self, accepts: str, given: object, detail: str = "", field: Field | None = None) -> None:
        self._add(f"must be {accepts} (given: {_quoted(given)})")

    def notice(self, message: str) -> None:
        """A null is an argument that is not given."""

    def _add(self, problem: str) -> None:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{_name(part)}" for part in self.path)
        self.problems.setdefault(str(self.path[0]), []).append(f"{place.removeprefix('.')}: {problem}")


def read_arguments(
    plugin: str, kind: type[ArgsT], given: Mapping[str, Any], *, windows: Sequence[Window] = ()
) -> tuple[ArgsT, tuple[str, ...]]:
    """Return the arguments and notices about ignored keys. `windows` are the watcher's windows, empty when unknown.
    Raises ArgumentsError."""
    report = _ArgumentReport(plugin, kind)
    if (named := given.get("kind", f"{plugin}Args")) != f"{plugin}Args":
        report.problems["kind"] = [f"kind: {_quoted(named)} belongs to another plug-in; use {plugin}Args"]
    values = readable(kind, given, report)
    problems = [each for of_one in report.problems.values() for each in of_one]
    if lacks(kind, values):
        raise ArgumentsError(plugin, problems)
    arguments = made(kind, values)
    found = [*arguments.problems(), *(arguments.window_problems(windows) if windows else ())]
    if problems:  # report problems of the given arguments only: a default may conflict with an invalid one
        found = [each for each in found if (named := _argument_in(each)) in given and named not in report.problems]
    if problems or found:
        raise ArgumentsError(plugin, [*problems, *found])
    return arguments, tuple(report.notices)


def schema_of(kind: type[Arguments]) -> dict[str, Any]:
    """Return the JSON schema of the arguments."""
    schema = msgspec.json.schema(kind)
    for each in schema.get("$defs", {}).values():
        if text := each.get("description"):
            each["description"] = " ".join(text.split())
    return schema


def _argument_in(problem: str) -> str:
    """Return the argument that a problem is about: "resources" for "resources.cpu: …"."""
    return problem.partition(":")[0].partition(".")[0]


def _unknown(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    return "unknown argument; " + (f"did you mean {near}?" if near else f"valid arguments: {', '.join(sorted(known))}")


def _name(part: str) -> str:
    return part if part.isprintable() and not {" ", ":"} & set(part) else _quoted(part)


def _quoted(value: object, longest: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}…"
