"""What pods use, from the node agents: each knows the pods of its node, whatever the source of the nodes' load is.

An agent reads control groups in every cycle anyway, so what it tells is some seconds old and needs neither cAdvisor nor
metrics-server. Agents are asked side by side, within one budget of time: those that do not answer cost their own pods,
and one finding.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import numpy as np
from aiohttp import hdrs

from watcher import __version__
from watcher.agents.discovery import AgentPlaces, Place, Trouble, places_of
from watcher.core.koordinator.report import Capacity
from watcher.core.kubernetes.node_facts import KnowsCapacities, KnowsNodes, ListsNodes
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.pods.table import PODS, PodOrigin, PodUsage
from watcher.core.review.findings import some_of
from watcher.model import Finding, FindingKind, Remedy
from watcher.platform.net.dns import get_from
from watcher.platform.net.http_body import read_at_most
from watcher.providers.base import (
    Fetch,
    NoPodUsage,
    PodFetch,
    Provider,
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderUnreachable,
)
from watcher.providers.http_client import bearer, translated

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

SOURCE = "Agents"
PATH = "/pods"
AT_ONCE = 64
"""Agents that are asked at a time."""
BUDGET_S = 15.0
"""So long all of them together have: a fourth of the minute until they are asked again."""
UNHEARD = (
    "Do the agents listen at their pods' addresses (agent.metrics_host), and are port and ca_file of [agents] right?"
)
LARGEST = 4 << 20
"""Bytes of an answer: two hundred pods are 30 kB."""


class UsedByPod(msgspec.Struct, frozen=True, gc=False):
    """What a pod used over the agent's last cycles; None where the agent could not read it."""

    namespace: str
    name: str
    cores: float | None = None
    bytes: float | None = None


class PodsOfNode(msgspec.Struct, frozen=True, gc=False):
    """An agent's answer: the pods of its node at `time` (unix seconds), cores averaged over `span_s` seconds, bytes of
    working set."""

    node: str
    time: float
    span_s: float
    pods: tuple[UsedByPod, ...]


_ANSWER = msgspec.json.Decoder(PodsOfNode)


@dataclass(slots=True)
class _Told:
    """What the agents said so far, why others said nothing, by address, and why some are not even known."""

    unknown: tuple[Trouble, ...]
    answers: list[PodsOfNode] = field(default_factory=list)
    silent: dict[str, ProviderError] = field(default_factory=dict)


class AgentPods:
    """The agents at `places`. `timeout` (seconds) is for one of them, `budget` for all; `at_once` are asked at a
    time."""

    def __init__(
        self,
        places: AgentPlaces,
        *,
        token_file: str = "",
        ca_file: str = "",
        timeout: float,
        budget: float = BUDGET_S,
        at_once: int = AT_ONCE,
    ) -> None:
        self._places = places
        self._token_file = token_file
        self._ca_file = ca_file
        self._timeout = timeout
        self._budget = budget
        self._at_once = at_once
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Hang up."""
        await self._places.close()
        if self._session is not None:
            await self._session.close()

    async def fetch(self, now: float) -> PodFetch:
        """What all agents know at the moment. Raises ProviderError where none answers, and NoPodUsage where those that
        do know of no pod."""
        session = self._open()
        headers = bearer("agents.token_file", self._token_file)
        found = await self._places.find()
        told = _Told(found.troubles)
        waiting = iter(found.places)
        try:
            async with asyncio.timeout(self._budget), asyncio.TaskGroup() as asking:
                for _ in range(self._at_once):
                    asking.create_task(self._ask_on(session, waiting, headers, told))
        except TimeoutError:
            late = ProviderUnreachable(f"its turn did not come within {self._budget:g} s", hint=UNHEARD)
            told.silent |= {place.name: late for place in waiting}
        if not told.answers:
            raise _worst(told)
        fetch = await asyncio.to_thread(read_pods, told.answers, _findings(told, now))
        if not fetch.usage.pods:
            raise NoPodUsage(f"{len(told.answers)} node agents answer, and none of them knows of a pod")
        return fetch

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            try:
                tls = ssl.create_default_context(cafile=self._ca_file or None)
            except (OSError, ValueError) as error:
                raise ProviderRefused(f"agents.ca_file {self._ca_file} cannot be used: {error}") from error
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._at_once, ssl=tls),
                timeout=aiohttp.ClientTimeout(total=self._timeout),
                headers={hdrs.USER_AGENT: f"load-watcher/{__version__}"},
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def _ask_on(
        self, session: aiohttp.ClientSession, waiting: Iterator[Place], headers: dict[str, str], told: _Told
    ) -> None:
        """One agent after the other, until there are no more."""
        for place in waiting:
            try:
                told.answers.append(await self._ask(session, place, headers))
            except ProviderError as error:
                told.silent[place.name] = error
            except (aiohttp.ClientError, OSError) as error:
                told.silent[place.name] = ProviderUnreachable(
                    str(translated(error, tls=place.url.scheme == "https")), hint=UNHEARD
                )
            except asyncio.CancelledError:
                told.silent[place.name] = ProviderUnreachable("it does not answer in time", hint=UNHEARD)
                raise

    async def _ask(self, session: aiohttp.ClientSession, place: Place, headers: dict[str, str]) -> PodsOfNode:
        async with get_from(session, place.url.with_path(PATH), of=place.of, headers=headers) as response:
            body = await read_at_most(response.content, LARGEST)
            if response.status in (401, 403):
                raise ProviderRefused(
                    f"it answers {response.status}", hint="agents.token_file is to have the token of the agents."
                )
            if response.status != 200:
                raise ProviderUnreachable(f"it answers {response.status}", hint="Its log says why.")
        if body is None:
            raise ProviderMalformed(f"its answer is larger than {LARGEST >> 20} MiB")
        try:
            return _ANSWER.decode(body)
        except msgspec.DecodeError as error:
            raise ProviderMalformed(
                f"its answer is not an agent's: {error}", hint="Is another service on that port? [agents] names it."
            ) from None


def _worst(told: _Told) -> ProviderError:
    """Where nobody answers, why the first is silent, or is not known."""
    if not told.silent:
        trouble = told.unknown[0]
        kind = ProviderRefused if trouble.refused else ProviderUnreachable
        return kind(f"no node agent is known; {trouble.where}: {trouble.message}", hint=trouble.hint)
    place = min(told.silent)
    error = told.silent[place]
    return type(error)(f"none of {len(told.silent)} node agents tells of pods; {place}: {error}", hint=error.hint)


def _findings(told: _Told, now: float) -> tuple[Finding, ...]:
    """One for all that are silent or not known."""
    reasons = [f"{each.where}: {each.message}. {each.hint}" for each in told.unknown]
    if told.silent:
        place = min(told.silent)
        error = told.silent[place]
        every = len(told.answers) + len(told.silent)
        what = f"{len(told.silent)} of {every} node agents tell nothing of pods ({some_of(told.silent)})"
        reasons.insert(0, f"{what}; {place}: {error}. {error.hint}".rstrip())
    if not reasons:
        return ()
    return (Finding(FindingKind.QUERY_FAILED, "", PODS, now, " ".join(reasons), Remedy.LEFT_OUT),)


def read_pods(answers: Iterable[PodsOfNode], findings: tuple[Finding, ...]) -> PodFetch:
    """The answers as columns, whatever order they came in."""
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
    return PodFetch(
        usage, PodOrigin(SOURCE, f"{asked}, cores", round(span, 3), f"{asked}, bytes", "working_set"), findings
    )


class WithAgents:
    """A source of nodes as it is, of whose pods the agents tell."""

    def __init__(self, provider: Provider, agents: AgentPods) -> None:
        self._provider = provider
        self._agents = agents

    @property
    def source(self) -> str:
        """The name on the wire, of the nodes' source."""
        return self._provider.source

    @property
    def remembers(self) -> bool:
        """As the source of the nodes."""
        return self._provider.remembers

    async def start(self) -> None:
        """As the source of the nodes."""
        await self._provider.start()

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """As the source of the nodes."""
        return await self._provider.fetch(since, until, only=only)

    async def fetch_pods(self, now: float) -> PodFetch:
        """What the agents know. Raises ProviderError."""
        return await self._agents.fetch(now)

    async def capacities(self) -> Mapping[str, Capacity]:
        """As the source of the nodes; nothing where it knows none."""
        return await self._provider.capacities() if isinstance(self._provider, KnowsCapacities) else {}

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        """As the source of the nodes; None where it knows none."""
        return self._provider.node_metadata(node) if isinstance(self._provider, KnowsNodes) else None

    def node_names(self) -> Collection[str] | None:
        """As the source of the nodes; None where it knows none."""
        return self._provider.node_names() if isinstance(self._provider, ListsNodes) else None

    async def close(self) -> None:
        """Both."""
        await self._agents.close()
        await self._provider.close()


def with_agents(provider: Provider, settings: Settings) -> Provider:
    """The source of nodes, with pods from the agents where the settings say so."""
    agents = settings.agents
    places = places_of(settings, urls={"agents.urls": agents.urls}, pods={"agents.pods": agents.pods})
    if places is None:
        return provider
    asked = AgentPods(
        places,
        token_file=str(agents.token_file or ""),
        ca_file=str(agents.ca_file or ""),
        timeout=agents.timeout,
    )
    return WithAgents(provider, asked)
