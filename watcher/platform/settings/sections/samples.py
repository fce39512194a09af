"""Settings for the processing of samples: [refresh], [review] and [store]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher import model
from watcher.core.config import addresses, quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import DEFAULT_WINDOWS, TYPES_ONLY, WINDOWS
from watcher.core.config.quantities import DAY, MINUTE
from watcher.core.windows.slot_widths import FINEST_S, POINT_RESOLUTION_S, usable_widths


@dataclass(frozen=True, repr=False)
class RefreshSettings(SettingsTable):
    """How often samples are fetched, and the windows that are computed from them."""

    interval: Annotated[float, quantities.duration(lowest=1, highest=600).flagged("--interval")] = MINUTE
    """Interval at which samples are fetched. A refresh that takes longer than 0.8 of the interval is aborted."""
    resolution: Annotated[int, quantities.whole_seconds_or_auto(lowest=1, highest=60)] = 0
    """Width of a slot of the history. If a slot has several samples, the last is used. auto: the interval of the
    source's samples, from 5s to 15s, unless the samples would need more than a tenth of the memory limit of the
    container, or 256 MiB without a limit; 15s for sources without history (docs/concepts/scale.md)."""
    windows: Annotated[tuple[model.Window, ...], WINDOWS] = DEFAULT_WINDOWS
    """Lengths of the windows to compute; whole multiples of resolution, with auto of 5s, 6s, 10s, 12s or 15s. The
    history is as long as the longest."""
    pods: Annotated[str, values.choice(("auto", "on", "off"))] = "auto"
    """Whether the usage of pods is fetched once a minute (docs/reference/pods.md); this costs the source more than all
    node metrics. auto: from the first request for pod usage until 15 minutes after the last one."""
    max_staleness: Annotated[float, quantities.duration(lowest=1)] = 5 * MINUTE
    """Maximum age of samples. Older metrics of a node are omitted; if all are older, requests return an error."""

    @property
    def point_resolution(self) -> int:
        """Seconds between two readings of a source without history: as long as the windows allow."""
        return self.resolution or next(iter(usable_widths(self.windows)), POINT_RESOLUTION_S)

    @property
    def finest_resolution(self) -> int:
        """The smallest distance in seconds of samples that are requested from a source with history."""
        return self.resolution or FINEST_S


@dataclass(frozen=True, repr=False)
class ReviewSettings(SettingsTable):
    """How invalid and suspicious samples are handled."""

    mode: Annotated[str, values.choice(("enforce", "observe"))] = "enforce"
    """enforce: apply the remedies of the findings. observe: only report the findings."""
    carry_slots: Annotated[int, values.integer(lowest=0, highest=20)] = 2
    """Maximum age, in slots, of the earlier value that replaces a dropped sample of a node. Such values do not count as
    coverage of a window."""
    outage_fraction: Annotated[float, values.FRACTION] = 0.2
    """If more than this share of the known nodes would disappear in one refresh, their last values are kept."""
    forget_after: Annotated[float, quantities.duration(lowest=1)] = 30 * MINUTE
    """Time without samples after which a node is forgotten."""


@dataclass(frozen=True, repr=False)
class StoreSettings(SettingsTable):
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
