"""The settings of a process: a value of each section, and the origins of the values.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from watcher.core.config.fields import SettingsTable

SectionT = TypeVar("SectionT", bound=SettingsTable)


@dataclass(frozen=True)
class Settings:
    """The sections by class; a section that is not given has its defaults.

    `parts` holds the tables of other packages as in the file, validated by the packages. `origins` maps every key
    ("refresh.interval") to the source of its value: "flag --interval", "environment NAME", "file PATH" or "default",
    the last with a reason if the default is computed. `notices` are messages for the log.
    """

    sections: Mapping[type[SettingsTable], SettingsTable] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain secrets
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    notices: tuple[str, ...] = ()

    def __getitem__(self, section: type[SectionT]) -> SectionT:
        found = self.sections.get(section)
        return found if isinstance(found, section) else section()

    def named(self, section: str) -> SettingsTable:
        """Return the section with this name in the settings file."""
        return next(each for kind, each in self.sections.items() if kind.section == section)

    def having(self, *sections: SettingsTable) -> Settings:
        """Return the settings with other values of these sections."""
        return replace(self, sections={**self.sections, **{type(each): each for each in sections}})
