"""The registered resource plug-ins of the manager: registration, absence, reported allocations, and capacity."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from agent.qrm.grpc.plugin_api import PAUSED, PluginCallError, Quantity, ResourcePluginClient
from agent.qrm.manager.allocation import AllocationInfo, Allocations
from agent.qrm.manager.request import may_be_of_node

log = logging.getLogger(__name__)

T = TypeVar("T")

UNREACHABLE = "UNAVAILABLE"
LATE = "DEADLINE_EXCEEDED"

PLUGIN_ABSENCE_GRACE_S = 300.0
"""Seconds after a plug-in has stopped until its resource counts as removed."""
PLUGIN_STARTUP_S = 10.0
"""Period after the registration of a plug-in, in seconds, in which an empty list of allocations is ignored."""


class PluginFailures:
    """The current failures of the plug-ins, by resource: the failing methods, "" for every method.

    One message is logged when a failure begins, and one when it ends: a round calls several methods of each plug-in, so
    a plug-in that has died would otherwise cause several messages in every round."""

    def __init__(self) -> None:
        self._failing: dict[str, set[str]] = {}
        self._silent: set[str] = set()

    def failed(self, error: PluginCallError, consequence: str) -> None:
        """A call has failed. An unreachable plug-in fails in every method; other failures concern one method."""
        if error.status == PAUSED:
            return  # the call that timed out has been reported
        if error.status in (UNREACHABLE, LATE):
            self._silent.add(error.resource)
        failing = self._failing.setdefault(error.resource, set())
        method = "" if error.status == UNREACHABLE else error.method
        if method not in failing:
            log.warning("%s; %s", error, consequence)
        failing.add(method)

    def succeeded(self, resource: str, method: str) -> None:
        """A call of the method has succeeded, so the plug-in responds."""
        self._silent.discard(resource)
        failing = self._failing.get(resource, set())
        if "" in failing:
            log.info("the plug-in for %s responds again", resource)
        elif method in failing:
            log.info("the plug-in for %s no longer fails in %s", resource, method)
        failing -= {"", method}

    def forget(self, resource: str) -> None:
        """The plug-in was registered or deregistered."""
        self._failing.pop(resource, None)
        self._silent.discard(resource)

    def responds(self, resource: str) -> bool:
        """Whether the plug-in has responded since the last call that did not reach it or timed out."""
        return resource not in self._silent


@dataclass(slots=True)
class RegisteredPlugin:
    """A resource and its plug-in. `endpoint` is None while no plug-in serves the resource: after a restart, and after
    the plug-in has stopped."""

    endpoint: ResourcePluginClient | None
    since: float
    stopped: float | None = None
    of_node: bool | None = None
    """Whether the resource is published in the node's status, as last reported by the plug-in; None if not reported
    yet."""
    remembers: bool = False
    """Whether the plug-in is known to have the allocations that it made before it registered."""


class RegisteredPlugins:
    """The resources with their plug-ins. `allocations` are those of the manager; `monotonic` returns seconds."""

    def __init__(self, allocations: Allocations, *, monotonic: Callable[[], float]) -> None:
        self.registrations = 0
        """Number of plug-in registrations, plus the number of plug-ins that reported their earlier allocations for the
        first time. An increase triggers new attempts to admit rejected pods."""
        self.failures = PluginFailures()
        self._allocations = allocations
        self._monotonic = monotonic
        self._served: set[str] = set()  # not those of the checkpoint: a plug-in may have allocated further resources
        self._overruled: set[tuple[str, str]] = set()
        # Resources from before the restart remain managed: pods that require them wait for their plug-in.
        self._plugins = {name: RegisteredPlugin(None, 0.0, stopped=monotonic()) for name in allocations.resources}

    async def register(self, resource: str, endpoint: ResourcePluginClient) -> None:
        """Make this the plug-in for the resource; the endpoint of the previous plug-in is closed."""
        before = self._plugins.get(resource)
        self._plugins[resource] = RegisteredPlugin(endpoint, self._monotonic())
        self.registrations += 1
        self.failures.forget(resource)
        self._served.add(resource)
        if before is not None and before.endpoint is not None and before.endpoint is not endpoint:
            await before.endpoint.close()

    async def deregister(self, resource: str, endpoint: ResourcePluginClient | None = None) -> None:
        """Deregister a stopped plug-in; its allocations remain. If `endpoint` is given, only if it is still the current
        endpoint."""
        known = self._plugins.get(resource)
        if known is None or known.endpoint is None or (endpoint is not None and known.endpoint is not endpoint):
            return
        self.failures.forget(resource)
        stopped, known.endpoint, known.stopped = known.endpoint, None, self._monotonic()
        await stopped.close()

    @property
    def states(self) -> dict[str, bool]:
        """By resource, whether a plug-in serves it now and responds."""
        return {
            name: known.endpoint is not None and self.failures.responds(name)
            for name, known in sorted(self._plugins.items())
        }

    def __contains__(self, resource: str) -> bool:
        """Whether the resource has a plug-in, or had one before."""
        return resource in self._plugins

    def endpoint(self, resource: str) -> ResourcePluginClient | None:
        """The plug-in that serves the resource now, None if there is none."""
        known = self._plugins.get(resource)
        return known.endpoint if known else None

    def live(self) -> list[tuple[str, ResourcePluginClient]]:
        """The resources that a plug-in currently serves, each with its plug-in, sorted by name."""
        return [(name, known.endpoint) for name, known in sorted(self._plugins.items()) if known.endpoint]

    def own(self, name: str, given: Mapping[str, T]) -> dict[str, T]:
        """The part of a plug-in's answer that concerns its own resource and resources without a plug-in. A plug-in may
        not overrule another plug-in; the attempt is logged once."""
        kept = {}
        for resource, value in given.items():
            if resource == name or resource not in self._served:
                kept[resource] = value
            elif (name, resource) not in self._overruled:
                self._overruled.add((name, resource))
                log.warning(
                    "ignoring the answers of the plug-in for %s about %s, which another plug-in serves", name, resource
                )
        return kept

    async def ask(self, name: str, method: str, call: Awaitable[T], *, otherwise: str) -> T | None:
        """The answer of a plug-in to the call of a method; None if it failed, which is logged when it begins, with the
        consequence `otherwise`."""
        try:
            answer = await call
        except PluginCallError as error:
            self.failures.failed(error, otherwise)
            return None
        self.failures.succeeded(name, method)
        return answer

    async def remove_pod(self, name: str, endpoint: ResourcePluginClient, uid: str) -> bool:
        """Release the allocations of an ended pod in a plug-in. Returns False if the plug-in failed."""
        try:
            await endpoint.remove_pod(uid)
        except PluginCallError as error:
            self.failures.failed(error, f"it still has the ended pod {uid}; trying again later")
            return False
        self.failures.succeeded(name, "RemovePod")
        return True

    async def remembers(self, name: str, endpoint: ResourcePluginClient) -> bool:
        """Whether a plug-in reports any of its earlier allocations. A plug-in without any has lost its state or not
        loaded it yet, and could give a new container resources that belong to another container. Rounds check again,
        and first serve the containers that have allocations."""
        known = self._plugins[name]
        if known.remembers or not endpoint.options.reconcile or name not in self._allocations.resources:
            known.remembers = True  # all allocations stored from now on are its own
            return True
        try:
            known.remembers = bool(await endpoint.allocations())
        except PluginCallError:
            return True  # unknown; allow it to allocate
        return known.remembers

    async def reported(self) -> dict[str, Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]]:
        """The allocations of all containers, as reported by the plug-ins that support reconciliation. Plug-ins that
        failed are omitted."""
        found: dict[str, Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]] = {}
        for name, endpoint in self.live():
            if not endpoint.options.reconcile:
                continue
            method, call = "GetResourcesAllocation", endpoint.allocations()
            answer = await self.ask(name, method, call, otherwise="its allocations remain unchanged")
            if answer is None:
                continue
            if not answer and self._monotonic() - self._plugins[name].since < PLUGIN_STARTUP_S:
                continue  # it has not loaded its state yet
            if not self._plugins[name].remembers:  # triggers new attempts for rejected pods
                self.registrations += 1
                self._plugins[name].remembers = True
            found[name] = {
                pod: {container: self.own(name, infos) for container, infos in containers.items()}
                for pod, containers in answer.items()
            }
        return found

    async def capacity(self) -> tuple[dict[str, float], dict[str, float], tuple[str, ...]]:
        """Capacity and allocatable quantities for the node's status, and the resources to remove from it because their
        plug-in has been stopped for more than PLUGIN_ABSENCE_GRACE_S seconds."""
        capacity: dict[str, float] = {}
        allocatable: dict[str, float] = {}
        removed = []
        scalars = self._allocations.scalars()
        stored = self._allocations.resources
        for name, known in sorted(self._plugins.items()):
            of_node = name in scalars if name in stored else known.of_node
            if of_node is None:
                of_node = may_be_of_node(name)
            if known.endpoint is None:
                if known.stopped is not None and self._monotonic() - known.stopped > PLUGIN_ABSENCE_GRACE_S and of_node:
                    removed.append(name)
                continue
            answer = await self._allocatable(name, known.endpoint)
            found = {} if answer is None else answer
            if answer is None and of_node:
                capacity[name] = allocatable[name] = 0.0
            if name in found:
                known.of_node = found[name][0].is_node_resource and found[name][0].is_scalar_resource
            for resource, (free, whole) in found.items():
                if free.is_node_resource and free.is_scalar_resource:
                    # At least the allocated quantity: otherwise running pods are rejected at their next admission.
                    allocatable[resource] = max(free.total, float(math.ceil(scalars.get(resource, 0.0))))
                    capacity[resource] = whole.total
        return capacity, allocatable, tuple(removed)

    async def allocatable(self) -> dict[str, tuple[Quantity, Quantity]]:
        """Allocatable quantity and capacity by resource, from every plug-in that responds."""
        found: dict[str, tuple[Quantity, Quantity]] = {}
        for name, endpoint in self.live():
            found |= await self._allocatable(name, endpoint) or {}
        return found

    async def _allocatable(
        self, name: str, endpoint: ResourcePluginClient
    ) -> dict[str, tuple[Quantity, Quantity]] | None:
        method, call = "GetTopologyAwareAllocatableResources", endpoint.allocatable()
        answer = await self.ask(name, method, call, otherwise="its capacity is unknown")
        return None if answer is None else self.own(name, answer)
