"""Puts the database migrations, which live at the top of the repository, into the wheel as `watcher/_migrations`.

An editable install has the repository beside it and finds `migrations/` there; a copy laid into site-packages would go
stale with the first edit. That is why this is a hook and not a `force-include` table, which applies to both.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MigrationsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the migrations to a `standard` wheel; `version` is the kind of build, not a version number."""
        migrations = Path(self.root) / "migrations"
        if version == "standard" and migrations.is_dir():
            build_data["force_include"][str(migrations)] = "watcher/_migrations"
