"""Processes of Katalyst v0.5.0 and of load-watcher on one node."""

from __future__ import annotations

from tests.originals.frame import Original
from tests.originals.katalyst.live import LiveChecks

ORIGINAL = Original(
    "katalyst",
    "github.com/kubewharf/katalyst-core v0.5.0",
    (LiveChecks(),),
    (),
)
