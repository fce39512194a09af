"""The Prometheus that answers the agent's own queries, asked the way the watcher's provider asks its own."""

from __future__ import annotations

import asyncio
import time

from agent.state.queries import Sample, read_samples
from watcher.providers.prometheus_plans import Instant, PrometheusConfig
from watcher.providers.prometheus_transport import Transport


class PrometheusQuestions:
    """Asks the server of `config`, with its credentials, certificates and timeout."""

    def __init__(self, config: PrometheusConfig) -> None:
        self._timeout = config.timeout
        self._transport = Transport(config)
        self._started = False

    async def ask(self, expression: str) -> tuple[Sample, ...]:
        """What an expression is now. Raises ProviderError."""
        if not self._started:
            self._transport.start()
            self._started = True
        deadline = asyncio.get_running_loop().time() + self._timeout
        question = Instant(expression, time.time())
        reply = await self._transport.ask(question, expects="vector", read=read_samples, deadline=deadline)
        return reply.content

    async def close(self) -> None:
        """Hang up."""
        await self._transport.close()
