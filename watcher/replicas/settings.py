"""The section [peers] of the settings: the other replicas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher.core.config import quantities
from watcher.core.config.addresses import AUTHORITIES, peers
from watcher.core.config.fields import SettingsTable


@dataclass(frozen=True, repr=False)
class PeersSettings(SettingsTable, section="peers"):
    """Other replicas of the service. At its start, the service copies recent samples from a ready replica if the source
    has no history (metrics-server). Not used with other sources. The copy takes at most `timeout`."""

    urls: Annotated[
        tuple[str, ...] | None,
        peers("http://load-watcher-headless:2020").like('["http://load-watcher-headless:2020"]'),
    ] = None
    """Base URLs of the replicas. All addresses of a host name are used, for example of a headless Service; they may
    include this process."""
    timeout: Annotated[float, quantities.duration(lowest=0.1, highest=60)] = 3.0
    """Total time that the first refresh waits for the replicas; at most 0.8 of refresh.interval."""
    ca_file: Annotated[Path | None, AUTHORITIES] = None
    """CA certificates (PEM) to verify the certificates of the servers. Default: the system's CA certificates."""
