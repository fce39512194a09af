"""Build hook that adds the top-level migrations/ directory to the wheel as `watcher/_migrations`.

An editable install uses `migrations/` of the repository; a copy in site-packages would become outdated with the first
edit. A `force-include` table would apply to both kinds of install, so this is a hook.
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
