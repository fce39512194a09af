"""Comparison with Katalyst v0.5.0: its dynamic policies, and its processes beside load-watcher's."""

from __future__ import annotations

from tests.originals.frame import Original
from tests.originals.katalyst.classes import CLASSES
from tests.originals.katalyst.live import LiveChecks
from tests.originals.katalyst.worlds import CpuPolicy, MemoryPolicy

ORIGINAL = Original(
    "katalyst",
    "github.com/kubewharf/katalyst-core v0.5.0",
    (CpuPolicy(), MemoryPolicy(), LiveChecks()),
    CLASSES,
)
