"""What becomes of samples: [refresh], [review] and [store]."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from watcher import model
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.declaring import Table, about
from watcher.platform.settings.model_values import DEFAULT_WINDOWS, TYPES_ONLY, WINDOWS
from watcher.platform.settings.quantities import DAY, MINUTE


@dataclass(frozen=True, repr=False)
class RefreshSettings(Table):
    """How often samples are fetched, and which windows are kept over them."""

    interval: float = field(
        default=MINUTE,
        metadata=about(
            quantities.duration(lowest=1, highest=600),
            "How often samples are fetched. A refresh that takes longer than 0.8 of it is given up.",
            flag="--interval",
        ),
    )
    resolution: int = field(
        default=15,
        metadata=about(
            quantities.whole_seconds(lowest=1, highest=60),
            "Width of a slot of the history: of the samples of one slot the last counts.",
        ),
    )
    windows: tuple[model.Window, ...] = field(
        default=DEFAULT_WINDOWS,
        metadata=about(
            WINDOWS, "The windows to compute, whole multiples of resolution. The history is as long as the longest."
        ),
    )
    pods: str = field(
        default="auto",
        metadata=about(
            values.choice(("auto", "on", "off")),
            "Whether the source is asked once a minute for what pods use (docs/pods.md), which costs more than all "
            "nodes together. auto: from the first time that somebody asks us until 15 minutes after the last.",
        ),
    )
    max_staleness: float = field(
        default=5 * MINUTE,
        metadata=about(
            quantities.duration(lowest=1),
            "Age above which a node's metric is left out, and above which the whole answer is an error.",
        ),
    )


@dataclass(frozen=True, repr=False)
class ReviewSettings(Table):
    """What is done about bad samples."""

    mode: str = field(
        default="enforce",
        metadata=about(
            values.choice(("enforce", "observe")), "enforce acts on what is found, observe only reports it."
        ),
    )
    carry_slots: int = field(
        default=2,
        metadata=about(
            values.whole(lowest=0, highest=20),
            "How many slots a node's last value may stand in for missing ones. Never counts as coverage.",
        ),
    )
    outage_fraction: float = field(
        default=0.2,
        metadata=about(
            values.FRACTION,
            "If more than this part of the known nodes would vanish within one refresh, their last values are kept.",
        ),
    )
    forget_after: float = field(
        default=30 * MINUTE,
        metadata=about(quantities.duration(lowest=1), "How long a node may be silent before it is no longer known."),
    )


@dataclass(frozen=True, repr=False)
class StoreSettings(Table):
    """Where windows and recent samples are kept, and for how long."""

    url: str = field(
        default="sqlite:///load-watcher.db",
        metadata=about(
            addresses.DATABASE,
            "The database: a file of this watcher's own, or a PostgreSQL server.",
            flag="--store-url",
        ),
    )
    password_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "File with the password of the user in url, for PostgreSQL. Read anew for each connection.",
            example='"/etc/load-watcher/database-password"',
        ),
    )
    watcher_id: str | None = field(
        default=None,
        metadata=about(
            values.NAME,
            "Whose rows these are in a database that several watchers share, with cluster.name before it; no two that "
            "run may have the same. Not set: POD_NAME, else the name of the host. A file has one watcher, and no name.",
            example='"load-watcher-0"',
        ),
    )
    retention: float = field(
        default=DAY,
        metadata=about(quantities.duration(lowest=1), "How long windows are kept. At least the longest window."),
    )
    on_unusable: str = field(
        default="fail",
        metadata=about(
            values.choice(("fail", "set-aside")),
            "What to do with a database that is corrupt or of a newer version: fail, or set-aside, which renames a "
            "file and begins a new one, and goes on without a server.",
        ),
    )
    max_size: int = field(
        default=2 * 2**30,
        metadata=about(
            quantities.size(lowest=16 * 2**20),
            "How large the database may become, of PostgreSQL this watcher's part of it; above that, the oldest "
            "windows and decisions go before their time.",
        ),
    )
    decisions: float = field(
        default=DAY,
        metadata=about(
            quantities.duration(),
            "How long what the scheduling plug-ins decided is kept, for load-watcher why; 0s: not at all.",
        ),
    )
    max_decisions: int = field(
        default=100_000,
        metadata=about(
            values.whole(lowest=100, highest=1_000_000),
            "How many decisions are kept, of one to four kB each; the oldest go first.",
        ),
    )
    upgrade: bool = field(
        default=True, metadata=about(values.BOOLEAN, "Whether serve brings an older database up to date by itself.")
    )
    keep: tuple[str, ...] = field(
        default=("CPU", "Memory"), metadata=about(TYPES_ONLY, "Metric types whose windows are kept.")
    )
