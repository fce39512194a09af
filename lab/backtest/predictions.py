"""Issues the bounds of all predictors at regular times of a trace, each from the past alone.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from lab.backtest.deals import Machines
from lab.backtest.predictors import Predictor, bounds_of, compared, quantile_code
from lab.backtest.usage import BacktestError
from watcher.arrays import F64, U8
from watcher.core.forecast.bound import Calibration, least_history
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S, decode, encode, span_maxima

EVERY_SLOTS = 2 * HOUR_SLOTS
_CHUNK = 256
"""Machines that are computed together, which limits the memory."""

ProgressCallback = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BacktestOptions:
    """History, horizon and time of the first prediction, in slots of 300 seconds; horizon and start are whole hours.
    `level` is 0 to 1."""

    history: int
    horizon: int
    start: int
    level: float

    @property
    def is_calibrated(self) -> bool:
        """Whether the history is long enough for a bound of the service."""
        return self.history >= self.least

    @property
    def least(self) -> int:
        """The slots before the first bound of the service."""
        return least_history(self.horizon // HOUR_SLOTS)

    @property
    def span(self) -> int:
        """The slots of a span: those of the horizon, or the history if that is shorter."""
        return min(self.horizon, self.history)


@dataclass(frozen=True, slots=True)
class Predictions:
    """k predictions for m machines: `at` [k] is the slot of each; `bounds` [predictors, k, m] and `peaks` [k, m], the
    highest load within the horizon, are in the unit of the trace. The last predictor is the shipped one, whose coverage
    in the last week, as known at the time of the prediction, is `stated` [k, m]; NaN where it states none."""

    at: tuple[int, ...]
    predictors: tuple[Predictor, ...]
    bounds: F64
    peaks: F64
    stated: F64


def predict(machines: Machines, options: BacktestOptions, *, on_progress: ProgressCallback) -> Predictions:
    """Predict every two hours while the trace lasts. Raises BacktestError if it is too short for one prediction."""
    slots, count = machines.load.shape
    at = tuple(range(options.start, slots - options.horizon + 1, EVERY_SLOTS))
    if not at:
        hours = " + ".join(f"{each * SLOT_S / 3600:g} h" for each in (options.start, options.horizon))
        message = f"the trace has {slots * SLOT_S / 3600:,.1f} h; --start and --horizon need {hours}"
        raise BacktestError(message, "use a longer trace, or a shorter --start and --history, for example 2h")
    name = "calibrated_quantile" if options.is_calibrated else "quantile"
    shipped = Predictor(name, options.history, options.level)
    others = compared(options.history, options.level)
    found = Predictions(
        at,
        (*others, shipped),
        np.empty((len(others) + 1, len(at), count)),
        np.empty((len(at), count)),
        np.full((len(at), count), np.nan),
    )
    chunks = [slice(low, min(low + _CHUNK, count)) for low in range(0, count, _CHUNK)]
    for done, chunk in enumerate(chunks):
        for k in _predict_chunk(machines, chunk, options, found):
            on_progress(done * len(at) + k + 1, len(chunks) * len(at))
    return found


def _predict_chunk(machines: Machines, chunk: slice, options: BacktestOptions, found: Predictions) -> Iterator[int]:
    """Fill in the columns `chunk`; yield the number of each prediction."""
    load, capacity = machines.load[:, chunk], machines.capacity[chunk]
    spans = _span_maxima(load, options.span)
    outcomes = spans if options.span == options.horizon else _span_maxima(load, options.horizon)
    codes = _shipped_bounds(span_maxima(encode(100.0 * load / capacity), options.span), found.at, options)
    for k, (slot, (code, stated)) in enumerate(zip(found.at, codes, strict=True)):
        visible = slice(max(0, slot - options.history), slot - options.span + 1)
        peak = outcomes[slot]
        bounds = bounds_of(found.predictors[:-1], load[:slot], spans[visible], limits=capacity, peak=peak)
        for p, bound in enumerate(bounds):
            found.bounds[p, k, chunk] = bound
        found.bounds[-1, k, chunk] = decode(code) * capacity / 100.0
        found.peaks[k, chunk] = peak
        found.stated[k, chunk] = stated
        yield k


def _shipped_bounds(spans: U8, at: tuple[int, ...], options: BacktestOptions) -> Iterator[tuple[U8, F64 | float]]:
    """Yield the code of the shipped bound [m] and the stated coverage [m] for each prediction, from the maxima as the
    service stores them. The correction begins with the first bound and is advanced every hour."""

    def visible(slot: int) -> U8:
        return spans[max(0, slot - options.history) : slot - options.span + 1]

    if not options.is_calibrated:
        for slot in at:
            yield quantile_code(visible(slot), options.level), np.nan
        return
    horizon = options.horizon // HOUR_SLOTS
    calibration = Calibration(spans.shape[1], horizon=horizon, level=options.level, history=options.history)
    for slot in range(options.least, at[-1] + 1, HOUR_SLOTS):
        calibration.advance(visible(slot), slot // HOUR_SLOTS)
        if slot >= at[0] and (slot - at[0]) % EVERY_SLOTS == 0:
            yield calibration.bound().copy(), calibration.record(visible(slot)).coverage


def _span_maxima(load: F64, length: int) -> F64:
    """The highest load of each `length` consecutive slots [slots - length + 1, m]."""
    found: F64 = np.lib.stride_tricks.sliding_window_view(load, length, axis=0).max(axis=-1)
    return found
