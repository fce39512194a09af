"""Settings for the processing of samples: [refresh], [review] and [store]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from watcher import model
from watcher.core.windows.slot_widths import FINEST_S, POINT_RESOLUTION_S, usable_widths
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.field_metadata import SettingsTable, setting
from watcher.platform.settings.model_values import DEFAULT_WINDOWS, TYPES_ONLY, WINDOWS
from watcher.platform.settings.quantities import DAY, MINUTE


@dataclass(frozen=True, repr=False)
class RefreshSettings(SettingsTable):
    """How often samples are fetched, and the windows that are computed from them."""

    interval: float = setting(
        MINUTE,
        quantities.duration(lowest=1, highest=600),
        "Interval at which samples are fetched. A refresh that takes longer than 0.8 of the interval is aborted.",
        flag="--interval",
    )
    resolution: int = setting(
        0,
        quantities.whole_seconds_or_auto(lowest=1, highest=60),
        "Width of a slot of the history. If a slot has several samples, the last is used. auto: the interval of "
        "the source's samples, from 5s to 15s, unless the samples would need more than a tenth of the memory limit "
        "of the container, or 256 MiB without a limit; 15s for sources without history (docs/concepts/scale.md).",
    )
    windows: tuple[model.Window, ...] = setting(
        DEFAULT_WINDOWS,
        WINDOWS,
        "Lengths of the windows to compute; whole multiples of resolution, with auto of 5s, 6s, 10s, 12s or 15s. "
        "The history is as long as the longest.",
    )
    pods: str = setting(
        "auto",
        values.choice(("auto", "on", "off")),
        "Whether the usage of pods is fetched once a minute "
        "(docs/reference/pods.md); this costs the source more than all "
        "node metrics. auto: from the first request for pod usage until 15 minutes after the last one.",
    )
    max_staleness: float = setting(
        5 * MINUTE,
        quantities.duration(lowest=1),
        "Maximum age of samples. Older metrics of a node are omitted; if all are older, requests return an error.",
    )

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

    mode: str = setting(
        "enforce",
        values.choice(("enforce", "observe")),
        "enforce: apply the remedies of the findings. observe: only report the findings.",
    )
    carry_slots: int = setting(
        2,
        values.integer(lowest=0, highest=20),
        "Maximum age, in slots, of the earlier value that replaces a dropped sample of a node. Such values do not "
        "count as coverage of a window.",
    )
    outage_fraction: float = setting(
        0.2,
        values.FRACTION,
        "If more than this share of the known nodes would disappear in one refresh, their last values are kept.",
    )
    forget_after: float = setting(
        30 * MINUTE, quantities.duration(lowest=1), "Time without samples after which a node is forgotten."
    )


@dataclass(frozen=True, repr=False)
class StoreSettings(SettingsTable):
    """Where windows, recent samples and decisions are stored, and for how long."""

    url: str = setting(
        "sqlite:///load-watcher.db",
        addresses.DATABASE,
        "URL of the database: an SQLite file that only this process uses, or a PostgreSQL server.",
        flag="--store-url",
    )
    password_file: Path | None = setting(
        None,
        values.PATH,
        "File with the password of the PostgreSQL user in url; read for each connection.",
        example='"/etc/load-watcher/database-password"',
    )
    watcher_id: str | None = setting(
        None,
        values.NAME,
        "Name of this process in a PostgreSQL database that several share; it marks its rows, together with "
        "cluster.name. Must be unique among running processes. Default: POD_NAME, or else the host name. Not used "
        "with SQLite.",
        example='"load-watcher-0"',
    )
    retention: float = setting(
        DAY, quantities.duration(lowest=1), "How long windows are stored; at least the longest window."
    )
    on_unusable: str = setting(
        "fail",
        values.choice(("fail", "set-aside")),
        "What to do if the database is corrupt or has a newer schema. fail: do not start. set-aside: rename an "
        "SQLite file and create a new one; run without a PostgreSQL database.",
    )
    max_size: int | None = setting(
        None,
        quantities.size(lowest=16 * 2**20),
        "Maximum size of the SQLite file, or of this process's rows in PostgreSQL. Above it, the oldest windows "
        "and decisions are deleted early. Default: 2 GiB, or more if retention needs it for the number of nodes.",
        example='"2GiB"',
    )
    decisions: float = setting(
        DAY,
        quantities.duration(),
        "How long the decisions of the scheduling plug-ins are stored, for load-watcher why; 0s: not stored.",
    )
    max_decisions: int = setting(
        100_000,
        values.integer(lowest=100, highest=1_000_000),
        "Maximum number of stored decisions, of 1 to 4 kB each. The oldest are deleted first, beginning with "
        "those of pods that have more than a hundredth of all decisions.",
    )
    upgrade: bool = setting(True, values.BOOLEAN, "Whether serve upgrades a database with an older schema.")
    keep: tuple[str, ...] = setting(("CPU", "Memory"), TYPES_ONLY, "Metric types to store windows of.")
