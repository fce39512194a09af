"""The predictors that the shipped one is compared with. Each is a bound of the load over the next hours, from the
measured loads of the past, which are not rounded.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, U8
from watcher.core.forecast.maxima import DAY_SLOTS, HOUR_SLOTS, SLOT_S

WINDOW_SLOTS = 3
"""Slots of 15 minutes, the window of the scheduling plug-ins."""
FAMILY = (0.5, 0.8, 0.9, 0.95)
SIGMAS = 3.0
_MAXIMA = (WINDOW_SLOTS, 2 * HOUR_SLOTS, DAY_SLOTS, 7 * DAY_SLOTS)


@dataclass(frozen=True, slots=True)
class Predictor:
    """A predictor by name, with the slots of its history and its level (0 to 1), None if it has none."""

    name: str
    history: int | None = None
    level: float | None = None

    @property
    def history_s(self) -> int | None:
        return None if self.history is None else self.history * SLOT_S


def compared(history: int, level: float) -> tuple[Predictor, ...]:
    """The predictors that need at most `history` slots, the quantiles also at `level`, and the oracle."""
    maxima = sorted({*(slots for slots in _MAXIMA if slots < history), history})
    return (
        Predictor("limits"),
        Predictor("mean", WINDOW_SLOTS),
        Predictor("mean_plus_sigma", WINDOW_SLOTS),
        *(Predictor("maximum", slots) for slots in maxima),
        *([Predictor("three_sigma", DAY_SLOTS)] if history >= DAY_SLOTS else []),
        *(Predictor("quantile", history, each) for each in sorted({*FAMILY, level})),
        Predictor("oracle"),
    )


def bounds_of(predictors: Sequence[Predictor], past: F64, spans: F64, *, limits: F64, peak: F64) -> Iterator[F64]:
    """Yield the bound [m] of each predictor. `past` [slots, m] are the loads before the prediction, `spans` [rows, m]
    the highest loads of all spans of the horizon's length within the history; `peak` [m], the outcome, is for the
    oracle alone."""
    quantiles = iter(quantiles_of(spans, [each.level for each in predictors if each.level is not None]))
    for each in predictors:
        recent = past[-each.history :] if each.history else past
        match each.name:
            case "limits":
                yield limits
            case "mean":
                yield recent.mean(axis=0)
            case "mean_plus_sigma":
                yield recent.mean(axis=0) + recent.std(axis=0)
            case "three_sigma":
                yield recent.mean(axis=0) + SIGMAS * recent.std(axis=0)
            case "maximum":
                yield recent.max(axis=0)
            case "quantile":
                yield next(quantiles)
            case _:
                yield peak


def quantiles_of(spans: F64, levels: Sequence[float]) -> F64:
    """Return [levels, m], the smallest value of `spans` [rows, m] that at least this share of the rows does not
    exceed."""
    ranks = [max(math.ceil(level * len(spans) - 1e-9), 1) - 1 for level in levels]
    ordered: F64 = np.partition(spans, sorted(set(ranks)), axis=0)
    return ordered[ranks]


def quantile_code(spans: U8, level: float) -> U8:
    """As `quantiles_of`, for the codes of stored maxima: [m]."""
    codes: U8 = quantiles_of(spans.astype(np.float64), [level])[0].astype(np.uint8)
    return codes
