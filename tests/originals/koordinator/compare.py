"""Koordinator and load-watcher."""

from __future__ import annotations

from tests.originals.frame import Original
from tests.originals.koordinator.node_metrics import NodeMetricComparison
from tests.originals.koordinator.scheduling import CLASSES, LoadAwareSchedulingComparison

ORIGINAL = Original(
    "koordinator",
    "github.com/koordinator-sh/koordinator v1.8.0",
    (LoadAwareSchedulingComparison(), NodeMetricComparison()),
    CLASSES,
)
