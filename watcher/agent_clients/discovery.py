"""Discovery of node agents and QoS Resource Managers: by host name or by pod selector.

A name may have many addresses, as that of a headless Service has. Pods are found by their labels through the Kubernetes
API, which also returns each pod's node and readiness. Requests are sent only to discovered endpoints. Problems that
prevent discovery are returned together with the endpoints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

import msgspec
from yarl import URL

from watcher.core.config.settings import Settings
from watcher.core.kubernetes.errors import KubeError, KubeRefused, KubeUnreachable
from watcher.core.kubernetes.objects import Condition
from watcher.core.kubernetes.wire import MinimalMetadata, Resource
from watcher.core.pods.selector import PodSelection
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import AccessFinder, own_namespace
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.parameters import Selector
from watcher.platform.kube.settings import KubernetesSettings
from watcher.platform.net.dns import addresses_of
from watcher.platform.net.resolver import HINT as NAMES_HINT
from watcher.platform.net.resolver import NameServerSilent, unanswered

TIMEOUT_S = 10.0
"""Timeout in seconds for the addresses of a name, and for the first list of pods."""
CACHE_S = 30.0
"""Cache time of the addresses of names in seconds; pods are watched instead."""
SHOWN = 3
"""Number of unavailable pods that a message names."""
DOCTOR_HINT = "Run load-watcher doctor to check the access to the Kubernetes API."


@dataclass(frozen=True, slots=True)
class AgentEndpoint:
    """An endpoint that may be requested: `url` contains its address, `server_name` the name for the Host header and the
    certificate. `node` is "" if unknown."""

    url: URL
    server_name: URL
    node: str = ""

    @property
    def name(self) -> str:
        """Address and port; users select the endpoint by this name."""
        return self.url.raw_authority  # with brackets around an IPv6 address


@dataclass(frozen=True, slots=True)
class DiscoveryProblem:
    """The reason why some or all endpoints of `where`, a name or a pod selection, are missing. `refused`: do not
    retry."""

    where: str
    message: str
    hint: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class DiscoveryResult:
    """The endpoints that may be requested now, and the problems of missing endpoints."""

    places: tuple[AgentEndpoint, ...] = ()
    troubles: tuple[DiscoveryProblem, ...] = ()


class EndpointSource(Protocol):
    """A source of endpoints: a list of names or a pod selection."""

    async def find(self) -> DiscoveryResult:
        """Return the current endpoints. Does not raise; failures are in `troubles`."""

    async def close(self) -> None:
        """Close connections and stop background tasks."""


class AgentDiscovery:
    """The endpoints of several sources, each address once."""

    def __init__(self, *sources: EndpointSource) -> None:
        self._sources = sources

    async def find(self) -> DiscoveryResult:
        """Return the current endpoints. The first call waits for all sources, at most TIMEOUT_S seconds."""
        found = await asyncio.gather(*(source.find() for source in self._sources))
        # if two sources have an address, the later source wins, because its endpoint includes the node
        each = {place.name: place for some in found for place in some.places}
        return DiscoveryResult(tuple(each.values()), tuple(trouble for some in found for trouble in some.troubles))

    async def close(self) -> None:
        """Close all sources; their endpoints are no longer updated."""
        for source in self._sources:
            await source.close()


# --- by name ---------------------------------------------------------------------------------------------------------


class NamedEndpoints:
    """Endpoints at all addresses of the names in `urls`, which come from the setting `key`."""

    def __init__(self, urls: Sequence[str], *, key: str) -> None:
        self._urls = [URL(url) for url in urls]
        self._key = key
        self._known = DiscoveryResult()
        self._until = float("-inf")
        self._looking = asyncio.Lock()

    async def find(self) -> DiscoveryResult:
        """Return the endpoints, cached for CACHE_S seconds; a name without an address is reported in `troubles`."""
        async with self._looking:
            if time.monotonic() >= self._until:
                found = await asyncio.gather(*map(self._resolved, self._urls))
                places = tuple(each for some in found if not isinstance(some, DiscoveryProblem) for each in some)
                self._known = DiscoveryResult(
                    places, tuple(each for each in found if isinstance(each, DiscoveryProblem))
                )
                self._until = time.monotonic() + CACHE_S
            return self._known

    async def _resolved(self, url: URL) -> list[AgentEndpoint] | DiscoveryProblem:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return [AgentEndpoint(url.with_host(address), url) for address in await addresses_of(url)]
        except (TimeoutError, NameServerSilent):
            return DiscoveryProblem(
                url.authority, unanswered([url.host or ""]) or "no name server has responded", NAMES_HINT
            )
        except (OSError, UnicodeError):
            hint = f"Set {self._key} to the name of a headless Service with ready pods, or of a host."
            return DiscoveryProblem(url.authority, "the name has no address", hint)

    async def close(self) -> None:
        """Does nothing, because names need no connection."""


# --- by label --------------------------------------------------------------------------------------------------------


class _PodMetadata(MinimalMetadata, frozen=True, rename="camel", gc=False):
    deletion_timestamp: str | None = None


class _PodSpec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    node_name: str = ""


class _PodStatus(msgspec.Struct, frozen=True, rename={"pod_ip": "podIP"}, gc=False):
    phase: str = ""
    pod_ip: str = ""
    conditions: tuple[Condition, ...] = ()


class ServingPod(msgspec.Struct, frozen=True, gc=False):
    """The fields of a pod that give its node, its address, and its readiness."""

    metadata: _PodMetadata = _PodMetadata()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def trouble(self) -> str:
        """The reason why the pod must not be requested, "" if it may be."""
        if self.metadata.deletion_timestamp is not None:
            return "is terminating"
        if self.status.phase != "Running":
            return f"is {self.status.phase or 'in an unknown phase'}"
        if not any(each.type == "Ready" and each.status == "True" for each in self.status.conditions):
            return "is not ready"
        return address_problem(self.status.pod_ip)

    def __str__(self) -> str:
        return f"{self.metadata.name} on {self.spec.node_name}" if self.spec.node_name else self.metadata.name


SERVING_PODS: Resource[ServingPod] = Resource("", "v1", "pods", ServingPod)


def address_problem(text: str) -> str:
    """Return why this address must not be requested, "" if it may be. A writer of pod statuses must not be able to
    redirect requests to link-local addresses, such as the metadata service of a cloud."""
    try:
        address = ip_address(text)
    except ValueError:
        return "has no address"
    address = getattr(address, "ipv4_mapped", None) or address
    odd = address.is_link_local or address.is_multicast or address.is_unspecified
    return f"has {text}, which is not a valid pod address" if odd else ""


class PodEndpoints:
    """Endpoints of the pods of a selection, which comes from the setting `key`. A background task watches the pods from
    the first `find` on. `close` also closes `client`; `namespace` is the pod's own namespace, for a selection without
    one."""

    def __init__(self, selection: PodSelection, client: KubeClient, *, key: str, namespace: str = "") -> None:
        self._selection = selection
        self._client = client
        self._key = key
        self._namespace = selection.namespace or namespace
        self._informer = Informer(
            client, SERVING_PODS, selector=Selector(labels=selection.selector, namespace=self._namespace)
        )
        self._began = False

    async def find(self) -> DiscoveryResult:
        """Return the running and ready pods, at their current addresses."""
        if not self._namespace:
            hint = f"Set {self._key} to a table with selector and namespace."
            return self._not_found(
                "no namespace is set, and load-watcher does not run in a pod (default: the pod's namespace)",
                hint,
                refused=True,
            )
        if not self._began:
            self._began = True
            await self._informer.start()
        error = await self._unlisted()
        if error is not None:
            return self._not_found(str(error), error.hint or DOCTOR_HINT, refused=isinstance(error, KubeRefused))
        pods = [self._informer.objects[key] for key in sorted(self._informer.objects)]
        places = tuple(self._place(pod) for pod in pods if not pod.trouble)
        return DiscoveryResult(places, tuple(self._troubles(pods)))

    async def _unlisted(self) -> KubeError | None:
        """Return why the pods are unknown; None once they were listed, even if the list is old. If the API has since
        refused access, the old list is not used."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._informer.wait()
        except TimeoutError:
            return KubeUnreachable("the Kubernetes API has not returned the list of pods yet")
        except KubeError as error:
            return error
        return self._informer.error if isinstance(self._informer.error, KubeRefused) else None

    async def close(self) -> None:
        """Stop watching the pods, and close the client."""
        await self._informer.close()
        await self._client.close()

    @property
    def _where(self) -> str:
        return f"pods with {self._selection.selector} in {self._namespace or 'no namespace'}"

    def _not_found(self, message: str, hint: str, *, refused: bool = False) -> DiscoveryResult:
        return DiscoveryResult((), (DiscoveryProblem(self._where, message, hint, refused),))

    def _place(self, pod: ServingPod) -> AgentEndpoint:
        name, port = self._selection.tls_server_name, self._selection.port
        url = URL.build(scheme="https" if name else "http", host=pod.status.pod_ip, port=port)
        return AgentEndpoint(url, url.with_host(name) if name else url, pod.spec.node_name)

    def _troubles(self, pods: Sequence[ServingPod]) -> Iterator[DiscoveryProblem]:
        look = f"kubectl -n {self._namespace} get pods -l '{self._selection.selector}'"
        if not pods:
            yield DiscoveryProblem(self._where, "no pods found", f"{look} must list the pods; check {self._key}.")
        waiting = {str(pod): pod.trouble for pod in pods if pod.trouble}
        if waiting:
            some = "; ".join(f"{pod} {waiting[pod]}" for pod in sorted(waiting)[:SHOWN])
            more = "; …" if len(waiting) > SHOWN else ""
            message = f"{len(waiting)} of {len(pods)} are unavailable: {some}{more}"
            yield DiscoveryProblem(self._where, message, f"Check the pods: {look}")
        odd = self._informer.undecodable
        if odd:
            first = min(odd)
            yield DiscoveryProblem(
                self._where, f"cannot read {first}: {odd[first]}", f"Check the object: {look} -o yaml"
            )
        error = self._informer.error
        if error is not None:
            yield DiscoveryProblem(
                self._where, f"the list of pods may be out of date: {error}", error.hint or DOCTOR_HINT
            )


# --- from the settings -----------------------------------------------------------------------------------------------


def discovery_from_settings(
    settings: Settings, section: str, *, urls: Sequence[str] | None, pods: PodSelection | None
) -> AgentDiscovery | None:
    """Build the discovery for the settings `urls` and `pods` of a section; None if neither names any."""
    sources: list[EndpointSource] = []
    if urls:
        sources.append(NamedEndpoints(urls, key=f"{section}.urls"))
    if pods is not None:
        access = AccessFinder.of(*settings[KubernetesSettings].access)
        sources.append(PodEndpoints(pods, KubeClient(access), key=f"{section}.pods", namespace=own_namespace()))
    return AgentDiscovery(*sources) if sources else None
