"""Network cards: the one that is on the NUMA node of the pod, shared by several pods (seed 002, Example 3;
reference/qrm.md §5.5).

The result is no cgroup value. Containers are told by environment variables and, for a card in a network namespace of
its own, by an annotation that the runtime is to honour.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agent.qrm.manager.allocation import AllocationInfo, wire_hints
from agent.qrm.manager.request import NIC, CannotAllocate, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.records import Records

NETNS_ANNOTATION = "kubernetes.io/host-netns-path"
ENHANCEMENT_ANNOTATION = "katalyst.kubewharf.io/network_enhancement"
RESTRICTED_KEY = "topology_affinity_restricted"
NO_NIC = "no available network card"


class NicAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Addresses of a card."""

    ipv4: str = ""
    ipv6: str = ""


class Nic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A network card that is up. `numa_node` is -1 where the machine does not say; `netns` is the path of its network
    namespace, empty for the host's own."""

    interface_name: str
    numa_node: int
    address: NicAddress = NicAddress()
    netns: str = ""


class NicRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One container and its card."""

    pod_uid: str
    container_name: str
    interface_name: str
    pod_namespace: str = ""
    pod_name: str = ""
    pod_role: str = ""


class NicDocument(msgspec.Struct, frozen=True):
    """What is kept of the plug-in; `machineState` is for readers, and not read back (the seed spells `numa_node` in two
    ways)."""

    machineState: dict[str, Any]  # noqa: N815 - the seed's name
    pods: dict[str, dict[str, NicRecord]]
    policyName: str = "shared"  # noqa: N815 - the seed's name


class NicPlugin:
    """The network cards of a machine, and which containers use which."""

    name = "qrm_nic_plugin"
    resource = NIC
    aligned = True
    reconciled = False

    def __init__(self, nics: Sequence[Nic], *, nodes: Iterable[int]) -> None:
        self._nodes = frozenset(nodes)
        self.nics = {nic.interface_name: nic for nic in sorted(nics, key=lambda nic: nic.interface_name)}
        self._records: Records[NicRecord] = Records()

    # --- what the manager asks -----------------------------------------------------------------------------------

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """Each node with a card is preferred; all nodes together will do too, unless the pod says that it must be near
        its card. None where the machine does not say on which node its cards are, empty where it has none."""
        if request.container_type == ContainerType.INIT:
            return None
        if not self.nics:
            return ()
        kept = self._kept(request)
        nodes = sorted({nic.numa_node for nic in ([kept] if kept else self.nics.values()) if nic.numa_node >= 0})
        if not nodes:
            return None
        near = tuple(Hint(frozenset({node}), preferred=True) for node in nodes)
        everywhere = Hint(self._nodes, preferred=False)
        return near if _is_restricted(request) or near[0].nodes == self._nodes else (*near, everywhere)

    def allocate(self, request: ResourceRequest) -> AllocationInfo | None:
        """The card on the node of the hint, else the one that fewest containers use; None for an init container.
        Raises CannotAllocate."""
        if request.container_type == ContainerType.INIT:
            return None
        chosen = self._kept(request) or self._choose(request)
        self._records[request.pod_uid, request.container_name] = NicRecord(
            pod_uid=request.pod_uid,
            container_name=request.container_name,
            interface_name=chosen.interface_name,
            pod_namespace=request.pod_namespace,
            pod_name=request.pod_name,
            pod_role=request.pod_role,
        )
        return _info(chosen)

    def remove(self, pod_uid: str) -> None:
        """A pod has gone."""
        self._records.remove_pod(pod_uid)

    def allocations(self) -> dict[str, dict[str, AllocationInfo]]:
        """By pod and container."""
        found: dict[str, dict[str, AllocationInfo]] = {}
        for (pod, container), record in sorted(self._records.items()):
            if (nic := self.nics.get(record.interface_name)) is not None:
                found.setdefault(pod, {})[container] = _info(nic)
        return found

    # --- for readers ---------------------------------------------------------------------------------------------

    def machine_state(self) -> dict[str, dict[str, list[Nic]]]:
        """Cards by NUMA node, as the seed prints them."""
        found: dict[str, dict[str, list[Nic]]] = {}
        for nic in self.nics.values():
            found.setdefault(str(nic.numa_node), {"nics": []})["nics"].append(nic)
        return found

    def by_node(self, pod_uid: str, container_name: str) -> dict[int, float]:
        """One on the node of the container's card."""
        record = self._records.get((pod_uid, container_name))
        nic = self.nics.get(record.interface_name) if record else None
        return {} if nic is None or nic.numa_node < 0 else {nic.numa_node: 1.0}

    def allocatable_by_node(self) -> dict[int, float]:
        """Cards on each node; they are shared, so nothing goes off."""
        return self.capacity_by_node()

    def capacity_by_node(self) -> dict[int, float]:
        """Cards on each node."""
        found: dict[int, float] = {}
        for nic in self.nics.values():
            if nic.numa_node >= 0:
                found[nic.numa_node] = found.get(nic.numa_node, 0.0) + 1.0
        return found

    # --- on disk -------------------------------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """All that is to be kept."""
        plain: dict[str, Any] = msgspec.to_builtins(NicDocument(self.machine_state(), self._records.by_pod()))
        return plain

    def load(self, document: Mapping[str, Any]) -> None:
        """Take over what `document` gave; a card that is gone is chosen anew when its container is admitted again.
        Raises ValueError for what is no such document."""
        try:
            read = msgspec.convert(document, NicDocument)
        except msgspec.ValidationError as error:
            raise ValueError(f"it is no state of network cards: {error}") from None
        self._records = Records.of(read.pods.values())

    # --- inside --------------------------------------------------------------------------------------------------

    def _kept(self, request: ResourceRequest) -> Nic | None:
        record = self._records.get((request.pod_uid, request.container_name))
        return self.nics.get(record.interface_name) if record else None

    def _choose(self, request: ResourceRequest) -> Nic:
        """On the hinted nodes if there is one, then the one with fewest containers, then the first by name."""
        if not self.nics:
            raise CannotAllocate(f"{NO_NIC}: this machine has none that is up")
        near = [nic for nic in self.nics.values() if nic.numa_node in request.nodes]
        if not near and request.nodes and _is_restricted(request):
            nodes = ", ".join(map(str, sorted(request.nodes)))
            raise CannotAllocate(f"{NO_NIC}: there is none on NUMA nodes {nodes}, and the pod must be near its own")
        users = [record.interface_name for record in self._records.values()]
        return min(near or self.nics.values(), key=lambda nic: (users.count(nic.interface_name), nic.interface_name))


def _is_restricted(request: ResourceRequest) -> bool:
    """Whether the pod says that it must be on the node of its card. Raises CannotAllocate where that is no JSON."""
    text = request.annotations.get(ENHANCEMENT_ANNOTATION)
    if text is None:
        return False
    try:
        return msgspec.json.decode(text, type=dict[str, str]).get(RESTRICTED_KEY) == "true"
    except msgspec.MsgspecError as error:
        raise CannotAllocate(f"the annotation {ENHANCEMENT_ANNOTATION} is no JSON object of texts: {error}") from None


def _info(nic: Nic) -> AllocationInfo:
    envs = {
        "AFFINITY_NIC_ADDR_IPV4": nic.address.ipv4,
        "AFFINITY_NIC_ADDR_IPV6": nic.address.ipv6,
        # The seed names addresses alone; of a card whose addresses are not known a container would learn nothing.
        "AFFINITY_NIC_NAME": "" if nic.address.ipv4 or nic.address.ipv6 else nic.interface_name,
    }
    hints = (Hint(frozenset({nic.numa_node}), preferred=True),) if nic.numa_node >= 0 else ()
    return AllocationInfo(
        envs={name: value for name, value in envs.items() if value},
        annotations={NETNS_ANNOTATION: nic.netns} if nic.netns else {},
        resource_hints=wire_hints(hints),
    )
