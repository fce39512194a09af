"""Declaration of settings: each is an annotated field of a table, with its kind of value; the docstring below the field
describes it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, ClassVar, get_type_hints

from watcher.core.config.values import ValueKind


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a table. `default` is MISSING if the setting is required."""

    name: str
    kind: ValueKind
    default: Any

    @property
    def example(self) -> str:
        """An example value as a TOML literal: the declared example, or the default."""
        return self.kind.example or self.kind.write(self.default)


class SettingsTable:
    """A section of the settings. Its repr hides secrets, so that logs and tracebacks cannot leak them. `removed` are
    former keys, each with what to use instead, as an imperative; they are kept for one minor version."""

    removed: ClassVar[Mapping[str, str]] = {}

    def __repr__(self) -> str:
        shown = (
            f"{each.name}={each.kind.write(value)}"
            for each in settings_of(type(self)).values()
            if (value := getattr(self, each.name)) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def settings_of(table: type[SettingsTable]) -> Mapping[str, Setting]:
    """Return the settings of a table by name, in declaration order: the fields whose annotation has a kind."""
    return _settings_of(table)


@cache
def _settings_of(table: Any) -> Mapping[str, Setting]:  # mypy does not take a type for hashable
    hints = get_type_hints(table, include_extras=True)
    found = {}
    for each in fields(table):
        for kind in getattr(hints[each.name], "__metadata__", ()):
            default = each.default if each.default_factory is MISSING else each.default_factory()
            found[each.name] = Setting(each.name, kind, default)
    return found


def descriptions(table: type[SettingsTable]) -> dict[str, str]:
    """Return the docstrings below the fields of a table, each on one line, by the name of the field."""
    body = ast.parse(textwrap.dedent(inspect.getsource(table))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found
