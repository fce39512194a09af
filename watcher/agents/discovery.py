"""Where node agents and QoS Resource Managers are: at addresses that names have, or that pods have.

A name may stand for many, as that of a headless Service does. Pods are found by their labels through the Kubernetes
API, which also tells the node of each, and which of them are not ready to be asked. Who is found may be asked; nobody
else may be. What keeps anybody from being found is told beside those that are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Protocol

import msgspec
from yarl import URL

from watcher.core.kubernetes.errors import KubeError, KubeRefused, KubeUnreachable
from watcher.core.kubernetes.objects import Condition
from watcher.core.kubernetes.wire import Metadata, Resource
from watcher.core.pods.selector import PodSelection
from watcher.platform.kube.client import KubeClient, Selector
from watcher.platform.kube.credentials import AccessFinder, own_namespace
from watcher.platform.kube.informer import Informer
from watcher.platform.net.dns import addresses_of

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

PATIENCE_S = 10.0
"""For the addresses of a name, and for the first list of pods."""
KNOWN_S = 30.0
"""Addresses of names; pods are followed."""
SHOWN = 3
"""Pods that are named, of those that cannot be asked."""
UNTOLD = "load-watcher doctor says what is wrong with the Kubernetes API."


@dataclass(frozen=True, slots=True)
class Place:
    """One that may be asked: at `url`, which has an address in it, in the name of `of`. `node` is "" where nobody tells
    of it."""

    url: URL
    of: URL
    node: str = ""

    @property
    def name(self) -> str:
        """By which people ask for it: address and port."""
        return self.url.raw_authority  # in which an IPv6 address has its brackets


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why some or all of `where`, a name or a selection of pods, are not found. `refused`: another try is of no use."""

    where: str
    message: str
    hint: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Who may be asked now, and why others may not."""

    places: tuple[Place, ...] = ()
    troubles: tuple[Trouble, ...] = ()


class Source(Protocol):
    """What knows of some of them."""

    async def find(self) -> Found:
        """Those that there are now; does not fail."""

    async def close(self) -> None:
        """Hang up."""


class AgentPlaces:
    """All that any of these sources knows of, each address once."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    async def find(self) -> Found:
        """Those that there are now. Waits for what is asked for the first time, at most PATIENCE_S."""
        found = await asyncio.gather(*(source.find() for source in self._sources))
        # of two that know of an address the later one counts, which is the one that has the node
        each = {place.name: place for some in found for place in some.places}
        return Found(tuple(each.values()), tuple(trouble for some in found for trouble in some.troubles))

    async def close(self) -> None:
        """Hang up."""
        for source in self._sources:
            await source.close()


# --- by name ---------------------------------------------------------------------------------------------------------


class NamedPlaces:
    """All addresses of the names in `urls`, which are of the setting `key`."""

    def __init__(self, urls: Sequence[str], *, key: str) -> None:
        self._urls = [URL(url) for url in urls]
        self._key = key
        self._known = Found()
        self._until = float("-inf")
        self._looking = asyncio.Lock()

    async def find(self) -> Found:
        """Those that were found within the last KNOWN_S; a name that has no address is a trouble."""
        async with self._looking:
            if time.monotonic() >= self._until:
                found = await asyncio.gather(*map(self._resolved, self._urls))
                places = tuple(each for some in found if not isinstance(some, Trouble) for each in some)
                self._known = Found(places, tuple(each for each in found if isinstance(each, Trouble)))
                self._until = time.monotonic() + KNOWN_S
            return self._known

    async def _resolved(self, url: URL) -> list[Place] | Trouble:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return [Place(url.with_host(address), url) for address in await addresses_of(url)]
        except (OSError, UnicodeError):  # TimeoutError is an OSError
            hint = f"{self._key} is to name a headless Service whose pods are ready, or a host."
            return Trouble(url.authority, "the name has no address", hint)

    async def close(self) -> None:
        """Nothing is held."""


# --- by label --------------------------------------------------------------------------------------------------------


class _Metadata(Metadata, frozen=True, rename="camel", gc=False):
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel", gc=False):
    node_name: str = ""


class _Status(msgspec.Struct, frozen=True, rename={"pod_ip": "podIP"}, gc=False):
    phase: str = ""
    pod_ip: str = ""
    conditions: tuple[Condition, ...] = ()


class ServingPod(msgspec.Struct, frozen=True, gc=False):
    """A pod, cut down to where it is and whether it may be asked."""

    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def trouble(self) -> str:
        """Why it may not be asked; "" if it may."""
        if self.metadata.deletion_timestamp is not None:
            return "is ending"
        if self.status.phase != "Running":
            return f"is {self.status.phase or 'of no phase'}"
        if not any(each.type == "Ready" and each.status == "True" for each in self.status.conditions):
            return "is not ready"
        return trouble_of(self.status.pod_ip)

    def __str__(self) -> str:
        return f"{self.metadata.name} on {self.spec.node_name}" if self.spec.node_name else self.metadata.name


SERVING_PODS: Resource[ServingPod] = Resource("", "v1", "pods", ServingPod)


def trouble_of(text: str) -> str:
    """Why nobody may be asked at this address; "" if they may. Whoever writes a pod's status is not to choose for us
    what is at our end of the line, like the service of a cloud that tells a machine who it is."""
    try:
        address = ip_address(text)
    except ValueError:
        return "has no address"
    address = getattr(address, "ipv4_mapped", None) or address
    odd = address.is_link_local or address.is_multicast or address.is_unspecified
    return f"has {text}, which is no address of a pod" if odd else ""


class SelectedPods:
    """The pods of a selection, which is the setting `key`, as a background task keeps them from the first question on.
    `client` is closed with it; `namespace` is ours, for a selection that names none."""

    def __init__(self, selection: PodSelection, client: KubeClient, *, key: str, namespace: str = "") -> None:
        self._selection = selection
        self._client = client
        self._key = key
        self._namespace = selection.namespace or namespace
        self._informer = Informer(
            client, SERVING_PODS, selector=Selector(labels=selection.selector, namespace=self._namespace)
        )
        self._began = False

    async def find(self) -> Found:
        """Those that run and are ready, at the addresses that the API has for them now."""
        if not self._namespace:
            hint = f"Set {self._key} to a table with selector and namespace."
            return self._not_found(
                "no namespace is named, and this is no pod, which would have one", hint, refused=True
            )
        if not self._began:
            self._began = True
            await self._informer.start()
        error = await self._unlisted()
        if error is not None:
            return self._not_found(str(error), error.hint or UNTOLD, refused=isinstance(error, KubeRefused))
        pods = [self._informer.objects[key] for key in sorted(self._informer.objects)]
        places = tuple(self._place(pod) for pod in pods if not pod.trouble)
        return Found(places, tuple(self._troubles(pods)))

    async def _unlisted(self) -> KubeError | None:
        """What keeps us from knowing the pods; None once they were listed, though it may be a while ago. Not so where
        we were refused since: with the right goes what it had let us know."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._informer.wait()
        except TimeoutError:
            return KubeUnreachable("the Kubernetes API has not told of them yet")
        except KubeError as error:
            return error
        return self._informer.error if isinstance(self._informer.error, KubeRefused) else None

    async def close(self) -> None:
        """Stop following, and hang up."""
        await self._informer.close()
        await self._client.close()

    @property
    def _where(self) -> str:
        return f"pods with {self._selection.selector} in {self._namespace or 'no namespace'}"

    def _not_found(self, message: str, hint: str, *, refused: bool = False) -> Found:
        return Found((), (Trouble(self._where, message, hint, refused),))

    def _place(self, pod: ServingPod) -> Place:
        name, port = self._selection.tls_server_name, self._selection.port
        url = URL.build(scheme="https" if name else "http", host=pod.status.pod_ip, port=port)
        return Place(url, url.with_host(name) if name else url, pod.spec.node_name)

    def _troubles(self, pods: Sequence[ServingPod]) -> Iterator[Trouble]:
        look = f"kubectl -n {self._namespace} get pods -l '{self._selection.selector}'"
        if not pods:
            yield Trouble(self._where, "there is none", f"{look} is to show them; {self._key} says which.")
        waiting = {str(pod): pod.trouble for pod in pods if pod.trouble}
        if waiting:
            some = "; ".join(f"{pod} {waiting[pod]}" for pod in sorted(waiting)[:SHOWN])
            more = "; …" if len(waiting) > SHOWN else ""
            told = f"{len(waiting)} of {len(pods)} cannot be asked: {some}{more}"
            yield Trouble(self._where, told, f"{look} shows why.")
        odd = self._informer.unread
        if odd:
            first = min(odd)
            yield Trouble(self._where, f"{first} cannot be read: {odd[first]}", f"{look} -o yaml shows it.")
        error = self._informer.error
        if error is not None:
            yield Trouble(self._where, f"they are those of the last list: {error}", error.hint or UNTOLD)


# --- from the settings -----------------------------------------------------------------------------------------------


def places_of(
    settings: Settings,
    *,
    urls: Mapping[str, Sequence[str] | None],
    pods: Mapping[str, PodSelection | None],
) -> AgentPlaces | None:
    """Who is named by these settings, values by their keys; None where none of them is set."""
    access = AccessFinder.of(kubeconfig=settings.kubeconfig, context=settings.kubernetes.context)
    sources: list[Source] = [NamedPlaces(named, key=key) for key, named in urls.items() if named is not None]
    sources += [
        SelectedPods(selection, KubeClient(access), key=key, namespace=own_namespace())
        for key, selection in pods.items()
        if selection is not None
    ]
    return AgentPlaces(*sources) if sources else None
