"""Builds the components of the service from its settings."""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from watcher.core.config.settings import Settings
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.koordinator.collect_policy import SHORTEST_INTERVAL_S, CollectPolicies, CollectPolicy
from watcher.core.koordinator.usage_thresholds import ThresholdRange
from watcher.core.koordinator.written_objects import MANAGER
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows.records import WindowRecord
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.publisher import NodeMetricPublisher
from watcher.koordinator.publisher_source import LEASE, THRESHOLDS_LEASE, PublisherSource, lease_namespace
from watcher.koordinator.settings import KoordinatorSettings
from watcher.koordinator.threshold_publisher import ThresholdPublisher
from watcher.platform.http.settings import ServerSettings
from watcher.platform.http.tls import ServerTls
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access
from watcher.platform.kube.leases import Election
from watcher.platform.kube.settings import KubernetesSettings
from watcher.platform.logs import ClusterSettings
from watcher.platform.memory import history_budget, most_nodes, process_limit
from watcher.platform.net.listening import host_port
from watcher.platform.reloaded_files import FileReloader, ReloadedToken, read_token
from watcher.sources import registry
from watcher.sources.base import Provider
from watcher.store.settings import StoreSettings
from watcher.store.store import Store
from watcher.tick import cluster_nodes
from watcher.tick.shared import NodeSource, RefreshConfig


@dataclass(frozen=True, slots=True)
class Sources:
    """Builders for the provider of samples and the source of cluster nodes, called at the start and after a reload that
    changes their settings. `past` returns batches of windows from before the start, which are written to a store
    without data after the first tick; it runs in a thread."""

    provider: Callable[[Settings], Provider] = registry.build
    directory: Callable[[Settings], NodeSource | None] = cluster_nodes.from_settings
    past: Callable[[Settings], Iterator[Sequence[WindowRecord]]] | None = None


FROM_SETTINGS = Sources()


def tls_of(settings: Settings) -> ServerTls | None:
    """Return the server's TLS files, None for plain HTTP. The files were checked with the settings."""
    server = settings[ServerSettings]
    return None if server.tls_cert is None else ServerTls(server.tls_cert, server.tls_key, server.tls_client_ca)


class ServerProtection:
    """Access control of the HTTP server: the bearer token, whose file is read again when it changes, whether reads need
    it too, and the names of the client certificates of kube-scheduler."""

    def __init__(self, settings: Settings) -> None:
        self._token = ReloadedToken(
            "server.token_file", settings[ServerSettings].token_file, partial(token_of, settings)
        )
        self.protect_reads = settings[ServerSettings].protect_reads
        self.scheduler_clients = settings[ServerSettings].scheduler_clients
        self.files = self._token.files

    @property
    def token(self) -> str | None:
        """The current token, None if none is configured."""
        return self._token.value


def token_of(settings: Settings) -> str | None:
    """Read the token that write requests need from its file; None if none is configured. Raises OSError or
    ValueError."""
    path = settings[ServerSettings].token_file
    return None if path is None else read_token(path)


def server_files(protection: ServerProtection, tls: ServerTls | None) -> FileReloader:
    """Return the reader of the server's files, which reads them again when they change."""
    return FileReloader([*protection.files, *(() if tls is None else (tls.files,))])


def store_of(settings: Settings, *, program: str) -> Store:
    """Build the store, which is not opened yet. `program` is named as its owner to other processes."""
    store, forecast = settings[StoreSettings], settings[ForecastSettings]
    return Store(
        store,
        owner=f"{program} on {host_port(settings[ServerSettings].host, settings[ServerSettings].port)}",
        watcher=store.watcher_name(settings[ClusterSettings].name),
        maxima=forecast.history if forecast.enabled else 0.0,
    )


def refresh_config(settings: Settings) -> RefreshConfig:
    """Return the settings of the tick."""
    refresh, forecast = settings[RefreshSettings], settings[ForecastSettings]
    return RefreshConfig(
        **vars(refresh),
        history_bytes=history_budget(),
        most_nodes=most_nodes(process_limit()),
        recorded_types=settings[StoreSettings].keep,
        cluster=settings[ClusterSettings].name or "",
        limits=replace(settings[ReviewSettings], max_staleness_s=refresh.max_staleness, interval_s=refresh.interval),
        forecast=forecast if forecast.enabled else None,
    )


def collect_policies(settings: Settings) -> CollectPolicies:
    """Return the collect policies of NodeMetrics from the settings."""
    koordinator, refresh = settings[KoordinatorSettings], settings[RefreshSettings]
    durations = koordinator.aggregate_durations
    default = CollectPolicy(
        koordinator.report_interval,
        koordinator.aggregate_duration,
        None if durations is None else tuple(window.seconds for window in durations),
    )
    return CollectPolicies(
        default,
        koordinator.nodes,
        windows=refresh.windows,
        shortest_interval_s=max(SHORTEST_INTERVAL_S, math.ceil(refresh.interval)),
    )


def publisher_of(settings: Settings, source: PublisherSource) -> NodeMetricPublisher:
    """Build the publisher of NodeMetrics for the cluster of the settings."""
    client = _kube_client(settings)
    election = _election(settings, client, source, lease=LEASE)
    return NodeMetricPublisher(
        client, source, election=election, writes_per_second=settings[KoordinatorSettings].writes_per_second
    )


def threshold_publisher_of(settings: Settings, source: PublisherSource) -> ThresholdPublisher:
    """Build the publisher of usage thresholds for the cluster of the settings."""
    client, found = _kube_client(settings), settings[KoordinatorSettings]
    election = _election(settings, client, source, lease=THRESHOLDS_LEASE)
    ranges = {
        "cpu": ThresholdRange(found.lowest_cpu_threshold, found.highest_cpu_threshold),
        "memory": ThresholdRange(found.lowest_memory_threshold, found.highest_memory_threshold),
    }
    return ThresholdPublisher(client, source, election=election, ranges=ranges)


def _kube_client(settings: Settings) -> KubeClient:
    kubeconfig, context = settings[KubernetesSettings].path, settings[KubernetesSettings].context
    return KubeClient(lambda: find_access(kubeconfig=kubeconfig, context=context, environ=os.environ))


def _election(settings: Settings, client: KubeClient, source: PublisherSource, *, lease: str) -> Election:
    return Election(
        client,
        f"{lease_namespace(settings)}/{lease}",
        identity=f"{socket.gethostname()}_{secrets.token_hex(4)}",
        manager=MANAGER,
        now=source.now,
        monotonic=source.monotonic,
    )
