"""How a setting is declared: one field of a table, with all there is to say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any

from watcher.platform.settings.values import Kind


@dataclass(frozen=True, slots=True)
class Setting:
    """What a table says of one of its fields. `example` is a TOML literal for a setting that has no default; `flag`
    the option of `serve` that sets it."""

    kind: Kind
    doc: str
    example: str = ""
    flag: str | None = None


def about(kind: Kind, doc: str, *, example: str = "", flag: str | None = None) -> Mapping[str, Setting]:
    """The metadata of a field that is a setting."""
    return {"setting": Setting(kind, doc, example, flag)}


class Table:
    """A section of the settings. Its repr hides what is secret, so that a stray log line or traceback tells nothing."""

    def __repr__(self) -> str:
        shown = (
            f"{each.name}={setting_of(each).kind.write(value)}"
            for each in settings_fields(type(self))
            if (value := getattr(self, each.name)) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def settings_fields(table: type[Table]) -> Iterator[Field[Any]]:
    """The fields of a table that are settings, in their order."""
    return (each for each in fields(table) if "setting" in each.metadata)  # type: ignore[arg-type]  # all are dataclasses


def setting_of(of: Field[Any]) -> Setting:
    """What the table says of this field."""
    setting: Setting = of.metadata["setting"]
    return setting
