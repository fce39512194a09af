"""A decision about a pod as it is remembered: what was asked, what the plug-ins saw and said, and what became of it.

A decision is what belongs together of what kube-scheduler asks in one attempt to place a pod: filter, then prioritize.
Of thousands of nodes the best few are remembered with all that led to their scores, and the node that the pod was
bound to, wherever it stood; of the rejected how many, why, and some names. Plug-ins' steps are kept as they are
computed, a column a step, which is a third of what a row a node would take.

Pure: no I/O, and no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from scorers.cluster.pods import PodInfo
from scorers.plugin_api.framework import Scores, Verdicts
from scorers.plugin_api.json import plain, plain_map
from scorers.profiles.profiles import PluginSettings
from scorers.profiles.ranking import Filtered, Ranked
from watcher.client import Columns

F64 = npt.NDArray[np.float64]

BEST = 10
"""So many nodes of a ranking are remembered."""
SOME = 5
"""So many names of the nodes that were rejected for one reason."""
MOST_RESOURCES = 32
"""So many of a pod's resources: a decision must not become as large as somebody's manifest."""
LARGEST = 4 << 20
"""Bytes that a stored decision may decompress to."""
_LEVEL = 3  # of zstd: a quarter smaller than 1, and a decision takes 50 µs


class LoadSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load that was gone by: `window_end` in unix seconds, how old that was, and over how long it is averaged."""

    source: str
    window_end: int
    age_s: float
    window: str = ""


class Rejected(msgspec.Struct, frozen=True):
    """For one reason: how many nodes, and the first of them by name."""

    reason: str
    count: int
    nodes: tuple[str, ...]


class FilterSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plug-in that filters: what it went by, and whom it rejected."""

    name: str
    inputs: dict[str, Any] = {}
    rejected: tuple[Rejected, ...] = ()


class Passed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to filter: of `asked` nodes `unknown` were not known, and `passed` may have the pod."""

    asked: int
    unknown: int
    passed: int
    plugins: tuple[FilterSeen, ...] = ()


class ScoreSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """A plug-in that scores, over the nodes of a ranking: scores [k], each step's values [k], and sentences [k]."""

    name: str
    weight: int
    scores: tuple[float | None, ...]
    reasons: tuple[str, ...]
    steps: dict[str, tuple[Any, ...]] = {}
    inputs: dict[str, Any] = {}


class Nodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some nodes of a ranking [k], best first: scores 0 to 100, ranks from 1 with equal ones for equal scores, the
    times of their newest samples, and what each plug-in said."""

    names: tuple[str, ...]
    scores: tuple[float, ...]
    ranks: tuple[int, ...]
    sampled: tuple[float | None, ...]
    plugins: tuple[ScoreSeen, ...]


class Ranking(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to prioritize: of `asked` nodes `unknown` were not known, `of` were ranked, of which `best` are the
    first. kube-scheduler is told whole numbers from 0 to `most`; `tied` nodes have the highest of them. The pod was
    counted on the node `reserved`, if on any. `withheld`: it was told 0 of all, as too few of them are known."""

    asked: int
    unknown: int
    of: int
    best: Nodes
    most: int
    tied: int
    reserved: str = ""
    withheld: bool = False


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """At `time` (unix seconds) a profile was asked about a pod, with these effective requests and limits; `filtered`
    and `ranking` are None where that was not asked."""

    time: float
    profile: str
    namespace: str
    name: str
    uid: str
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    load: LoadSeen | None = None
    filtered: Passed | None = None
    ranking: Ranking | None = None


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was seen to become of a pod at `time`: "bound" to a node, or "deleted" before it was. `chosen` is the node
    in the ranking where it is not among the best; `asked` is false where we were not asked about it."""

    kind: str
    time: float
    node: str = ""
    chosen: Nodes | None = None
    asked: bool = True


# --- what is taken from the arrays -----------------------------------------------------------------------------------


def about(info: PodInfo, *, profile: str, time: float, columns: Columns | None, window: str, identity: str) -> Decision:
    """A decision of which nothing is answered yet."""
    metadata = info.pod.metadata
    load = None
    if columns is not None:
        load = LoadSeen(columns.source, columns.window_end, round(time - columns.window_end, 3), window)
    return Decision(
        time,
        profile,
        metadata.namespace or "default",
        metadata.name,
        identity,
        _first(info.requests),
        _first(info.limits),
        load,
    )


def _first(amounts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(amounts.items())[:MOST_RESOURCES])


def passed(filtered: Filtered, names: Sequence[str], *, asked: int) -> Passed:
    """From the verdicts about the known nodes `names` [n], of those that were asked about."""
    unknown = asked - len(names)
    through = np.ones(len(names), dtype=np.bool_)
    for _, verdicts in filtered.parts:
        through &= verdicts.passed
    seen = tuple(_filter_seen(each, verdicts, names) for each, verdicts in filtered.parts)
    return Passed(asked, unknown, int(np.count_nonzero(through)) + unknown, seen)


def _filter_seen(each: PluginSettings, verdicts: Verdicts, names: Sequence[str]) -> FilterSeen:
    counts = np.bincount(verdicts.codes, minlength=1)
    rejected = [
        Rejected(
            verdicts.reasons[code],
            int(counts[code]),
            tuple(heapq.nsmallest(SOME, (names[i] for i in np.flatnonzero(verdicts.codes == code).tolist()))),
        )
        for code in (np.flatnonzero(counts[1:]) + 1).tolist()
    ]
    rejected.sort(key=lambda one: (-one.count, one.reason))
    return FilterSeen(each.name, plain_map(verdicts.inputs), tuple(rejected))


def ranking(
    ranked: Ranked,
    names: Sequence[str],
    *,
    sampled: F64,
    asked: int,
    most: int,
    reserved: str = "",
    withheld: bool = False,
) -> Ranking:
    """From the scores of the known nodes `names` [n], whose newest samples are from `sampled` [n]."""
    best = nodes_at(best_of(ranked.values, names, BEST), ranked, names, sampled=sampled)
    whole = told_scores(ranked.values, most)
    tied = int(np.count_nonzero(whole == whole.max(initial=0)))
    return Ranking(asked, asked - len(names), len(names), best, most, tied, reserved, withheld)


def told_scores(scores: F64, most: int) -> npt.NDArray[np.int64]:
    """The whole numbers from 0 to `most` that kube-scheduler is told of scores from 0 to 100."""
    return np.floor(scores * (most / 100.0) + 0.5).astype(np.int64)


def outline(decision: Decision) -> Decision:
    """What it takes to say of a node whether it was among the best: without inputs, steps and reasons."""
    ranking = decision.ranking
    if ranking is not None:
        best = Nodes(ranking.best.names, ranking.best.scores, ranking.best.ranks, (), ())
        ranking = msgspec.structs.replace(ranking, best=best)
    return msgspec.structs.replace(decision, requests={}, limits={}, filtered=None, ranking=ranking)


def best_of(values: F64, names: Sequence[str], most: int) -> list[int]:
    """Positions of the highest, best first, equal ones by name."""
    if len(values) > most:
        lowest = np.partition(values, len(values) - most)[len(values) - most]
        found = np.flatnonzero(values > lowest).tolist()
        equal = np.flatnonzero(values == lowest).tolist()
        found += heapq.nsmallest(most - len(found), equal, key=names.__getitem__)
    else:
        found = list(range(len(values)))
    return sorted(found, key=lambda i: (-values[i], names[i]))


def nodes_at(positions: Sequence[int], ranked: Ranked, names: Sequence[str], *, sampled: F64) -> Nodes:
    """What there is to be told of the nodes at these positions."""
    where = np.array(positions, dtype=np.int64)
    values = ranked.values
    return Nodes(
        tuple(names[i] for i in positions),
        tuple(_finite(values[where])),
        tuple(int(np.count_nonzero(values > values[i])) + 1 for i in positions),
        tuple(_finite(sampled[where])),
        tuple(_score_seen(each, scores, where) for each, scores in ranked.parts),
    )


def _score_seen(each: PluginSettings, scores: Scores, where: npt.NDArray[np.int64]) -> ScoreSeen:
    return ScoreSeen(
        each.name,
        each.weight,
        tuple(_finite(scores.values[where])),
        tuple(scores.reason(i) for i in where.tolist()),
        {name: tuple(_finite(array[where])) for name, array in scores.steps.items()},
        plain_map(scores.inputs),
    )


def _finite(values: npt.NDArray[Any]) -> list[Any]:
    found = values.tolist()
    return found if np.isfinite(values).all() else [plain(value) for value in found]


# --- as bytes --------------------------------------------------------------------------------------------------------

_DECISION = msgspec.json.Decoder(Decision)
_OUTCOME = msgspec.json.Decoder(Outcome)


def encode(decision: Decision) -> bytes:
    """Compressed JSON, with a checksum."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(msgspec.json.encode(decision))


def decode(payload: bytes) -> Decision:
    """The decision; ValueError where this is none."""
    try:
        text = zstandard.ZstdDecompressor(max_window_size=LARGEST).decompress(payload, max_output_size=LARGEST)
        return _DECISION.decode(text)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise ValueError(f"a stored decision cannot be read: {error}") from error


def encode_outcome(outcome: Outcome) -> str:
    """JSON."""
    return msgspec.json.encode(outcome).decode()


def decode_outcome(text: str) -> Outcome | None:
    """None for what is not known yet; ValueError where this is none."""
    try:
        return _OUTCOME.decode(text) if text else None
    except msgspec.DecodeError as error:
        raise ValueError(f"a stored outcome cannot be read: {error}") from error
