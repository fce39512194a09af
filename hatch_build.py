"""Build hook of the wheel and the sdist.

It adds the top-level migrations/ directory to the wheel as `watcher/_migrations`, and the commit of the sources to both
as `load_watcher/_commit`, which `load-watcher --version` prints.

An editable install uses `migrations/` of the repository; a copy in site-packages would become outdated with the first
edit. A `force-include` table would apply to both kinds of install, so this is a hook.
"""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMIT = "load_watcher/_commit"


class SourcesHook(BuildHookInterface):
    _written: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files to a `standard` build; `version` is the kind of build, not a version number."""
        if version != "standard":
            return
        migrations = Path(self.root) / "migrations"
        if self.target_name == "wheel" and migrations.is_dir():
            build_data["force_include"][str(migrations)] = "watcher/_migrations"
        if (commit := self._commit()) is not None:
            descriptor, path = tempfile.mkstemp(prefix="load-watcher-commit-")
            self._written = Path(path)
            os.close(descriptor)
            self._written.write_text(f"{commit}\n")
            self._written.chmod(0o644)
            build_data["force_include"][path] = COMMIT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary file."""
        if self._written is not None:
            self._written.unlink(missing_ok=True)

    def _commit(self) -> str | None:
        """Return the commit from LOAD_WATCHER_COMMIT (the image is built without .git) or from git; None if unknown, or
        if the sources have the file, as those of an sdist."""
        if (Path(self.root) / COMMIT).exists():
            return None
        if given := os.environ.get("LOAD_WATCHER_COMMIT"):
            return given
        if not (Path(self.root) / ".git").exists():
            return None
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        try:
            done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout.strip() or None
