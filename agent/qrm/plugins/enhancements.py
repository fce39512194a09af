"""The QoS level and the enhancements that a pod for Katalyst has in its annotations.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from agent import cpuset
from agent.qrm.manager.request import CannotAllocate, ResourceRequest
from agent.qrm.pods import DEDICATED_CORES, QOS_ANNOTATION, RECLAIMED_CORES, SHARED_CORES, SYSTEM_CORES
from watcher.decoding.json_text import decode_json
from watcher.decoding.text import whole_number

LEVELS = (SHARED_CORES, RECLAIMED_CORES, DEDICATED_CORES, SYSTEM_CORES)
MEMORY_ENHANCEMENT = "katalyst.kubewharf.io/memory_enhancement"
CPU_ENHANCEMENT = "katalyst.kubewharf.io/cpu_enhancement"
NUMA_BINDING, NUMA_EXCLUSIVE = "numa_binding", "numa_exclusive"
PAIRING, EVENLY, POOL = "full_pcpus_pairing", "distribute_evenly_across_numa", "cpuset_pool"
ALIGN_BY_SOCKET = "align_by_socket"
NUMA_NUMBER, NUMA_IDS = "katalyst.kubewharf.io/numa_number", "katalyst.kubewharf.io/numa_ids"


@dataclass(frozen=True, slots=True)
class QosRequest:
    """QoS level and enhancements of a request. `debug`: the pod gets no allocation."""

    level: str
    memory: Mapping[str, str] = field(default_factory=dict)
    cpu: Mapping[str, str] = field(default_factory=dict)
    debug: bool = False

    @property
    def bound(self) -> bool:
        """Whether the pod is bound to the NUMA nodes of its hint."""
        return self.memory.get(NUMA_BINDING) == "true"

    @property
    def exclusive(self) -> bool:
        """Whether the pod gets these NUMA nodes as a whole."""
        return self.memory.get(NUMA_EXCLUSIVE) == "true"

    @property
    def paired(self) -> bool:
        """Whether the pod gets whole cores only."""
        return self.cpu.get(PAIRING) == "true"

    @property
    def evenly(self) -> bool:
        """Whether the pod gets the same number of CPUs on each of its NUMA nodes."""
        return self.cpu.get(EVENLY) == "true"

    @property
    def aligned(self) -> bool:
        """Whether the NUMA nodes of the pod are on as few sockets as possible."""
        return self.cpu.get(ALIGN_BY_SOCKET) == "true"

    @property
    def pool(self) -> str:
        """The name of the CPU pool; empty if the pod names none."""
        return self.cpu.get(POOL, "")

    def numa_ids(self) -> frozenset[int] | None:
        """The NUMA nodes that the pod names, None if it names none. Raises CannotAllocate."""
        text = self.cpu.get(NUMA_IDS)
        if text is None:
            return None
        try:
            return cpuset.parse(text)
        except ValueError as error:
            raise CannotAllocate(f"{NUMA_IDS}: {error}") from None

    def numa_number(self) -> int | None:
        """The number of NUMA nodes that the pod requests, None if it requests none. Raises CannotAllocate."""
        text = self.cpu.get(NUMA_NUMBER)
        if text is None:
            return None
        number = whole_number(text)
        if not number:
            raise CannotAllocate(f"{NUMA_NUMBER} is {text[:40]!r}, but must be a whole number greater than 0")
        return number


def qos_request(
    request: ResourceRequest, *, defaults: Mapping[str, str] | None = None, debug: frozenset[str] = frozenset()
) -> QosRequest:
    """The QoS level and the enhancements of a request. `defaults` are memory enhancements of pods that do not set them,
    `debug` the annotations of pods that get no allocation. Raises CannotAllocate for an unknown QoS level and for
    invalid enhancements."""
    level = request.annotations.get(QOS_ANNOTATION, SHARED_CORES)
    if level not in LEVELS:
        raise CannotAllocate(f"{QOS_ANNOTATION} is {level!r}, but must be one of {', '.join(LEVELS)}")
    memory = {**(defaults or {}), **_enhancement(request, MEMORY_ENHANCEMENT)}
    found = QosRequest(
        level, memory, _enhancement(request, CPU_ENHANCEMENT), debug=bool(debug & request.annotations.keys())
    )
    if found.level == DEDICATED_CORES and not found.debug:
        _check_dedicated(found)
    return found


def _check_dedicated(wish: QosRequest) -> None:
    """Raises CannotAllocate for enhancements of dedicated_cores that cannot be combined."""
    if not wish.bound:
        raise CannotAllocate(f"{DEDICATED_CORES} needs {NUMA_BINDING} in {MEMORY_ENHANCEMENT}")
    if wish.evenly and NUMA_NUMBER not in wish.cpu:
        raise CannotAllocate(f"{EVENLY} needs {NUMA_NUMBER}")
    if wish.paired and wish.exclusive:
        raise CannotAllocate(f"{PAIRING} and {NUMA_EXCLUSIVE} cannot be combined")


def _enhancement(request: ResourceRequest, name: str) -> dict[str, str]:
    """An annotation with a JSON object of strings. Raises CannotAllocate."""
    text = request.annotations.get(name)
    if not text:
        return {}
    try:
        return decode_json(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise CannotAllocate(f"the annotation {name} is not a JSON object of strings: {error}") from None
