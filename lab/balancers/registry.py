"""Balancers by name, with their published or documented settings.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lab.balancers.low_node_load import LowNodeLoad, LowNodeLoadArgs
from lab.balancers.low_node_utilization import Descheduler, UtilizationThresholds
from lab.balancers.marks import HORIZON, Combined, NodeScores, PressureDescheduler, SoftTaints
from lab.balancers.openshift import OpenShiftRelieve
from lab.balancers.view import Balancer
from scorers.marks.annotation import ScoreRules
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

BALANCERS: Mapping[str, Callable[[], Balancer]] = {
    "Descheduler40-70": lambda: Descheduler(UtilizationThresholds(40.0, 70.0)),
    "DeschedulerDeviation10": lambda: Descheduler(UtilizationThresholds(10.0, 10.0, deviation=True)),
    "OpenShift": OpenShiftRelieve,
    "Koordinator": lambda: LowNodeLoad(LowNodeLoadArgs({CPU: 20.0, MEMORY: 30.0}, {CPU: 50.0, MEMORY: 60.0})),
    "KoordinatorDeviation10": lambda: LowNodeLoad(LowNodeLoadArgs({CPU: 10.0}, {CPU: 10.0}, deviation=True)),
    "SoftTaints": SoftTaints,
    "SoftTaintsForecast": lambda: SoftTaints(HORIZON),
    "Annotation": NodeScores,
    "AnnotationMinute": lambda: NodeScores(rules=ScoreRules(pause_s=60.0)),
    "Pressure": PressureDescheduler,
    "PressureAndTaints": lambda: Combined((SoftTaints(), PressureDescheduler())),
    "PressureAndAnnotation": lambda: Combined((NodeScores(), PressureDescheduler())),
}
"""A call creates a balancer for one simulation. Thresholds: 40 to 70 is the preset High of OpenShift's operator, 10 the
preset Low of its deviations; 20/30 to 50/60 is in Koordinator's documentation. `AnnotationMinute` writes a score each
minute."""
