"""HTTP client for the discovered node agents and QoS Resource Managers."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Token and CA certificates for the endpoints of a section of the settings; "" for none. `timeout` is in
    seconds."""

    section: str = "agents"
    token_file: str = ""
    ca_file: str = ""
    timeout: float = 3.0


class AgentClient:
    """Sends GET requests to discovered endpoints only: without redirects, with the token of the section's token_file,
    which is read for each request."""

    def __init__(self, discovery: AgentDiscovery, options: ClientOptions, *, at_once: int = AT_ONCE) -> None:
        self.section = options.section
        self._discovery = discovery
        self._options = options
        self._at_once = at_once
        self._session: aiohttp.ClientSession | None = None

    async def find(self) -> DiscoveryResult:
        """Return the current endpoints and the problems of discovery. Does not raise."""
        return await self._discovery.find()

    async def get(self, endpoint: AgentEndpoint, path: str, *, largest: int) -> tuple[int, bytes]:
        """Return status and body of a path, with its query. `largest` is the limit of the body in bytes. Raises
        ProviderRefused for an unusable token or CA file, AnswerTooLarge, aiohttp.ClientError, and OSError."""
        session = self._open()
        headers = bearer(f"{self.section}.token_file", self._options.token_file)
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
            ca_file = self._options.ca_file
            try:
                tls = client_context(ca_file=ca_file or None)
            except (OSError, ValueError) as error:
                raise ProviderRefused(
                    f"{self.section}.ca_file {ca_file} cannot be used: {file_reason(error)}"
                ) from error
            self._session = client_session(
                tls=tls,
                connector={"limit": self._at_once},
                timeout=aiohttp.ClientTimeout(total=self._options.timeout),
                headers={hdrs.USER_AGENT: f"load-watcher/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def client_from_settings(settings: Settings, section: type[AgentsSettings] | type[QrmsSettings]) -> AgentClient | None:
    """Build the client of the endpoints in the section, None if the section names none."""
    named = settings[section]
    discovery = discovery_from_settings(settings, section.section, urls=named.urls, pods=named.pods)
    if discovery is None:
        return None
    options = ClientOptions(section.section, str(named.token_file or ""), str(named.ca_file or ""), named.timeout)
    return AgentClient(discovery, options)
