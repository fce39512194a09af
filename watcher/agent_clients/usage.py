"""Pod usage from the node agents, independent of the source of node load.

Each agent knows the pods of its node. It reads the cgroups in every cycle, so its values are a few seconds old and need
neither cAdvisor nor metrics-server. Agents are queried concurrently within one time budget. Pods of an agent that does
not respond are missing, and one finding lists these agents.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

import aiohttp
import msgspec
import numpy as np

from watcher.agent_clients.client import AT_ONCE, AgentClient, client_from_settings
from watcher.agent_clients.discovery import AgentEndpoint, DiscoveryProblem
from watcher.agent_clients.settings import AgentsSettings
from watcher.core.config.settings import Settings
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.node_facts import CapacityProvider, NodeLister, NodeMetadataProvider
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.pods.coverage import PodGaps
from watcher.core.pods.table import PODS, PodOrigin, PodUsage
from watcher.core.review.findings import some_of
from watcher.decoding.json_text import decode_json
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.net.http_body import AnswerTooLarge
from watcher.platform.net.redaction import release_frames
from watcher.sources.base import Fetch, NoPodUsage, PodFetch, Provider
from watcher.sources.errors import (
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderUnreachable,
    provider_error_of,
)

SOURCE = "Agents"
PATH = "/pods"
BUDGET_S = 15.0
"""Time budget in seconds for all agents: a quarter of the minute between two fetches."""
UNREACHABLE_HINT = (
    "Check that the agents listen on their pod addresses (agent.metrics_host), and check port and ca_file of [agents]."
)
LARGEST = 1 << 20
"""Maximum size of a response in bytes. 200 pods need 30 kB; up to AT_ONCE responses are read at a time."""


class AgentPodUsage(msgspec.Struct, frozen=True, gc=False):
    """Usage of a pod over the agent's last cycles; None if the agent could not read a value."""

    namespace: str
    name: str
    cores: float | None = None
    bytes: float | None = None


class AgentPodsResponse(msgspec.Struct, frozen=True, gc=False):
    """Response of an agent: the pods of its node at `time` (unix seconds), cores averaged over `span_s` seconds,
    bytes of the working set."""

    node: str
    time: float
    span_s: float
    pods: tuple[AgentPodUsage, ...]


@dataclass(slots=True)
class _AgentResponses:
    """Result of querying the agents: responses, errors by agent name, and discovery problems."""

    unknown: tuple[DiscoveryProblem, ...]
    answers: list[AgentPodsResponse] = field(default_factory=list)
    silent: dict[str, ProviderError] = field(default_factory=dict)


class AgentPods:
    """Reads pod usage from all agents that `client` discovers, within `budget` seconds; `at_once` is the number of
    concurrent requests."""

    def __init__(self, client: AgentClient, *, budget: float = BUDGET_S, at_once: int = AT_ONCE) -> None:
        self._client = client
        self._budget = budget
        self._at_once = at_once

    async def close(self) -> None:
        """Close the client and its discovery."""
        await self._client.close()

    async def fetch(self, now: float) -> PodFetch:
        """Current pod usage of all agents. `now` is in unix seconds. Raises ProviderError if no agent responds, and
        NoPodUsage if the responses contain no pods."""
        found = await self._client.find()
        message = _AgentResponses(found.troubles)
        waiting = iter(found.places)
        try:
            async with asyncio.timeout(self._budget), asyncio.TaskGroup() as asking:
                for _ in range(self._at_once):
                    asking.create_task(self._ask_on(waiting, message))
        except TimeoutError:
            late = ProviderUnreachable(f"not queried within the budget of {self._budget:g} s", hint=UNREACHABLE_HINT)
            message.silent |= {place.name: late for place in waiting}
        if not message.answers:
            raise _worst(message)
        fetch = await asyncio.to_thread(read_pods, message.answers, _findings(message, now))
        if not fetch.usage.pods:
            raise NoPodUsage(f"the responses of {len(message.answers)} node agents contain no pods")
        return fetch

    async def _ask_on(self, waiting: Iterator[AgentEndpoint], responses: _AgentResponses) -> None:
        """Query agents one by one until `waiting` is exhausted."""
        for place in waiting:
            try:
                responses.answers.append(await self._ask(place))
            except ProviderError as error:
                release_frames(error)
                responses.silent[place.name] = error
            except AnswerTooLarge as error:
                responses.silent[place.name] = ProviderMalformed(str(error), hint="Check the port in [agents].")
            except (aiohttp.ClientError, OSError) as error:
                responses.silent[place.name] = ProviderUnreachable(
                    str(provider_error_of(error, url=str(place.url))), hint=UNREACHABLE_HINT
                )
            except asyncio.CancelledError:
                responses.silent[place.name] = ProviderUnreachable("no response in time", hint=UNREACHABLE_HINT)
                raise

    async def _ask(self, place: AgentEndpoint) -> AgentPodsResponse:
        status, body = await self._client.get(place, PATH, largest=LARGEST)
        if status in (401, 403):
            raise ProviderRefused(f"status {status}", hint="Set agents.token_file to the file with the agents' token.")
        if status != 200:
            raise ProviderUnreachable(f"status {status}", hint="Check the log of the agent.")
        try:
            return decode_json(body, type=AgentPodsResponse)
        except msgspec.DecodeError as error:
            raise ProviderMalformed(
                f"not the response of an agent: {error}", hint="Check the port in [agents]."
            ) from None


def _worst(responses: _AgentResponses) -> ProviderError:
    """Error if no agent responded: the error of the first agent, or of the first discovery problem."""
    if not responses.silent:
        trouble = responses.unknown[0]
        kind = ProviderRefused if trouble.refused else ProviderUnreachable
        return kind(f"no node agents found; {trouble.where}: {trouble.message}", hint=trouble.hint)
    place = min(responses.silent)
    error = responses.silent[place]
    return type(error)(f"none of {len(responses.silent)} node agents reports pods; {place}: {error}", hint=error.hint)


def _findings(responses: _AgentResponses, now: float) -> tuple[Finding, ...]:
    """One finding about all agents that did not respond or were not found."""
    reasons = [f"{each.where}: {each.message}. {each.hint}" for each in responses.unknown]
    if responses.silent:
        place = min(responses.silent)
        error = responses.silent[place]
        every = len(responses.answers) + len(responses.silent)
        what = f"no pod usage from {len(responses.silent)} of {every} node agents ({some_of(responses.silent)})"
        reasons.insert(0, f"{what}; {place}: {error}. {error.hint}".rstrip())
    if not reasons:
        return ()
    return (Finding(FindingKind.QUERY_FAILED, "", PODS, now, " ".join(reasons), Remedy.LEFT_OUT),)


def read_pods(answers: Iterable[AgentPodsResponse], findings: tuple[Finding, ...]) -> PodFetch:
    """Convert the responses to arrays with one entry per pod, ordered by node."""
    ordered = sorted(answers, key=lambda each: (each.node, each.time))
    each = [(answer, pod) for answer in ordered for pod in answer.pods]
    usage = PodUsage(
        tuple((pod.namespace, pod.name) for _, pod in each),
        tuple(answer.node for answer, _ in each),
        np.array([answer.time for answer, _ in each], dtype=np.float64),
        np.array([math.nan if pod.cores is None else pod.cores for _, pod in each], dtype=np.float64),
        np.array([math.nan if pod.bytes is None else pod.bytes for _, pod in each], dtype=np.float64),
    )
    span = median(answer.span_s for answer in ordered) if ordered else 0.0
    asked = f"GET {PATH} of the node agents"
    origin = PodOrigin(SOURCE, f"{asked}, cores", round(span, 3), f"{asked}, bytes", "working_set")
    return PodFetch(usage, origin, findings, frozenset(answer.node for answer in ordered))


class ProviderWithAgents:
    """Provider that takes node load from one provider and pod usage from the agents."""

    def __init__(self, provider: Provider, agents: AgentPods) -> None:
        self._provider = provider
        self._agents = agents

    @property
    def source(self) -> str:
        """Source name of the node provider, as published."""
        return self._provider.source

    @property
    def remembers(self) -> bool:
        """Whether the node provider has samples from before the first fetch."""
        return self._provider.remembers

    async def start(self) -> None:
        await self._provider.start()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Samples of the node provider. Times are in unix seconds."""
        return await self._provider.fetch(since, until, only=only)

    async def fetch_pods(self, now: float) -> PodFetch:
        """Pod usage from the agents at `now` (unix seconds). Raises ProviderError."""
        return await self._agents.fetch(now)

    async def pod_gaps(self, now: float) -> PodGaps:
        """Why nodes have no pod usage: their agents did not respond to the last fetch."""
        return PodGaps("no node agent reports its pods; see the finding about the node agents, or run an agent on it")

    async def capacities(self) -> Mapping[str, Capacity]:
        """Node capacities of the node provider; empty if it has none."""
        return await self._provider.capacities() if isinstance(self._provider, CapacityProvider) else {}

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """Metadata of a node from the node provider; None if it has none."""
        return self._provider.node_metadata(node) if isinstance(self._provider, NodeMetadataProvider) else None

    def node_names(self) -> Collection[str] | None:
        """Node names of the node provider; None if it does not list nodes."""
        return self._provider.node_names() if isinstance(self._provider, NodeLister) else None

    async def close(self) -> None:
        """Close the agents' client and the node provider."""
        await self._agents.close()
        await self._provider.close()


def with_agents(provider: Provider, settings: Settings) -> Provider:
    """The provider itself, or a provider with pod usage from the agents if the settings enable it."""
    client = client_from_settings(settings, AgentsSettings) if settings[AgentsSettings].report_pods else None
    return provider if client is None else ProviderWithAgents(provider, AgentPods(client))
