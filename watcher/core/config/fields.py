"""Declaration of settings: each is an annotated field of a table, with its kind of value; the docstring below the field
describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, get_origin, get_type_hints

import msgspec

from watcher.core.config.values import ValueKind


@dataclass(frozen=True)
class Field:
    """A field that can be given. `default` is MISSING if it must be."""

    name: str
    hint: Any
    default: Any


@dataclass(frozen=True)
class Setting(Field):
    """A field with a kind of value."""

    kind: ValueKind

    @property
    def example(self) -> str:
        """An example value as a TOML literal: the declared example, or the default; "" without any."""
        return self.kind.example or ("" if self.default is None else self.kind.write(self.default))


class NoEffect:
    """Marks a field that is accepted and ignored; `why` completes the notice "has no effect here: …"."""

    def __init__(self, why: str) -> None:
        self.why = why


class SettingsTable:
    """A section of the settings. Its repr hides secrets, so that logs and tracebacks cannot leak them. `removed` are
    former keys, each with what to use instead, as an imperative; they are kept for one minor version."""

    removed: ClassVar[Mapping[str, str]] = {}
    section: ClassVar[str] = ""
    """Name of the section in the settings file, "" for inner tables and tables of other packages."""

    def __init_subclass__(cls, section: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.section = section

    def __repr__(self) -> str:
        shown = (
            f"{each.name}={each.kind.write(value)}"
            for each in settings_of(type(self)).values()
            if (value := getattr(self, each.name)) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def fields_of(kind: type) -> Mapping[str, Field]:
    """Return the fields of a dataclass or struct by the name in mappings, in declaration order. A field of a dataclass
    whose annotation has neither a kind of value nor a table is not given, but computed."""
    return _fields_of(kind)


@cache
def _fields_of(kind: Any) -> Mapping[str, Field]:  # mypy does not take a type for hashable
    hints = get_type_hints(kind, include_extras=True)
    if not is_dataclass(kind):
        return {each.encode_name: _field(each, hints[each.name]) for each in msgspec.structs.fields(kind)}
    found = {each.name: _field(each, hints[each.name]) for each in fields(kind)}
    return {name: each for name, each in found.items() if isinstance(each, Setting) or get_origin(each.hint) is Mapping}


def _field(of: Any, hint: Any) -> Field:
    default = of.default_factory() if callable(of.default_factory) else of.default
    default = MISSING if default is msgspec.NODEFAULT else default
    kind = kind_in(hint)
    return Field(of.name, hint, default) if kind is None else Setting(of.name, hint, default, kind)


def kind_in(hint: Any) -> ValueKind | None:
    """Return the kind of value in an annotation."""
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, ValueKind)), None)


def settings_of(table: type[SettingsTable]) -> Mapping[str, Setting]:
    """Return the settings of a table by name, without inner tables."""
    return {name: each for name, each in fields_of(table).items() if isinstance(each, Setting)}
