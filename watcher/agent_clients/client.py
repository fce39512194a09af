"""HTTP client for the discovered node agents and QoS Resource Managers."""

from __future__ import annotations

import aiohttp
from aiohttp import hdrs
from yarl import URL

from watcher import __version__
from watcher.agent_clients.discovery import AgentDiscovery, AgentEndpoint, DiscoveryResult, discovery_from_settings
from watcher.agent_clients.settings import AgentsSettings, QrmsSettings
from watcher.core.config.settings import Settings
from watcher.platform.net.dns import get_from
from watcher.platform.net.http_body import answer_bound, read_bounded
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context, file_reason
from watcher.sources.errors import ProviderRefused
from watcher.sources.http import bearer

AT_ONCE = 64
"""Maximum number of concurrent requests of a client."""


class AgentClient:
    """Sends GET requests to discovered endpoints only: without redirects, with the token of the section's token_file,
    which is read for each request."""

    def __init__(
        self, discovery: AgentDiscovery, settings: AgentsSettings | QrmsSettings, *, at_once: int = AT_ONCE
    ) -> None:
        self.section = type(settings).section
        self._discovery = discovery
        self._settings = settings
        self._at_once = at_once
        self._session: aiohttp.ClientSession | None = None

    async def find(self) -> DiscoveryResult:
        """Return the current endpoints and the problems of discovery. Does not raise."""
        return await self._discovery.find()

    async def get(self, endpoint: AgentEndpoint, path: str, *, largest: int) -> tuple[int, bytes]:
        """Return status and body of a path, with its query. `largest` is the limit of the body in bytes. Raises
        ProviderRefused for an unusable token or CA file, AnswerTooLarge, aiohttp.ClientError, and OSError."""
        session = self._open()
        headers = bearer(f"{self.section}.token_file", self._settings.token_file)
        target = URL(f"{str(endpoint.url).rstrip('/')}{path}")
        async with get_from(session, target, of=endpoint.server_name, headers=headers) as response:
            return response.status, await read_bounded(response, answer_bound(largest))

    async def close(self) -> None:
        """Stop the discovery and close all connections."""
        await self._discovery.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            ca_file = self._settings.ca_file
            try:
                tls = client_context(ca_file=ca_file)
            except (OSError, ValueError) as error:
                raise ProviderRefused(
                    f"{self.section}.ca_file {ca_file} cannot be used: {file_reason(error)}"
                ) from error
            self._session = client_session(
                tls=tls,
                connector={"limit": self._at_once},
                timeout=aiohttp.ClientTimeout(total=self._settings.timeout),
                headers={hdrs.USER_AGENT: f"load-watcher/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def client_from_settings(settings: Settings, section: type[AgentsSettings] | type[QrmsSettings]) -> AgentClient | None:
    """Build the client of the endpoints in the section, None if the section names none."""
    named = settings[section]
    discovery = discovery_from_settings(settings, section.section, urls=named.urls, pods=named.pods)
    return None if discovery is None else AgentClient(discovery, named)
