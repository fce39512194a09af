"""Parsing and formatting of NodeMetric rules for groups of nodes: `koordinator.nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from watcher import model
from watcher.core.config import quantities
from watcher.core.config.model_values import WINDOWS, window
from watcher.core.config.records import read_record, schema_of, text_of_json, write_record
from watcher.core.config.values import InvalidValue, ValueKind, write_text
from watcher.core.koordinator.collect_policy import SHORTEST_INTERVAL_S, SHORTEST_PERIOD_S, PolicyOverride, PolicyRule

REPORT_INTERVAL = quantities.whole_seconds(lowest=SHORTEST_INTERVAL_S, highest=3600)
AGGREGATE_DURATION = quantities.whole_seconds(lowest=SHORTEST_PERIOD_S, highest=86400)


def _read_names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidValue
    return tuple(value)


def _read_labels(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise InvalidValue
    return value


def _write_labels(labels: Mapping[str, str]) -> str:
    return f"{{ {', '.join(f'{write_text(key)} = {write_text(text)}' for key, text in labels.items())} }}"


_NAMES = ValueKind(
    'a list of patterns, like ["gpu-*"]',
    _read_names,
    {"type": "array", "items": {"type": "string"}},
    write=lambda names: "[" + ", ".join(map(write_text, names)) + "]",
)
_LABELS = ValueKind(
    'a table of texts, like { pool = "gpu" }',
    _read_labels,
    {"type": "object", "additionalProperties": {"type": "string"}},
    write=_write_labels,
)


@dataclass(frozen=True)
class _RuleTable:
    names: Annotated[tuple[str, ...], _NAMES] = ()
    labels: Annotated[Mapping[str, str], _LABELS] = field(default_factory=dict)
    report_interval: Annotated[int | None, REPORT_INTERVAL] = None
    aggregate_duration: Annotated[int | None, AGGREGATE_DURATION] = None
    aggregate_durations: Annotated[tuple[model.Window, ...] | None, WINDOWS] = None


_KEYS = tuple(_RuleTable.__dataclass_fields__)


def _read_rules(value: Any) -> tuple[PolicyRule, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidValue
    return tuple(_one_rule(number, each) for number, each in enumerate(value, start=1))


def _one_rule(number: int, given: Mapping[str, Any]) -> PolicyRule:
    table = read_record(_RuleTable, given, called=f"rule {number}")
    if not table.names and not table.labels:
        raise InvalidValue(f"rule {number} selects no nodes: it has neither names nor labels")
    durations = table.aggregate_durations
    seconds = None if durations is None else tuple(each.seconds for each in durations)
    part = PolicyOverride(table.report_interval, table.aggregate_duration, seconds)
    if part == PolicyOverride():
        raise InvalidValue(f"rule {number} changes nothing; set one of {', '.join(_KEYS[2:])}")
    return PolicyRule(part, table.names, tuple(table.labels.items()))


def _write_rule(rule: PolicyRule) -> str:
    part, durations = rule.part, rule.part.durations_s
    windows = None if durations is None else tuple(window(f"{seconds}s") for seconds in durations)
    return write_record(
        _RuleTable(rule.names, dict(rule.labels), part.report_interval_s, part.aggregate_duration_s, windows)
    )


POLICY_RULES = ValueKind(
    'a list of tables, like [{ names = ["gpu-*"], report_interval = "30s" }] (environment: the same as JSON)',
    _read_rules,
    {"type": "array", "items": schema_of(_RuleTable)},
    text=text_of_json(_read_rules),
    write=lambda rules: "[" + ", ".join(map(_write_rule, rules)) + "]",
    brief=f"list of tables with {', '.join(_KEYS)}; environment: JSON",
)
