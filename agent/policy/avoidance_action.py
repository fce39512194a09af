"""AvoidanceAction objects: from a document to the action that the analyzer uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from agent import model
from agent.policy import schema
from agent.policy.documents import PolicyDocument
from agent.policy.metadata import _annotation
from agent.policy.problems import ProblemCollector, near, shown
from watcher.core.config.reader import read

_GENTLE: tuple[model.GentleKnob, ...] = (model.CPU_WEIGHT, model.MEMORY_HIGH)


def _avoidance_action(document: PolicyDocument, complaints: ProblemCollector) -> model.AvoidanceAction:
    with complaints.at("spec"):
        spec = read(schema.AvoidanceActionSpec, document.content.get("spec"), complaints)
        throttle = spec.throttle.cpu_throttle if spec.throttle is not None else None
        if throttle is not None and throttle.step_cpu_ratio == 0:
            with complaints.at("throttle"), complaints.at("cpuThrottle"):
                if complaints.is_clean():
                    complaints.notice("does not throttle: stepCPURatio is 0")
        if spec.throttle is not None and throttle is None:
            with complaints.at("throttle"):
                complaints.notice("does not throttle CPU: it has no cpuThrottle")
    memory = spec.throttle.memory_throttle if spec.throttle is not None else None
    gentle = _gentle(document, complaints)
    if model.CPU_WEIGHT in gentle and throttle is None:
        with _at_annotation(schema.GENTLE_ANNOTATION, complaints):
            complaints.notice(f"{model.CPU_WEIGHT} has no effect: it precedes cpuThrottle, which is missing")
    return model.AvoidanceAction(
        name=document.name,
        cool_down_seconds=float(spec.cool_down_seconds),
        throttle=None if throttle is None else model.CpuThrottle(throttle.min_cpu_ratio, throttle.step_cpu_ratio),
        restore_step_ratio=_restore_step(document, complaints),
        force_gc=memory is not None and memory.force_gc,
        evicts=spec.eviction is not None,
        grace_seconds=_grace(spec.eviction),
        soft_limits=gentle,
    )


def _grace(eviction: schema.EvictionSpec | None) -> float | None:
    seconds = None if eviction is None else eviction.termination_grace_period_seconds
    return None if seconds is None else float(seconds)


def _restore_step(document: PolicyDocument, complaints: ProblemCollector) -> int | None:
    text = _annotation(document, schema.RESTORE_STEP_ANNOTATION)
    if not text:
        return None
    if re.fullmatch(r"\d{1,3}", text, re.ASCII) and 1 <= int(text) <= 100:
        return int(text)
    with _at_annotation(schema.RESTORE_STEP_ANNOTATION, complaints):
        complaints.problem(f"must be a whole number from 1 to 100, and is {shown(text)}")
    return None


def _gentle(document: PolicyDocument, complaints: ProblemCollector) -> frozenset[model.GentleKnob]:
    """The soft limits to set first, from the comma-separated annotation."""
    names = [name.strip() for name in _annotation(document, schema.GENTLE_ANNOTATION).split(",") if name.strip()]
    with _at_annotation(schema.GENTLE_ANNOTATION, complaints):
        for name in names:
            if name not in _GENTLE:
                complaints.problem(f"unknown soft limit {shown(name)}", near(name, _GENTLE))
    return frozenset(knob for knob in _GENTLE if knob in names)


@contextmanager
def _at_annotation(name: str, complaints: ProblemCollector) -> Iterator[None]:
    with complaints.at("metadata"), complaints.at("annotations"), complaints.at(name):
        yield
