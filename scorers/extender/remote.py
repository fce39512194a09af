"""A process of its own as the host of the scheduling plug-ins: all load comes from a watcher over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path

from scorers.cluster.table import DataNeeds
from scorers.extender.hosting import LOOK_EVERY_S, TYPES, operators_for
from scorers.profiles.missing_forecasts import unmet_forecasts
from watcher.client import ServiceDescription, WatcherClient, WatcherError
from watcher.core.config.settings import Settings
from watcher.core.decisions import DecisionStore
from watcher.decoding.text import read_text
from watcher.model import Window
from watcher.platform.clock import Clock, SystemClock
from watcher.platform.net.settings import ExtenderSettings
from watcher.platform.net.tls import client_context, file_reason

DESCRIBE_EVERY_S = 30.0
"""Interval at which the watcher is asked what it offers; it is also asked when the files of credentials change."""
UNKNOWN_STALENESS_S = 300.0  # default of refresh.max_staleness
TIMEOUT_S = 5.0
UPGRADE = "upgrade the load-watcher that answers there to the version of this extender"


@dataclass(frozen=True, slots=True)
class WatcherAccess:
    """Address of a watcher, and the contents of the files with its bearer token and its CA certificates."""

    url: str
    token: str | None
    authorities: str | None

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context for these CA certificates; None for those of the system. Raises
        ssl.SSLError and ValueError."""
        return None if self.authorities is None else client_context(ca_data=self.authorities)


def read_access(settings: Settings) -> WatcherAccess:
    """Read the files of the settings [extender]. Raises OSError, and ValueError for a file that is not text."""
    extender = settings[ExtenderSettings]
    token = _text(extender.watcher_token_file)
    return WatcherAccess(
        extender.watcher or "", None if token is None else token.strip(), _text(extender.watcher_ca_file)
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else read_text(path)


def _with_cure(error: WatcherError, url: str) -> WatcherError:
    """The error of a watcher that does not describe itself, with the remedy for this process."""
    if error.code == "not_found":
        message = f"the server at {url} has no /api/v1/overview"
        hint = "check that extender.watcher is the base URL of load-watcher serve; if it is, upgrade that load-watcher"
        return WatcherError("no_overview", message, hint=hint)
    if error.code in ("unauthorized", "forbidden"):
        hint = "set extender.watcher_token_file to a file with the token of the watcher (its server.token_file)"
        return WatcherError(error.code, f"the watcher at {url} refuses access: {error}", hint=hint)
    return error


class RemoteHost:
    """The host process, and the load of a watcher at another address."""

    def __init__(self, settings: Settings, decisions: DecisionStore, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self.decisions = decisions
        self._clock = clock or SystemClock()
        self._access = read_access(settings)
        self._access.tls()  # raises for invalid certificates
        self._described_at = float("-inf")
        self.description: ServiceDescription | None = None
        """What the watcher offers, as of its last answer; None before the first."""

    def adopt(self, other: RemoteHost) -> None:
        """Use the settings of another host, its watcher, and what that offers."""
        self.settings, self._access = other.settings, other._access
        self.description, self._described_at = other.description, other._described_at

    @property
    def url(self) -> str:
        return self._access.url

    @property
    def windows(self) -> tuple[Window, ...]:
        return () if self.description is None else self.description.served_windows()

    @property
    def max_staleness(self) -> float:
        return UNKNOWN_STALENESS_S if self.description is None else self.description.max_staleness_s

    def now(self) -> float:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def renew(self) -> bool:
        """See hosting.LoadAccess for the contract."""
        try:
            access = await asyncio.to_thread(read_access, self.settings)
            if access == self._access and self._clock.monotonic() - self._described_at < DESCRIBE_EVERY_S:
                return False
            client = WatcherClient(access.url, token=access.token, tls=access.tls(), timeout=TIMEOUT_S, retries=0)
        except (OSError, ValueError) as error:
            raise WatcherError("credentials", f"cannot use the files of [extender]: {file_reason(error)}") from error
        try:
            described = await client.describe()
            described.served_windows()
        except WatcherError as error:
            raise _with_cure(error, access.url) from error
        finally:
            await client.close()
        changed = (described, access) != (self.description, self._access)
        self.description, self._access = described, access
        self._described_at = self._clock.monotonic()
        return changed

    def client(self, needs: DataNeeds) -> WatcherClient:
        windows, offered = self.windows, self.description
        forecasts = None if offered is None else offered.forecasts
        horizon = needs.horizon if forecasts is not None and needs.horizon in forecasts.horizons else ""
        return WatcherClient(
            self._access.url,
            window=windows[-1].label if windows else None,
            types=TYPES,
            operators=operators_for(horizon),
            horizon=horizon,
            usages=needs.usages and offered is not None and offered.has_usages,
            pods=needs.pods,
            minutes=needs.minutes and offered is not None and offered.has_minutes,
            token=self._access.token,
            tls=self._access.tls(),
            interval=LOOK_EVERY_S,
            timeout=TIMEOUT_S,
            retries=0,
            monotonic=self._clock.monotonic,
        )

    def unmet(self, needs: DataNeeds) -> tuple[str, str] | None:
        """See hosting.LoadAccess for the contract."""
        offered = self.description
        if offered is None:
            return None
        where = f"which the watcher at {self.url} (version {offered.version}) does not offer"
        if needs.usages and not offered.has_usages:
            return f"koordlet's usages (/api/v1/columns?aggregate=koordlet), {where}", UPGRADE
        if needs.minutes and not offered.has_minutes:
            return f"the minutes of pods (/api/v1/pods?minutes=), {where}", UPGRADE
        if needs.pods and offered.pods is not None and offered.pods.reason:
            cure = 'use a source with pod usage (docs/reference/pods.md) and refresh.pods = "auto" in the watcher'
            return f"pod usage (/api/v1/pods), {where}: {offered.pods.reason}", cure
        if needs.horizon and offered.forecasts is None:
            return f"forecasts (/api/v1/columns?operator=FORECAST), {where}", UPGRADE
        there = () if offered.forecasts is None else offered.forecasts.horizons
        return unmet_forecasts(needs.horizon, there, where=f" in the watcher at {self.url}")
