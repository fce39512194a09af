"""Parsing and formatting of NodeMetric rules for groups of nodes: `koordinator.nodes`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from watcher.core.config import quantities, values
from watcher.core.config.model_values import WINDOWS
from watcher.core.config.values import ValueKind
from watcher.core.koordinator.collect_policy import SHORTEST_INTERVAL_S, SHORTEST_PERIOD_S, PolicyOverride, PolicyRule
from watcher.decoding.json_text import decode_json

_RULE_KEYS = ("names", "labels", "report_interval", "aggregate_duration", "aggregate_durations")
REPORT_INTERVAL = quantities.whole_seconds(lowest=SHORTEST_INTERVAL_S, highest=3600)
AGGREGATE_DURATION = quantities.whole_seconds(lowest=SHORTEST_PERIOD_S, highest=86400)


def _read_rules(value: Any) -> tuple[PolicyRule, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise values.InvalidValue
    return tuple(_one_rule(number, each) for number, each in enumerate(value, start=1))


def _read_rules_text(text: str) -> tuple[PolicyRule, ...]:
    try:
        return _read_rules(decode_json(text))
    except ValueError as error:
        raise values.InvalidValue(
            str(error) if isinstance(error, values.InvalidValue) else f"invalid JSON: {error}"
        ) from None


def _one_rule(number: int, given: Mapping[str, Any]) -> PolicyRule:
    if unknown := next((key for key in given if key not in _RULE_KEYS), None):
        raise values.InvalidValue(f"rule {number} has the unknown key {unknown!r}; known keys: {', '.join(_RULE_KEYS)}")
    names, labels = given.get("names", []), given.get("labels", {})
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise values.InvalidValue(f'names of rule {number} must be a list of patterns, like ["gpu-*"]')
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise values.InvalidValue(f'labels of rule {number} must be a table of texts, like {{ pool = "gpu" }}')
    if not names and not labels:
        raise values.InvalidValue(f"rule {number} selects no nodes: it has neither names nor labels")
    read = {key: _part_of_rule(number, key, given[key]) for key in _RULE_KEYS[2:] if key in given}
    if not read:
        raise values.InvalidValue(f"rule {number} changes nothing; set one of {', '.join(_RULE_KEYS[2:])}")
    durations = read.get("aggregate_durations")
    part = PolicyOverride(
        read.get("report_interval"),
        read.get("aggregate_duration"),
        None if durations is None else tuple(each.seconds for each in durations),
    )
    return PolicyRule(part, tuple(names), tuple(labels.items()))


def _part_of_rule(number: int, key: str, value: Any) -> Any:
    kind = _RULE_PARTS[key]
    try:
        return kind.read(value)
    except values.InvalidValue as unfit:
        detail = str(unfit) or f"given {values.describe(value)}"
        raise values.InvalidValue(f"{key} of rule {number} must be {kind.accepts}; {detail}") from None


def _write_rules(rules: tuple[PolicyRule, ...]) -> str:
    return "[" + ", ".join(map(_write_rule, rules)) + "]"


def _write_rule(rule: PolicyRule) -> str:
    part, written = rule.part, {}
    if rule.names:
        written["names"] = "[" + ", ".join(map(values.write_text, rule.names)) + "]"
    if rule.labels:
        pairs = ", ".join(f"{values.write_text(key)} = {values.write_text(text)}" for key, text in rule.labels)
        written["labels"] = f"{{ {pairs} }}"
    numbers = {"report_interval": part.report_interval_s, "aggregate_duration": part.aggregate_duration_s}
    for key, seconds in numbers.items():
        if seconds is not None:
            written[key] = values.write_text(quantities.write_duration(seconds))
    if part.durations_s is not None:
        durations = (values.write_text(quantities.write_duration(seconds)) for seconds in part.durations_s)
        written["aggregate_durations"] = f"[{', '.join(durations)}]"
    return "{ " + ", ".join(f"{key} = {text}" for key, text in written.items()) + " }"


_RULE_PARTS = {
    "report_interval": REPORT_INTERVAL,
    "aggregate_duration": AGGREGATE_DURATION,
    "aggregate_durations": WINDOWS,
}
POLICY_RULES = ValueKind(
    'a list of tables, like [{ names = ["gpu-*"], report_interval = "30s" }] (environment: the same as JSON)',
    _read_rules,
    text=_read_rules_text,
    write=_write_rules,
    brief=f"list of tables with {', '.join(_RULE_KEYS)}; environment: JSON",
    schema={
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "names": {"type": "array", "items": {"type": "string"}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                **{key: kind.schema for key, kind in _RULE_PARTS.items()},
            },
            "additionalProperties": False,
        },
    },
)
