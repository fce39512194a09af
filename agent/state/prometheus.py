"""Prometheus client for the agent's own queries."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from agent.state.queries import Sample, read_samples
from watcher.sources.config import ConnectionConfig, InstantQuery
from watcher.sources.errors import ProviderError
from watcher.sources.prometheus_api import PrometheusClient

HINT = "Check agent.prometheus and agent.prometheus_token_file."
"""Replaces hints that name settings of the watcher's source, which the agent does not read."""


def prometheus_config(address: str, token_file: Path | None) -> ConnectionConfig:
    """The client configuration from the agent's settings."""
    return ConnectionConfig(address=address, token_file=str(token_file or ""), keys="agent.prometheus_")


class PrometheusQueryClient:
    """Queries the server of `config`, with its credentials, certificates and timeout."""

    def __init__(self, config: ConnectionConfig) -> None:
        self._timeout = config.timeout
        self._client = PrometheusClient(config)
        self._started = False

    async def ask(self, expression: str) -> tuple[Sample, ...]:
        """Evaluate an expression at the current time. Raises ProviderError."""
        if not self._started:
            self._client.start()
            self._started = True
        deadline = asyncio.get_running_loop().time() + self._timeout
        question = InstantQuery(expression, time.time())
        try:
            reply = await self._client.ask(question, expects="vector", read=read_samples, deadline=deadline)
        except ProviderError as error:
            if "provider." in error.hint:
                error.hint = HINT
            raise
        return reply.content

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._client.close()
