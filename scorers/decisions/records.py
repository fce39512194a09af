"""Records of the decision log: decisions about pods with their outcomes, and the bindings of shadow mode.

msgspec writes a record into the database, and its parts into the responses about decisions (`documents`). Only the
nodes of a ranking have another form in responses: records have columns of steps, which take a third of the space of
rows, and after compression a tenth less.

A decision groups the extender calls of one attempt to place a pod: filter, then prioritize. Of thousands of nodes, the
record has the best few with all steps of their scores, and the node that the pod was bound to, whatever its rank; of
the rejected nodes it has the count per reason and some names.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from scorers.cluster.pods import PodInfo
from scorers.plugin_api.framework import Scores, Verdicts
from scorers.plugin_api.wire import integer_scores, plain, plain_map
from scorers.profiles.profiles import PluginSettings
from scorers.profiles.ranking import FilterResult, RankResult
from watcher.arrays import F64
from watcher.client import Columns
from watcher.core.decisions import DecisionKind
from watcher.core.publishing.compression import zstd_frame
from watcher.decoding.json_text import JsonDecoder

BEST_NODES = 10
"""Number of nodes recorded per ranking."""
REJECTED_NAMES = 5
"""Number of node names recorded per rejection reason."""
MOST_RESOURCES = 32
"""Number of resources recorded per pod; limits the size of a decision."""
LARGEST = 4 << 20
"""Maximum decompressed size of a stored decision, in bytes."""
_LEVEL = 3  # zstd level: output a quarter smaller than with level 1, at 50 µs per decision


class LoadInputs(msgspec.Struct, frozen=True):
    """The load data that the decision used: `window_end` in unix seconds, its age at that time, and the averaging
    window."""

    source: str
    window_end: int
    age_s: float
    window: str = ""


class RejectionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The nodes rejected for one reason: their number, the first names, and details about these by name."""

    reason: str
    count: int
    nodes: tuple[str, ...]
    details: dict[str, str] = {}


class FilterPluginRecord(msgspec.Struct, frozen=True):
    """A filter plug-in: its inputs and the nodes that it rejected."""

    name: str
    inputs: dict[str, Any] = {}
    rejected: tuple[RejectionRecord, ...] = ()


class FilterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A filter response: of `asked` nodes `unknown` were unknown to the table; `passed` nodes passed, including the
    unknown ones. `reserved` is the node on which the pod was reserved because no other node passed, "" if none."""

    asked: int
    unknown: int
    passed: int
    reserved: str = ""
    plugins: tuple[FilterPluginRecord, ...] = ()


class ScorePluginRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A scoring plug-in for k nodes of a ranking: scores 0 to 100 [k], values of each step [k], and reasons [k]."""

    name: str
    weight: int
    scores: tuple[float | None, ...]
    reasons: tuple[str, ...]
    steps: dict[str, tuple[Any, ...]] = {}
    inputs: dict[str, Any] = {}


class RankedNodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some nodes of a ranking [k], best first: scores 0 to 100, ranks from 1 (equal scores share a rank), times of
    their newest samples (unix seconds), and results of each plug-in."""

    names: tuple[str, ...]
    scores: tuple[float, ...]
    ranks: tuple[int, ...]
    sampled: tuple[float | None, ...]
    plugins: tuple[ScorePluginRecord, ...]


class RankingRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prioritize response: of `asked` nodes, `unknown` are unknown to the table and `of` are ranked; `best` are the
    highest-ranked nodes. kube-scheduler receives integers from 0 to `most`; `tied` nodes share the highest. `reserved`
    is the node on which the pod was reserved, "" if none. `withheld`: 0 was sent for all nodes because too few of them
    are known."""

    asked: int
    unknown: int
    of: int
    best: RankedNodes
    most: int
    tied: int
    reserved: str = ""
    withheld: bool = False


class PlacementDecision(msgspec.Struct, frozen=True, omit_defaults=True):
    """A decision of a profile at `time` (unix seconds) about a pod with these effective requests and limits. `filtered`
    or `ranking` is None if that call was not made."""

    kind: ClassVar[DecisionKind] = "placement"

    time: float
    profile: str
    namespace: str
    name: str
    uid: str
    requests: dict[str, int] = {}
    limits: dict[str, int] = {}
    load: LoadInputs | None = None
    filtered: FilterRecord | None = None
    ranking: RankingRecord | None = None

    def encode(self) -> bytes:
        """Encode as JSON, compressed with zstd, with a checksum."""
        return zstd_frame(msgspec.json.encode(self), level=_LEVEL, checksum=True)


class PlacementOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The observed outcome of a pod at `time` (unix seconds): "bound" to a node, or "deleted" before that. `chosen` is
    the node's entry in the ranking if it is not among the best; `asked` is false if the extender did not rank the node.
    """

    kind: str
    time: float
    node: str = ""
    chosen: RankedNodes | None = None
    asked: bool = True


# --- bindings of shadow mode -----------------------------------------------------------------------------------------

LATER_S = 900.0
"""Seconds after the binding at which the load of the nodes is read again."""
GRACE_S = 120.0
"""Maximum delay of that reading in seconds; after that it is skipped."""

Candidates = Literal["asked", "estimated"]
"""Origin of the candidate nodes: "asked", kube-scheduler's request to the extender; "estimated", all nodes where known
rules allow the pod."""

Kind = Literal["same", "tied", "other", "none"]
"""The profile's choice compared with the actual node: "same"; "tied", the actual node has the same score as sent to
kube-scheduler; "other", another node; "none", its filters reject all nodes."""

Load = tuple[float | None, float | None]
"""CPU and memory load of a node, mean over the longest window in percent of capacity; None if unknown."""

LEFT_OUT = {
    "pod_unreadable": "the pod's requests are invalid",
    "node_unknown": "the node is unknown to the extender",
    "no_load": "load is unknown for the actual node or for most nodes",
    "constraints": "the pod has affinity or spreading rules, and kube-scheduler did not call the extender for it",
    "no_choice": "only one node was possible",
    "seen_late": "the binding was observed too late: the load at that time is unknown",
    "too_many": "too many bindings at once",
    "failed": "a plug-in failed; see the log",
}
"""Reasons why a binding is not evaluated, with their descriptions."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profile's choice. `settings` is the hash of its plug-ins and arguments at that time."""

    settings: str
    kind: Kind
    node: str = ""


class ShadowBinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod was bound to `node` at `time` (unix seconds). `of` is the number of candidates. `pod_cpu` is the pod's CPU
    request in percent of the node's CPU capacity. `load` is the load of this node and of the chosen nodes at that time;
    `later` is their load after LATER_S, None if not read yet or if no profile chose another node. If `left_out` is set,
    the other fields are mostly empty and `count` bindings are summarized."""

    kind: ClassVar[DecisionKind] = "shadow"

    time: float
    namespace: str = ""
    name: str = ""
    uid: str = ""
    node: str = ""
    left_out: str = ""
    count: int = 1
    candidates: Candidates = "estimated"
    of: int = 0
    pod_cpu: float | None = None
    choices: dict[str, Choice] = {}
    load: dict[str, Load] = {}
    later: dict[str, Load] | None = None

    @property
    def has_other_choice(self) -> bool:
        """Whether any profile chose another node; then the load is read again later."""
        return any(choice.kind == "other" for choice in self.choices.values())

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


# --- building records from arrays ------------------------------------------------------------------------------------


def new_decision(
    info: PodInfo, *, profile: str, time: float, columns: Columns | None, window: str, identity: str
) -> PlacementDecision:
    """Create a decision without results."""
    metadata = info.pod.metadata
    load = None
    if columns is not None:
        load = LoadInputs(columns.source, columns.window_end, round(time - columns.window_end, 3), window)
    return PlacementDecision(
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


def filter_record(filtered: FilterResult, names: Sequence[str], *, asked: int, reserved: str = "") -> FilterRecord:
    """Build the filter record from the verdicts about the known nodes `names` [n], of `asked` nodes in the request."""
    unknown = asked - len(names)
    through = np.ones(len(names), dtype=np.bool_)
    for _, verdicts in filtered.parts:
        through &= verdicts.passed
    seen = tuple(_filter_seen(each, verdicts, names) for each, verdicts in filtered.parts)
    return FilterRecord(asked, unknown, int(np.count_nonzero(through)) + unknown, reserved, seen)


def _filter_seen(each: PluginSettings, verdicts: Verdicts, names: Sequence[str]) -> FilterPluginRecord:
    counts = np.bincount(verdicts.codes, minlength=1)
    rejected = []
    for code in (np.flatnonzero(counts[1:]) + 1).tolist():
        where = np.flatnonzero(verdicts.codes == code).tolist()
        first = heapq.nsmallest(REJECTED_NAMES, where, key=names.__getitem__)
        details = {names[i]: text for i in first if (text := verdicts.details(i))}
        rejected.append(
            RejectionRecord(verdicts.reasons[code], int(counts[code]), tuple(names[i] for i in first), details)
        )
    rejected.sort(key=lambda one: (-one.count, one.reason))
    return FilterPluginRecord(each.name, plain_map(verdicts.inputs), tuple(rejected))


def ranking_record(
    ranked: RankResult,
    names: Sequence[str],
    *,
    sampled: F64,
    asked: int,
    most: int,
    reserved: str = "",
    withheld: bool = False,
) -> RankingRecord:
    """Build the ranking record from the scores of the known nodes `names` [n]; `sampled` [n] are their newest samples
    (unix seconds)."""
    best = nodes_at(best_of(ranked.values, names, BEST_NODES), ranked, names, sampled=sampled)
    whole = integer_scores(ranked.values, most)
    tied = int(np.count_nonzero(whole == whole.max(initial=0)))
    return RankingRecord(asked, asked - len(names), len(names), best, most, tied, reserved, withheld)


def outline(decision: PlacementDecision) -> PlacementDecision:
    """Reduce a decision to what its outcome needs (the names, scores, and ranks of the best nodes)."""
    ranking = decision.ranking
    if ranking is not None:
        best = RankedNodes(ranking.best.names, ranking.best.scores, ranking.best.ranks, (), ())
        ranking = msgspec.structs.replace(ranking, best=best)
    return msgspec.structs.replace(decision, requests={}, limits={}, filtered=None, ranking=ranking)


def best_of(values: F64, names: Sequence[str], most: int) -> list[int]:
    """Return the positions of the highest values, best first, equal ones ordered by name."""
    if len(values) > most:
        lowest = np.partition(values, len(values) - most)[len(values) - most]
        found = np.flatnonzero(values > lowest).tolist()
        equal = np.flatnonzero(values == lowest).tolist()
        found += heapq.nsmallest(most - len(found), equal, key=names.__getitem__)
    else:
        found = list(range(len(values)))
    return sorted(found, key=lambda i: (-values[i], names[i]))


def nodes_at(positions: Sequence[int], ranked: RankResult, names: Sequence[str], *, sampled: F64) -> RankedNodes:
    """Build the records of the nodes at these positions."""
    where = np.array(positions, dtype=np.int64)
    values = ranked.values
    return RankedNodes(
        tuple(names[i] for i in positions),
        tuple(_finite(values[where])),
        tuple(int(np.count_nonzero(values > values[i])) + 1 for i in positions),
        tuple(_finite(sampled[where])),
        tuple(_score_seen(each, scores, where) for each, scores in ranked.parts),
    )


def _score_seen(each: PluginSettings, scores: Scores, where: npt.NDArray[np.int64]) -> ScorePluginRecord:
    nodes = where.tolist()
    more = [plain_map(scores.more_steps(i)) for i in nodes]
    steps = {name: tuple(_finite(array[where])) for name, array in scores.steps.items()}
    return ScorePluginRecord(
        each.name,
        each.weight,
        tuple(_finite(scores.values[where])),
        tuple(scores.reason(i) for i in nodes),
        steps | {name: tuple(each[name] for each in more) for name in (more[0] if more else ())},
        plain_map(scores.inputs),
    )


def _finite(values: npt.NDArray[Any]) -> list[Any]:
    found = values.tolist()
    return found if np.isfinite(values).all() else [plain(value) for value in found]


# --- encoding --------------------------------------------------------------------------------------------------------

_DECISION = JsonDecoder(PlacementDecision)
_OUTCOME = JsonDecoder(PlacementOutcome)
_BINDING = JsonDecoder(ShadowBinding)


def decode_decision(payload: bytes) -> PlacementDecision:
    """Decode a stored decision. Raises ValueError for invalid data."""
    try:
        text = zstandard.ZstdDecompressor(max_window_size=LARGEST).decompress(payload, max_output_size=LARGEST)
        return _DECISION.decode(text)
    except (zstandard.ZstdError, msgspec.DecodeError) as error:
        raise ValueError(f"invalid stored decision: {error}") from error


def encode_outcome(outcome: PlacementOutcome) -> str:
    return msgspec.json.encode(outcome).decode()


def decode_outcome(text: str) -> PlacementOutcome | None:
    """Decode a stored outcome, None for an empty text (outcome unknown). Raises ValueError for invalid data."""
    try:
        return _OUTCOME.decode(text) if text else None
    except msgspec.DecodeError as error:
        raise ValueError(f"invalid stored outcome: {error}") from error


def decode_binding(payload: bytes) -> ShadowBinding | None:
    """Decode a stored binding; None if it cannot be decoded, since records of a newer version must not hide the
    others."""
    try:
        return _BINDING.decode(payload)
    except msgspec.DecodeError:
        return None
