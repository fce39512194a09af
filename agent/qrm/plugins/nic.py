"""The network card plug-in: assigns a card on the pod's NUMA nodes; several pods can share a card.

The result is not a cgroup property. Containers get environment variables and, for a card in its own network namespace,
an annotation for the container runtime.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from agent.qrm.manager.allocation import AllocationInfo, wire_hints
from agent.qrm.manager.request import NIC, CannotAllocate, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.records import BuiltinPlugin, ContainerRecord, StoredRecords, by_container
from watcher.decoding.json_text import decode_json

NETNS_ANNOTATION = "kubernetes.io/host-netns-path"
ENHANCEMENT_ANNOTATION = "katalyst.kubewharf.io/network_enhancement"
RESTRICTED_KEY = "topology_affinity_restricted"
NO_NIC = "no available network card"


class NicAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """IP addresses of a network card; empty if unknown."""

    ipv4: str = ""
    ipv6: str = ""


class Nic(msgspec.Struct, frozen=True, omit_defaults=True):
    """A network card that is up. `numa_node` is -1 if unknown; `netns` is the path of its network namespace, empty for
    that of the host."""

    interface_name: str
    numa_node: int
    address: NicAddress = NicAddress()
    netns: str = ""


class NicRecord(ContainerRecord, frozen=True, omit_defaults=True, kw_only=True):
    """A container and its network card."""

    interface_name: str


class NicDocument(msgspec.Struct, frozen=True):
    """The stored state; `machineState` is for readers and is ignored when the state is loaded."""

    machineState: dict[str, Any]  # noqa: N815 - name of the file format
    pods: StoredRecords[NicRecord]
    policyName: str = "shared"  # noqa: N815 - name of the file format


class NicPlugin(BuiltinPlugin[NicRecord]):
    """Assigns the network cards of a machine to containers."""

    name = "qrm_nic_plugin"
    resource = NIC
    reconciled = False

    def __init__(self, nics: Sequence[Nic], *, nodes: Iterable[int]) -> None:
        self._nodes = frozenset(nodes)
        self.nics = {nic.interface_name: nic for nic in sorted(nics, key=lambda nic: nic.interface_name)}
        cards = Counter(nic.numa_node for nic in self.nics.values() if nic.numa_node >= 0)
        counts = {node: float(count) for node, count in cards.items()}
        super().__init__(capacity=counts, allocatable=counts)  # equal, because cards are shared

    # --- calls of the manager ------------------------------------------------------------------------------------

    def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        """Each node with a card is preferred; all nodes together are accepted too, unless the pod requires the node of
        its card. None if the nodes of the cards are unknown, empty without cards."""
        if request.container_type == ContainerType.INIT:
            return None
        if not self.nics:
            return ()
        kept = self._existing(request)
        nodes = sorted({nic.numa_node for nic in ([kept] if kept else self.nics.values()) if nic.numa_node >= 0})
        if not nodes:
            return None
        near = tuple(Hint(frozenset({node}), preferred=True) for node in nodes)
        everywhere = Hint(self._nodes, preferred=False)
        return near if _is_restricted(request) or near[0].nodes == self._nodes else (*near, everywhere)

    # --- queries -------------------------------------------------------------------------------------------------

    def machine_state(self) -> dict[str, dict[str, list[Nic]]]:
        """The network cards by NUMA node, as in the state file."""
        found: dict[str, dict[str, list[Nic]]] = {}
        for nic in self.nics.values():
            found.setdefault(str(nic.numa_node), {"nics": []})["nics"].append(nic)
        return found

    # --- storage -------------------------------------------------------------------------------------------------

    def _document(self, pods: StoredRecords[NicRecord]) -> NicDocument:
        return NicDocument(self.machine_state(), pods)

    def load(self, document: Mapping[str, Any]) -> None:
        """Restore a state from `document`. If a card no longer exists, another is selected when its container is
        admitted again. Raises ValueError for an invalid state."""
        self._records = by_container(self._read(document, NicDocument, "network card").pods)

    # --- internals -----------------------------------------------------------------------------------------------

    def _existing(self, request: ResourceRequest) -> Nic | None:
        record = self._record_of(request)
        return self.nics.get(record.interface_name) if record else None

    def _satisfying(self, request: ResourceRequest) -> NicRecord | None:
        return self._record_of(request) if self._existing(request) else None

    def _new_record(self, request: ResourceRequest) -> NicRecord:
        return NicRecord.of(request, interface_name=self._choose(request).interface_name)

    def _infos(self) -> Callable[[NicRecord], AllocationInfo | None]:
        return lambda record: _info(nic) if (nic := self.nics.get(record.interface_name)) else None

    def _quantities(self, record: NicRecord) -> dict[int, float]:
        """1 on the NUMA node of the card, if that is known."""
        nic = self.nics.get(record.interface_name)
        return {} if nic is None or nic.numa_node < 0 else {nic.numa_node: 1.0}

    def _choose(self, request: ResourceRequest) -> Nic:
        """A card on the nodes of the hint if there is one, then the card with the fewest containers, then the first by
        name."""
        if not self.nics:
            raise CannotAllocate(f"{NO_NIC}: no card of this machine is up")
        near = [nic for nic in self.nics.values() if nic.numa_node in request.nodes]
        if not near and request.nodes and _is_restricted(request):
            nodes = ", ".join(map(str, sorted(request.nodes)))
            raise CannotAllocate(
                f"{NO_NIC}: NUMA nodes {nodes} have none, and the pod requires its card on the same node"
            )
        users = [record.interface_name for record in self._records.values()]
        return min(near or self.nics.values(), key=lambda nic: (users.count(nic.interface_name), nic.interface_name))


def _is_restricted(request: ResourceRequest) -> bool:
    """Whether the pod requires the NUMA node of its card. Raises CannotAllocate if the annotation is not JSON."""
    text = request.annotations.get(ENHANCEMENT_ANNOTATION)
    if text is None:
        return False
    try:
        return decode_json(text, type=dict[str, str]).get(RESTRICTED_KEY) == "true"
    except msgspec.MsgspecError as error:
        raise CannotAllocate(
            f"the annotation {ENHANCEMENT_ANNOTATION} is not a JSON object of strings: {error}"
        ) from None


def _info(nic: Nic) -> AllocationInfo:
    envs = {
        "AFFINITY_NIC_ADDR_IPV4": nic.address.ipv4,
        "AFFINITY_NIC_ADDR_IPV6": nic.address.ipv6,
        # Without known addresses, the name is the only information for the container.
        "AFFINITY_NIC_NAME": "" if nic.address.ipv4 or nic.address.ipv6 else nic.interface_name,
    }
    hints = (Hint(frozenset({nic.numa_node}), preferred=True),) if nic.numa_node >= 0 else ()
    return AllocationInfo(
        envs={name: value for name, value in envs.items() if value},
        annotations={NETNS_ANNOTATION: nic.netns} if nic.netns else {},
        resource_hints=wire_hints(hints),
    )
