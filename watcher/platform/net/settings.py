"""The section [extender] of the settings: the connection to the watcher."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher.core.config import values
from watcher.core.config.addresses import AUTHORITIES, PEER
from watcher.core.config.fields import SettingsTable


@dataclass(frozen=True, repr=False)
class ExtenderSettings(SettingsTable, section="extender"):
    """The watcher whose load `load-watcher extender` uses. Other commands do not use this table."""

    watcher: Annotated[str | None, PEER.like('"http://load-watcher:2020"')] = None
    """Base URL of the watcher (load-watcher serve). Required for load-watcher extender. Its option --watcher and the
    environment variable LOAD_WATCHER_URL also set it."""
    watcher_token_file: Annotated[Path | None, values.PATH.like('"/run/secrets/load-watcher/token"')] = None
    """File with the bearer token of the watcher, if that protects reads; read again when it changes."""
    watcher_ca_file: Annotated[Path | None, AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
