"""Requests to the plug-ins for the containers of a pod."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from agent.qrm.manager.admission import NotAllocated
from agent.qrm.manager.registered_plugins import RegisteredPlugins
from agent.qrm.manager.request import NIC, RECLAIMED_MILLICPU, ContainerType, ResourceRequest
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.pods import PodContainer, QrmPod
from watcher.core.kubernetes.pod_resources import combined


class PluginRequests:
    """Requests for the resources that the registered plug-ins serve."""

    def __init__(self, settings: AllocationSettings, plugins: RegisteredPlugins) -> None:
        self._names, self._nic_roles = settings.resource_names, settings.nic_roles
        self._plugins = plugins

    def of(self, pod: QrmPod, container: PodContainer, kind: ContainerType, index: int) -> Iterable[ResourceRequest]:
        """One request for each resource of a container that has a plug-in. Raises NotAllocated if a container requests
        one resource under two names."""
        found: dict[str, ResourceRequest] = {}
        wanted = dict(container.requests)
        names = self._names
        if pod.role in self._nic_roles and NIC not in {names.get(asked, asked) for asked in wanted}:
            wanted[NIC] = 1.0
        for asked, quantity in sorted(wanted.items()):
            name = names.get(asked, asked)
            if name not in self._plugins or quantity <= 0 or not math.isfinite(quantity):
                continue
            if name in found:
                message = f"container {container.name} requests {name} under two names; one of them is {asked}"
                raise NotAllocated(message, container=container.name, resource=name)
            own = quantity / 1000 if asked == RECLAIMED_MILLICPU != name else quantity
            found[name] = ResourceRequest(
                pod_uid=pod.uid,
                pod_namespace=pod.namespace,
                pod_name=pod.name,
                container_name=container.name,
                container_type=kind,
                container_index=index,
                pod_role=pod.role,
                pod_type=pod.type,
                resource_name=name,
                # Under the plug-in's name only: Katalyst's plug-ins refuse a request with more than one quantity.
                resource_requests={name: own},
                labels=pod.labels,
                annotations=pod.annotations,
                native_qos_class=pod.qos_class,
            )
        return found.values()

    def summed(self, pod: QrmPod) -> Iterable[tuple[ResourceRequest, ResourceRequest]]:
        """For each resource, the request of the main container, and the request of the pod as Kubernetes computes it,
        without the overhead, which the plug-ins do not allocate."""
        main: dict[str, ResourceRequest] = {}
        inits: list[tuple[Mapping[str, float], bool]] = []
        apps: list[Mapping[str, float]] = []
        for container, kind, index in pod.typed():
            requests = {each.resource_name: each for each in self.of(pod, container, kind, index)}
            amounts = {name: each.quantity for name, each in requests.items()}
            if container.init:
                inits.append((amounts, container.restarts))
            else:
                apps.append(amounts)
            for name, request in requests.items():
                if kind is ContainerType.MAIN or (kind is ContainerType.SIDECAR and name not in main):
                    main[name] = request
        sums = {**combined(apps, inits), **pod.requests}
        for name, request in main.items():
            yield request, replace(request, resource_requests={name: sums[name]})
