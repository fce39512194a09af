"""What each rule does and does not do, for `load-watcher agent --check`."""

from __future__ import annotations

from agent import model
from agent.policy.node_qos import NodeQos
from agent.policy.policy_set import KnownMetrics, PolicySet

_ASKED: tuple[tuple[model.StageKind, str, str], ...] = (
    ("throttle", "throttles", "does not throttle"),
    ("reclaim", "reclaims page cache", "does not reclaim page cache"),
    ("hold", "lowers memory.high", "does not lower memory.high"),
    ("evict", "evicts", "does not evict"),
)


def rule_effects(policies: PolicySet, metrics: KnownMetrics) -> tuple[str, ...]:
    """One sentence for each rule, in the order of the policies."""
    values = [policies.objects[key].value for key in sorted(policies.objects)]
    actions = {each.name: each for each in values if isinstance(each, model.AvoidanceAction)}
    rules = [rule for each in values if isinstance(each, NodeQos) for rule in each.rules]
    return tuple(_effect(rule, actions.get(rule.action), metrics) for rule in rules)


def _effect(rule: model.Rule, action: model.AvoidanceAction | None, metrics: KnownMetrics) -> str:
    start = f"{rule.key}: above {rule.watermark:g} of {rule.metric}"
    if action is None:
        return f"{start}, does nothing: the AvoidanceAction {rule.action} does not exist"
    metric = metrics.get(rule.metric)
    done, not_done = ["keeps new pods away"], []
    for kind, does, does_not in _ASKED:
        if not _asks(action, kind):
            continue
        if metric is None or not metric.reduced_by(kind):
            not_done.append(f"{does_not}, because that does not reduce {rule.metric}")
        elif metric.quantified_for(kind):
            done.append(f"{does} until the gap is closed")
        else:
            done.append(f"{does} all allowed pods, because {rule.metric} has no gap in millicores or bytes")
    preview = " (preview: only reports it)" if rule.preview else ""
    return f"{start}, {', '.join(done)}{preview}" + "".join(f"; {each}" for each in not_done)


def _asks(action: model.AvoidanceAction, kind: model.StageKind) -> bool:
    return {
        "throttle": action.throttle is not None and action.throttle.step_ratio > 0,
        "reclaim": action.force_gc,
        "hold": model.MEMORY_HIGH in action.soft_limits,
        "evict": action.evicts,
    }[kind]
