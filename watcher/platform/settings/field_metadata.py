"""Declaration of settings: each is a field of a table, with its kind and documentation as metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from watcher.platform.settings.values import ValueKind

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True)
class Setting:
    """Metadata of a setting. `example` is a TOML literal, required for settings without a default; `flag` is the
    option of `serve` that sets it.
    """

    kind: ValueKind
    doc: str
    example: str = ""
    flag: str | None = None


def setting(default: ValueT, kind: ValueKind, doc: str, *, example: str = "", flag: str | None = None) -> ValueT:
    """Declare a field of a table as a setting with this default. Mypy takes the field for its default."""
    return described(default, Setting(kind, doc, example, flag))


def described(default: ValueT, by: Setting) -> ValueT:
    """Declare a field of a table as a setting with this default and description, which several tables share."""
    made: Any
    if isinstance(default, dict):  # dataclasses refuse a mutable default
        made = field(default_factory=default.copy, metadata={"setting": by})
    else:
        made = field(default=default, metadata={"setting": by})
    return made  # type: ignore[no-any-return]  # the dataclass replaces it by the default


def required(kind: ValueKind, doc: str, *, example: str) -> Any:
    """Declare a field of a table as a setting without default."""
    return field(metadata={"setting": Setting(kind, doc, example)})


class SettingsTable:
    """A section of the settings. Its repr hides secrets, so that logs and tracebacks cannot leak them. `removed` are
    former keys, each with what to use instead, as an imperative; they are kept for one minor version."""

    removed: ClassVar[Mapping[str, str]] = {}

    def __repr__(self) -> str:
        shown = (
            f"{each.name}={setting_of(each).kind.write(value)}"
            for each in settings_fields(type(self))
            if (value := getattr(self, each.name)) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def settings_fields(table: type[SettingsTable]) -> Iterator[Field[Any]]:
    """Return the fields of a table that are settings, in declaration order."""
    return (each for each in fields(table) if "setting" in each.metadata)  # type: ignore[arg-type]  # all are dataclasses


def setting_of(of: Field[Any]) -> Setting:
    """Return the metadata of a field; KeyError if the field is not a setting."""
    setting: Setting = of.metadata["setting"]
    return setting
