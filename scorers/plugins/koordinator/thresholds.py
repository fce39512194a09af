"""The thresholds that apply to a node: from the arguments, or replacements from its annotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from scorers.cluster.node_metrics import Aggregation
from scorers.plugins.koordinator.arguments import LoadAwareSchedulingArgs, is_served, unserved
from watcher.core.koordinator.usage_thresholds import ANNOTATION
from watcher.core.kubernetes.objects import Node
from watcher.core.kubernetes.times import read_duration
from watcher.decoding.json_text import decode_json
from watcher.model import Window


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Percent by resource: for all usage, for the usage of prod pods, and for usage of the type `aggregation` ("":
    none) over `seconds` (0: the longest window)."""

    usage: Mapping[str, int]
    prod: Mapping[str, int]
    aggregated: Mapping[str, int]
    aggregation: str
    seconds: float


class _CustomAggregated(msgspec.Struct, frozen=True, rename="camel"):
    usage_thresholds: dict[str, int] = {}
    usage_aggregation_type: Aggregation | None = None
    usage_aggregated_duration: str = ""


class _Custom(msgspec.Struct, frozen=True, rename="camel"):
    usage_thresholds: dict[str, int] | None = None
    prod_usage_thresholds: dict[str, int] | None = None
    aggregated_usage: _CustomAggregated | None = None


def thresholds_of_arguments(args: LoadAwareSchedulingArgs) -> Thresholds:
    """The thresholds of the arguments; aggregated ones only if both thresholds and a type are given."""
    aggregation = args.aggregation
    kind = aggregation.usage_aggregation_type if aggregation.usage_thresholds else ""
    seconds = read_duration(aggregation.usage_aggregated_duration) or 0.0
    return Thresholds(args.thresholds, args.prod_usage_thresholds, aggregation.usage_thresholds, kind, seconds)


def thresholds_of_node(node: Node, given: Thresholds, *, windows: Sequence[Window] = ()) -> Thresholds:
    """The given thresholds with the node's annotation applied; it replaces each of the three parts as a whole.
    `windows` are the available aggregation windows; empty if any duration is allowed. Raises ValueError for an invalid
    annotation or an unavailable duration; the given thresholds then apply."""
    text = node.metadata.annotations.get(ANNOTATION, "")
    if not text:
        return given
    try:
        custom = decode_json(text, type=_Custom)
    except msgspec.DecodeError as error:
        raise ValueError(f"{ANNOTATION}: {error}") from None
    found = given
    if custom.usage_thresholds:
        found = replace(found, usage=_checked(custom.usage_thresholds))
    if custom.prod_usage_thresholds:
        found = replace(found, prod=_checked(custom.prod_usage_thresholds))
    own = custom.aggregated_usage
    if own is not None and own.usage_thresholds and own.usage_aggregation_type:
        seconds = read_duration(own.usage_aggregated_duration) if own.usage_aggregated_duration else 0.0
        if seconds is None:
            raise ValueError(f"{ANNOTATION}: {own.usage_aggregated_duration[:40]!r} is not a valid duration")
        if windows and seconds and not is_served(own.usage_aggregated_duration, windows):
            raise ValueError(f"{ANNOTATION}: {unserved(own.usage_aggregated_duration, windows)}")
        thresholds = _checked(own.usage_thresholds)
        found = replace(found, aggregated=thresholds, aggregation=own.usage_aggregation_type, seconds=seconds)
    return found


def _checked(thresholds: Mapping[str, int]) -> Mapping[str, int]:
    for name, threshold in thresholds.items():
        if not 0 <= threshold <= 100:
            raise ValueError(f"{ANNOTATION}: {name}: must be 0 to 100 (given: {threshold})")
    return thresholds
