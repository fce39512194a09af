"""Parsing of the settings tables of other packages.

A package declares its table as a dataclass of fields made by `field_metadata.setting`. `read_table` gets the merged
values from the file, the environment and flags as one mapping; environment and flags give text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from watcher.core.messages import nearest
from watcher.platform.settings.field_metadata import SettingsTable, setting_of, settings_fields
from watcher.platform.settings.problems import Problem, removed
from watcher.platform.settings.values import InvalidValue, ValueKind, describe, read_argument

TableT = TypeVar("TableT", bound=SettingsTable)


def read_table(
    table: type[TableT], given: Mapping[str, Any], *, section: str, cwd: Path
) -> tuple[TableT, list[Problem]]:
    """Return the table, with defaults for missing keys, and all problems; the fix for an unknown key is the nearest
    known key. Relative paths are resolved against `cwd`.
    """
    known = {field.name: setting_of(field) for field in settings_fields(table)}
    values: dict[str, Any] = {}
    problems = []
    for name, value in given.items():
        key = f"{section}.{name}"
        if name in table.removed:
            problems.append(removed(key, table.removed[name]))
            continue
        if name not in known:
            near = nearest(name, known)
            cure = f"did you mean {section}.{near}?" if near else f"[{section}] has: {', '.join(known)}"
            problems.append(Problem(key, "unknown setting", cure))
            continue
        kind = known[name].kind
        try:
            read = _read(kind, value)
        except InvalidValue as unfit:
            detail = str(unfit) or f"given {describe(value, private=kind.private)}"
            example = known[name].example or _default(table, name, kind)
            cure = f"for example {key} = {example}" if example else f"write {kind.accepts}"
            problems.append(Problem(key, f"must be {kind.accepts}; {detail}", cure))
        else:
            values[name] = cwd / read if isinstance(read, Path) else read
    return table(**values), problems


def _read(kind: ValueKind, value: Any) -> Any:
    """Parse a TOML value, or text: flags and environment variables are always text."""
    try:
        return kind.read(value)
    except InvalidValue:
        if not isinstance(value, str):
            raise
        return read_argument(kind, value)


def _default(table: type[SettingsTable], name: str, kind: ValueKind) -> str:
    value = getattr(table(), name)
    return "" if value is None else kind.write(value)
