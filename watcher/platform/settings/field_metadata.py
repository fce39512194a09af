"""Declaration of settings: each is a field of a table, with its kind and documentation as metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from watcher.platform.settings.values import ValueKind


@dataclass(frozen=True, slots=True)
class Setting:
    """Metadata of a setting. `example` is a TOML literal, required for settings without a default; `flag` is the
    option of `serve` that sets it.
    """

    kind: ValueKind
    doc: str
    example: str = ""
    flag: str | None = None


def about(kind: ValueKind, doc: str, *, example: str = "", flag: str | None = None) -> Mapping[str, Setting]:
    """Return the metadata that makes a dataclass field a setting."""
    return {"setting": Setting(kind, doc, example, flag)}


class SettingsTable:
    """A section of the settings. Its repr hides secrets, so that logs and tracebacks cannot leak them."""

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
