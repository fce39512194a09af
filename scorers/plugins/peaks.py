"""Peaks: place the pod where it increases the power consumption least (upstream Trimaran).

A node consumes K0 + K1 * e^(K2 * x) watts at x percent CPU utilization. With the pod's CPU request (including its
overhead if it requests any CPU), the node would have

    predicted = current + 100 * request / capacity        percent
    rise      = K1 * (e^(K2 * predicted) - e^(K2 * current))        watts

The score is 100 for the lowest rise among the nodes in the request, 0 for the highest, linear in between and rounded
down as upstream does; if all rises are equal, all score 100.

Upstream uses the number 0 for both "no cost" and "not possible", so that a node without metrics, model, or free
capacity is preferred. Here such a node scores 0 and is excluded from the comparison. If most nodes have no metrics, all
score 0 and other plug-ins decide.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.arguments import Arguments, ArgumentsError
from scorers.plugin_api.framework import EQUAL_SCORES, Scores, load_decides
from watcher.arrays import F64, I64
from watcher.core.kubernetes.pod_resources import CPU, amounts
from watcher.decoding.json_text import decode_json
from watcher.model import MetricType

MODEL_FILE = "NODE_POWER_MODEL"
LARGEST_EXPONENT = 700.0  # e^x overflows a double above


class PowerModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Power model of one node, K0 + K1 * e^(K2 * x): k0 and k1 in watts, k2 per percent of CPU."""

    k0: float
    k1: float
    k2: float


class PeaksArgs(Arguments, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=None):
    """`NodePowerModel` by node name, spelled as upstream; if omitted, it is read from the file named by the environment
    variable NODE_POWER_MODEL. `WatcherAddress` is ignored."""

    NodePowerModel: dict[str, PowerModel] = msgspec.field(default_factory=dict)
    WatcherAddress: str = ""

    def problems(self) -> list[str]:
        """Report models that are not finite between 0 and 100 percent."""
        models = sorted(self.NodePowerModel.items())
        return [f"NodePowerModel.{name}{what}" for name, model in models for what in _wrong_with(model)]


def _wrong_with(model: PowerModel) -> Iterator[str]:
    values = {"k0": model.k0, "k1": model.k1, "k2": model.k2}
    if odd := {key: value for key, value in values.items() if not math.isfinite(value)}:
        yield from (f".{key}: must be a number (given: {value})" for key, value in odd.items())
    elif abs(model.k2) * 100.0 > LARGEST_EXPONENT:
        yield f": k2 {model.k2:g} is too large: the power at 100 percent overflows"
    elif not math.isfinite(model.k1 * math.exp(max(model.k2, 0.0) * 100.0)):
        yield f": k1 {model.k1:g} is too large: the power at 100 percent overflows"


def rises(models: F64, current: F64, predicted: F64) -> F64:
    """Return the increase in watts [n]; `models` [n, 2] are K1 and K2, `current` and `predicted` in percent."""
    k1, k2 = models[:, 0], models[:, 1]
    with np.errstate(over="ignore"):  # current load above 100 percent; `predicted` is NaN then
        watts: F64 = k1 * (np.exp(k2 * predicted) - np.exp(k2 * current))
    return watts


def normalised(rise: F64) -> F64:
    """Scale linearly from 100 for the lowest to 0 for the highest, rounded up to whole scores; 100 for all if they are
    equal; NaN stays NaN. Divides first: multiplied first, the highest would often be 99.99… and score 1 (upstream does
    so)."""
    known = ~np.isnan(rise)
    if not known.any():
        return rise
    low, high = float(np.nanmin(rise)), float(np.nanmax(rise))
    if low == high:
        return np.where(known, 100.0, np.nan)
    return 100.0 - np.trunc(100.0 * ((rise - low) / (high - low)))


class Peaks:
    """The score plug-in described in the module docstring."""

    name = "Peaks"
    arguments = PeaksArgs

    def __init__(self, arguments: PeaksArgs, table: ClusterTable, *, profile: str = "default") -> None:
        self.args = arguments
        self._models = dict(arguments.NodePowerModel or _models_of_file())
        self._rows: F64 = np.empty((0, 2))
        self._names: list[str] = []

    def score(self, pod: PodInfo, table: ClusterTable, rows: I64, *, now: float) -> Scores:
        capacity = table.capacity.column(CPU)[rows].astype(np.float64)
        current = table.load.average(MetricType.CPU)[rows]
        if not load_decides(~np.isnan(current), fallback=self.fallback(table, now=now)):
            why = "most nodes have no metrics: all nodes score 0"
            return Scores(np.zeros(len(rows)), {"cpu load %": current}, {"fallback": EQUAL_SCORES}, lambda _: why)
        request = _request(pod)
        with np.errstate(divide="ignore", invalid="ignore"):
            added = np.where(capacity > 0, 100.0 * request / capacity, np.nan)
        predicted = current + added
        rise = rises(self._of_rows(table)[rows], current, np.where(predicted > 100.0, np.nan, predicted))
        values = np.nan_to_num(normalised(rise), nan=0.0)
        steps = {"cpu load %": current, "cpu predicted %": predicted, "rise in watts": rise}

        def reason(i: int) -> str:
            if np.isnan(current[i]):
                return "no metrics of this node: 0"
            if predicted[i] > 100.0:
                return f"cpu would be at {predicted[i]:.1f} %, above capacity: 0"
            if np.isnan(rise[i]):
                return "this node has no power model or no CPU capacity: 0"
            return f"cpu from {current[i]:.1f} to {predicted[i]:.1f} % adds {rise[i]:.3g} W: {values[i]:.0f}"

        return Scores(values, steps, {"podRequest": request}, reason)

    def fallback(self, table: ClusterTable, *, now: float) -> str:
        """Return EQUAL_SCORES if the CPU load is unknown for most nodes."""
        return "" if table.has_load(MetricType.CPU) else EQUAL_SCORES

    def _of_rows(self, table: ClusterTable) -> F64:
        """Return K1 and K2 of each row, NaN without a model."""
        if self._names != table.names:
            none = (np.nan, np.nan)
            found = [(m.k1, m.k2) if (m := self._models.get(name)) else none for name in table.names]
            self._rows = np.array(found, dtype=np.float64).reshape(len(table.names), 2)
            self._names = list(table.names)
        return self._rows


def _request(pod: PodInfo) -> int:
    """Return the CPU request in millicores; 0 if it consists only of the overhead."""
    request, overhead = pod.requests.get(CPU, 0), amounts(pod.pod.spec.overhead).get(CPU, 0)
    return request if request != overhead else 0


def _models_of_file() -> dict[str, PowerModel]:
    name = os.environ.get(MODEL_FILE, "")
    if not name:
        raise ArgumentsError(Peaks.name, [f"NodePowerModel: is required, here or in the file named by {MODEL_FILE}"])
    try:
        models = decode_json(Path(name).read_bytes(), type=dict[str, PowerModel])
    except (OSError, msgspec.DecodeError) as error:
        raise ArgumentsError(Peaks.name, [f"{MODEL_FILE}={name}: {error}"]) from error
    if problems := PeaksArgs(NodePowerModel=models).problems():
        raise ArgumentsError(Peaks.name, problems)
    return models
