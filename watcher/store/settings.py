"""The section [store] of the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher.core.config import addresses, quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import TYPES_ONLY
from watcher.core.config.quantities import DAY


@dataclass(frozen=True, repr=False)
class StoreSettings(SettingsTable, section="store"):
    """Where windows, recent samples and decisions are stored, and for how long."""

    url: Annotated[str, addresses.DATABASE.flagged("--store-url")] = "sqlite:///load-watcher.db"
    """URL of the database: an SQLite file that only this process uses, or a PostgreSQL server."""
    password_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/database-password"')] = None
    """File with the password of the PostgreSQL user in url; read for each connection."""
    watcher_id: Annotated[str | None, values.NAME.like('"load-watcher-0"')] = None
    """Name of this process in a PostgreSQL database that several share; it marks its rows, together with cluster.name.
    Must be unique among running processes. Default: POD_NAME, or else the host name. Not used with SQLite."""
    retention: Annotated[float, quantities.duration(lowest=1)] = DAY
    """How long windows are stored; at least the longest window."""
    on_unusable: Annotated[str, values.choice(("fail", "set-aside"))] = "fail"
    """What to do if the database is corrupt or has a newer schema. fail: do not start. set-aside: rename an SQLite file
    and create a new one; run without a PostgreSQL database."""
    max_size: Annotated[int | None, quantities.size(lowest=16 * 2**20).like('"2GiB"')] = None
    """Maximum size of the SQLite file, or of this process's rows in PostgreSQL. Above it, the oldest windows and
    decisions are deleted early. Default: 2 GiB, or more if retention needs it for the number of nodes."""
    decisions: Annotated[float, quantities.duration()] = DAY
    """How long the decisions of the scheduling plug-ins are stored, for load-watcher why; 0s: not stored."""
    max_decisions: Annotated[int, values.integer(lowest=100, highest=1000000)] = 100000
    """Maximum number of stored decisions, of 1 to 4 kB each. The oldest are deleted first, beginning with those of pods
    that have more than a hundredth of all decisions."""
    upgrade: Annotated[bool, values.BOOLEAN] = True
    """Whether serve upgrades a database with an older schema."""
    keep: Annotated[tuple[str, ...], TYPES_ONLY] = ("CPU", "Memory")
    """Metric types to store windows of."""

    def watcher_name(self, cluster: str | None) -> str:
        """Name that marks this process's rows in a PostgreSQL database: "[CLUSTER/]WATCHER_ID"; "" for SQLite."""
        if not addresses.is_server(self.url):
            return ""
        return "/".join(name for name in (cluster, self.watcher_id) if name)
