"""Dashboard check: whether the configured agents and QoS Resource Managers can be found."""

from __future__ import annotations

from collections.abc import Sequence

from watcher.agent_clients.client import AgentClient
from watcher.agent_clients.discovery import DiscoveryResult
from watcher.agent_clients.pages import EndpointKind, clients_by_kind
from watcher.core.config.settings import Settings
from watcher.core.messages import shorten_names
from watcher.platform.checks.examination import CheckContext
from watcher.platform.checks.results import CheckResult, count, ok, skipped, warn

CALLED = {EndpointKind.AGENT: "agent", EndpointKind.QRM: "QoS Resource Manager"}


async def dashboard(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the configured host names resolve and the label selectors find ready pods. Sends no page requests."""
    named = clients_by_kind(examination.get(Settings))
    if not named:
        return [skipped("no agents are configured in [agents] or [qrms]")]
    return [result for kind, client in named.items() for result in _reported(kind, await _found(client))]


async def _found(client: AgentClient) -> DiscoveryResult:
    try:
        return await client.find()
    finally:
        await client.close()


def _reported(kind: EndpointKind, found: DiscoveryResult) -> list[CheckResult]:
    results = [warn(f"{CALLED[kind]}, {each.where}: {each.message}", each.hint) for each in found.troubles]
    if found.places:
        where = [f"{place.node} ({place.name})" if place.node else place.name for place in found.places]
        results.insert(0, ok(f"{count(len(where), CALLED[kind])} found: {shorten_names(where)}"))
    return results
