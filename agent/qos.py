"""The QoS classes of Kubernetes. They are in a separate module without dependencies, because the control groups are
named after them, and their tests run on a Linux system that has only Python.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from enum import StrEnum


class QosClass(StrEnum):
    """QoS class of a pod; the empty value means unknown."""

    UNKNOWN = ""
    BEST_EFFORT = "BestEffort"
    BURSTABLE = "Burstable"
    GUARANTEED = "Guaranteed"
