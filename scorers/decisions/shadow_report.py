"""Report of shadow mode: differences between profiles and the actual placements over many bindings, with confidence
intervals.

Pods are not bound independently: replicas of a deployment are bound together and see the same load. Therefore the
sampling unit is the 15-minute block, not the binding. Means have the percentile interval of a bootstrap over blocks
(with a fixed seed). Shares have Wilson's interval with the number of independent bindings that would have the same
variance (Kish's effective sample size).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from scorers.decisions.records import GRACE_S, LATER_S, LEFT_OUT, Load, ShadowBinding
from watcher.arrays import F64
from watcher.core.intervals import NORMAL_975, student_975

CONFIDENCE = 0.95
BLOCK_S = 900
FEWEST_BLOCKS = 8
"""Minimum number of 15-minute blocks for a bootstrap interval."""
RESAMPLES = 2000
_SEED = 20240
_AT_ONCE = 1 << 20
RESOURCES = ("CPU", "Memory")


def report(bindings: Iterable[ShadowBinding], settings: Mapping[str, str], *, now: float) -> dict[str, Any]:
    """Return the report as a JSON document. `settings`: hash of the current settings by profile; choices made with
    other settings are excluded from the profile's numbers."""
    unique = _once_each(bindings)
    message = [each for each in unique if not each.left_out]
    left_out: Counter[str] = Counter()
    for each in unique:
        if each.left_out:
            left_out[each.left_out] += each.count
    return {
        "bindings": len(message),
        "candidates": {kind: sum(each.candidates == kind for each in message) for kind in ("asked", "estimated")},
        "left_out": [
            {"reason": reason, "count": count, "message": LEFT_OUT.get(reason, reason)}
            for reason, count in sorted(left_out.items(), key=lambda item: (-item[1], item[0]))
        ],
        "confidence": CONFIDENCE,
        "later_s": LATER_S,
        "profiles": [_of_profile(name, message, settings[name], now=now) for name in sorted(settings)],
    }


def _once_each(bindings: Iterable[ShadowBinding]) -> list[ShadowBinding]:
    """Deduplicate bindings recorded by several replicas that share a database: the most complete record counts, then
    the first."""
    found: dict[tuple[str, str], ShadowBinding] = {}
    counted: list[ShadowBinding] = []
    for each in sorted(bindings, key=lambda one: one.time):
        if not each.uid:
            counted.append(each)  # summarizes several bindings
            continue
        before = found.get((each.uid, each.node))
        if before is None or _is_more_complete(each, before):
            found[each.uid, each.node] = each
    return [*found.values(), *counted]


def _is_more_complete(one: ShadowBinding, other: ShadowBinding) -> bool:
    def much(binding: ShadowBinding) -> tuple[bool, bool]:
        return not binding.left_out, binding.later is not None

    return much(one) > much(other)


def _of_profile(name: str, bindings: Sequence[ShadowBinding], settings: str, *, now: float) -> dict[str, Any]:
    chose = [(each, each.choices[name]) for each in bindings if name in each.choices]
    mine = [(each, choice) for each, choice in chose if choice.settings == settings]
    kinds = Counter(choice.kind for _, choice in mine)
    others = [each for each, choice in mine if choice.kind == "other"]
    pairs = [(each, choice.node) for each, choice in mine if choice.kind == "other"]
    blocks = [_block(each) for each, _ in mine]
    return {
        "profile": name,
        "bindings": len(mine),
        "with_other_settings": len(chose) - len(mine),
        "not_in_shadow": len(bindings) - len(chose),
        **{kind: kinds[kind] for kind in ("same", "tied", "other", "none")},
        "other_share": share([choice.kind == "other" for _, choice in mine], blocks),
        "difference": {
            resource: {"now": _now(pairs, index), "later": _later(pairs, index, now=now)}
            for index, resource in enumerate(RESOURCES)
        },
        "pod_cpu": _mean([each.pod_cpu for each in others if each.pod_cpu is not None]),
    }


def _now(pairs: Sequence[tuple[ShadowBinding, str]], index: int) -> dict[str, Any]:
    found = [(_difference(each.load, node, each.node, index), _block(each)) for each, node in pairs]
    known = [(value, block) for value, block in found if value is not None]
    return {**mean(known), "unknown": len(found) - len(known)}


def _later(pairs: Sequence[tuple[ShadowBinding, str]], index: int, *, now: float) -> dict[str, Any]:
    """Return the observed later difference; `pending` readings are still due, `unknown` are missing because a node had
    no load or the reading was skipped."""
    pending = sum(each.later is None and now <= each.time + LATER_S + GRACE_S for each, _ in pairs)
    known = [
        (value, _block(each))
        for each, node in pairs
        if each.later is not None and (value := _difference(each.later, node, each.node, index)) is not None
    ]
    return {**mean(known), "pending": pending, "unknown": len(pairs) - pending - len(known)}


def _difference(load: Mapping[str, Load], chosen: str, bound: str, index: int) -> float | None:
    """Return the load of the chosen node minus that of the actual node, in percentage points."""
    one, other = load.get(chosen, (None, None))[index], load.get(bound, (None, None))[index]
    return None if one is None or other is None else one - other


def _block(binding: ShadowBinding) -> int:
    return int(binding.time // BLOCK_S)


def _mean(values: Sequence[float]) -> float | None:
    return round(math.fsum(values) / len(values), 6) if values else None


# --- confidence intervals --------------------------------------------------------------------------------------------


def mean(values: Sequence[tuple[float, int]]) -> dict[str, Any]:
    """Return count, number of blocks, mean, and interval of values with their blocks; the interval is None with fewer
    than FEWEST_BLOCKS blocks, and the mean is None without values."""
    sums, counts = _by_block(values)
    known: dict[str, Any] = {"count": len(values), "blocks": len(counts), "mean": _mean([each for each, _ in values])}
    low, high = bootstrap(sums, counts) if len(counts) >= FEWEST_BLOCKS else (None, None)
    return {**known, "low": low, "high": high}


def bootstrap(sums: F64, counts: F64) -> tuple[float, float]:
    """Return the central CONFIDENCE interval of the means of RESAMPLES draws of as many blocks [b], with
    replacement."""
    chance = np.random.default_rng(_SEED)
    blocks = len(counts)
    means: list[F64] = []
    rows = max(1, min(RESAMPLES, _AT_ONCE // blocks))
    for begun in range(0, RESAMPLES, rows):
        drawn = chance.integers(0, blocks, size=(min(rows, RESAMPLES - begun), blocks))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(np.concatenate(means), [tail, 1.0 - tail])
    return round(float(low), 6), round(float(high), 6)


def share(hits: Sequence[bool], blocks: Sequence[int]) -> dict[str, Any]:
    """Return the share of hits with Wilson's interval over the effective sample size; all None without bindings."""
    if not hits:
        return {"value": None, "low": None, "high": None, "effective": 0.0}
    sums, counts = _by_block([(float(hit), block) for hit, block in zip(hits, blocks, strict=True)])
    value = sum(hits) / len(hits)
    effective = effective_number(sums, counts)
    low, high = wilson(value, effective)
    return {"value": round(value, 6), "low": low, "high": high, "effective": round(effective, 3)}


def effective_number(hits: F64, counts: F64) -> float:
    """Return the effective sample size of these blocks [b]: p (1 - p) / the between-block variance of the share p,
    reduced if that variance is estimated from few blocks (Korn and Graubard 1998: by the square of z / t). If all
    bindings have the same result or there is one block, return the number of blocks."""
    total, blocks = float(counts.sum()), len(counts)
    value = float(hits.sum()) / total
    if blocks < 2 or value in (0.0, 1.0):
        return float(blocks)
    variance = float(((hits - value * counts) ** 2).sum()) * blocks / (blocks - 1) / total**2
    found = total if variance <= 0.0 else min(total, value * (1.0 - value) / variance)
    return max(1.0, found * (NORMAL_975 / student_975(blocks - 1)) ** 2)


def wilson(value: float, number: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share observed in `number` trials."""
    z2 = NORMAL_975**2
    middle = (value + z2 / (2.0 * number)) / (1.0 + z2 / number)
    half = NORMAL_975 / (1.0 + z2 / number) * math.sqrt(value * (1.0 - value) / number + z2 / (4.0 * number**2))
    return round(max(0.0, middle - half), 6), round(min(1.0, middle + half), 6)


def _by_block(values: Sequence[tuple[float, int]]) -> tuple[F64, F64]:
    """Return sums and counts by block [b]."""
    number = {block: i for i, block in enumerate(sorted({block for _, block in values}))}
    where = [number[block] for _, block in values]
    sums = np.bincount(where, weights=[value for value, _ in values], minlength=len(number)).astype(np.float64)
    return sums, np.bincount(where, minlength=len(number)).astype(np.float64)
