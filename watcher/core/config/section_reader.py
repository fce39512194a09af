"""Reading of sections of the settings: flags and environment variables give text, files give TOML values.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from watcher.core.config.fields import Field, Setting, SettingsTable
from watcher.core.config.problems import Problem, removed
from watcher.core.config.reader import Report, readable
from watcher.core.config.values import InvalidValue, ValueKind, describe, read_argument, toml_or_text
from watcher.core.messages import nearest

TableT = TypeVar("TableT", bound=SettingsTable)


@dataclass(frozen=True, slots=True)
class RawValue:
    """An unparsed value: a TOML value, or text of a flag or variable if `text` is set. `origin` names its source."""

    value: Any
    origin: str
    text: bool = False

    def example(self, key: str, literal: str) -> str:
        """Format an example of the key in the syntax of this value's source; `literal` is a TOML value."""
        source, _, name = self.origin.partition(" ")
        value = toml_or_text(literal)
        text = value if isinstance(value, str) else literal
        if source == "environment":
            return f"{name}={shlex.quote(text)}"
        if source == "flag":
            return (
                f"--set {shlex.quote(f'{key}={text}')}" if name.startswith("--set ") else f"{name} {shlex.quote(text)}"
            )
        return f"{key} = {literal}"


class SectionReport(Report):
    """The problems of a section, by full key. Its values are raw values with their origins, or TOML values; text may
    then also be from a flag or variable."""

    def __init__(self, section: str, *, cwd: Path, former: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.problems: list[Problem] = []
        self._section, self._cwd, self._former = section, cwd, former or {}

    @property
    def key(self) -> str:
        """The full key of the current place."""
        return ".".join((self._section, *map(str, self.path)))

    def read(self, kind: ValueKind, given: Any) -> Any:
        """Return the value, with paths relative to the working directory. Raises InvalidValue."""
        if isinstance(given, RawValue):
            value = read_argument(kind, given.value) if given.text else kind.read(given.value)
        else:
            value = _read_either(kind, given)
        return self._cwd / value if isinstance(value, Path) else value

    def unknown(self, name: str, known: Collection[str]) -> None:
        if not self.path[:-1] and name in self._former:
            self.problems.append(removed(self.key, self._former[name]))
            return
        table, near = self.key.removesuffix(f".{name}"), nearest(name, known)
        cure = f"did you mean {table}.{near}?" if near else f"[{table}] has: {', '.join(known)}"
        self.problems.append(Problem(self.key, "unknown setting", cure))

    def missing(self, field: Field) -> None:
        table, example = self.key.removesuffix(f".{field.name}"), field.example if isinstance(field, Setting) else ""
        message = f"is not set, but required in [{table}]"
        self.problems.append(Problem(self.key, message, f"for example {self.key} = {example}"))

    def unfit(self, accepts: str, given: Any, detail: str = "", field: Field | None = None) -> None:
        if not isinstance(field, Setting):
            cure = f"start the table with [{self.key}]"
            self.problems.append(Problem(self.key, f"must be a table, [{self.key}]; given {describe(given)}", cure))
            return
        raw = given if isinstance(given, RawValue) else RawValue(given, "")
        said = detail or f"given {describe(raw.value, private=field.kind.private)}"
        example = f"for example {raw.example(self.key, field.example)}"
        if raw.origin and raw.value == "" and _may_be_empty(field.kind):
            example += f", or {raw.example(self.key, '[]')} for none"
        cure = example if field.example else f"write {accepts}"
        where = f" ({raw.origin})" if raw.origin else ""
        self.problems.append(Problem(self.key, f"must be {accepts}; {said}{where}", cure))


def _may_be_empty(kind: ValueKind) -> bool:
    return kind.schema.get("type") == "array" and "minItems" not in kind.schema


def _read_either(kind: ValueKind, value: Any) -> Any:
    """Parse a TOML value, or the text of a flag or variable."""
    try:
        return kind.read(value)
    except InvalidValue:
        if not isinstance(value, str):
            raise
        return read_argument(kind, value)


def read_table(
    table: type[TableT], given: Mapping[str, Any], *, section: str, cwd: Path
) -> tuple[TableT, list[Problem]]:
    """Return the table, with defaults for what is missing or invalid, and all problems. Relative paths are resolved
    against `cwd`."""
    report = SectionReport(section, cwd=cwd, former=table.removed)
    values = readable(table, given, report)
    return table(**values), report.problems
