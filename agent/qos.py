"""How Kubernetes classes pods, apart from all else: control groups are named by it, and are tried in a Linux that has
Python and nothing beside it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from enum import StrEnum


class QosClass(StrEnum):
    """Kubernetes' class of a pod; the empty one is what nobody knows."""

    UNKNOWN = ""
    BEST_EFFORT = "BestEffort"
    BURSTABLE = "Burstable"
    GUARANTEED = "Guaranteed"
