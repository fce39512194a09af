"""The section [metrics] of the settings: the node metrics on /metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import OPERATORS, TYPES_ONLY, WINDOW_LABELS


@dataclass(frozen=True, repr=False)
class MetricsSettings(SettingsTable, section="metrics"):
    """Node metrics on /metrics. Each type, operator and window multiplies the number of series in Prometheus."""

    types: Annotated[tuple[str, ...], TYPES_ONLY] = ("CPU", "Memory")
    """Metric types of the nodes' series on /metrics."""
    operators: Annotated[tuple[str, ...], OPERATORS] = ("AVG", "STD")
    """Operators of the nodes' series on /metrics."""
    windows: Annotated[tuple[str, ...], WINDOW_LABELS] = ("15m",)
    """Windows of the nodes' series on /metrics; each must be in refresh.windows."""
