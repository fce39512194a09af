"""What must hold for every layout: each check returns the errors with their place.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from tests.field.lab import HOT_PERCENT, Outcome
from tests.field.layout import Layout, Machine
from watcher.model import METRIC_BY_KEY

TOLERANCE = 0.02
"""A load may differ by this share: gauges vary by 0.4 %, and rates begin between two samples."""


def wrongs(layout: Layout, outcome: Outcome) -> list[str]:
    """All that is wrong."""
    return [wrong for check in CHECKS for wrong in check(layout, outcome)]


def _near(value: float | None, truth: float) -> bool:
    return value is not None and math.isclose(value, truth, rel_tol=TOLERANCE, abs_tol=1e-6)


def _known(layout: Layout) -> list[Machine]:
    """The nodes whose load is known."""
    expected = layout.expect
    return [] if expected.refused else [each for each in layout.nodes if each.key not in expected.unknown]


def _loads(layout: Layout, outcome: Outcome) -> Iterator[str]:
    """Each node has its load, in every metric that the layout expects."""
    for machine in _known(layout):
        loads = outcome.loads.get(machine.name)
        if loads is None:
            yield f"serve: node {machine.name} is missing; there are {', '.join(sorted(outcome.loads)) or 'none'}"
            continue
        for key, truth in machine.truth().items():
            name = METRIC_BY_KEY[key].name
            if key in layout.expect.metrics and not (key == "GPU" and not machine.gpus):
                value = loads.get(name)
                if not _near(value, truth):
                    yield f"serve: {key} of {machine.name} is {value} and not {truth:g}"


def _names(layout: Layout, outcome: Outcome) -> Iterator[str]:
    """No load is under a name that is not the machine's: nothing but nodes, and machines outside under own names."""
    known = {machine.name: machine for machine in _known(layout)}
    outside = {name: each for each in layout.machines if each.outside for name in (each.name, each.host, each.address)}
    for name, loads in sorted(outcome.loads.items()):
        machine = known.get(name) or outside.get(name)
        if machine is None:
            shown = {key: round(value, 3) for key, value in sorted(loads.items())}
            yield f"serve: {name} is the name of no machine with known load, and has {shown}"
        elif machine.outside:
            for key in ("CPU", "Memory"):
                value = loads.get(METRIC_BY_KEY[key].name)
                if value is not None and not _near(value, machine.truth()[key]):
                    yield f"serve: {key} of {name}, outside of the cluster, is {value}, not {machine.truth()[key]:g}"


def _findings(layout: Layout, outcome: Outcome) -> Iterator[str]:
    """The kinds of findings are those of the layout, no more and no less, and their words are there."""
    kinds = outcome.kinds()
    for kind in sorted(set(layout.expect.findings) - kinds):
        yield f"serve: no finding {kind}"
    for each in outcome.findings:
        if each["kind"] not in layout.expect.findings:
            yield f"serve: unexpected finding {each['kind']} of {each['node'] or 'the fleet'}: {each['reason']}"
    said = " ".join([*(each["reason"] for each in outcome.findings), str(outcome.doctor), outcome.report_error])
    for word in layout.expect.words:
        if word not in said:
            yield f"neither findings nor doctor nor report say {word!r}"


def _doctor(layout: Layout, outcome: Outcome) -> Iterator[str]:
    reported = outcome.doctor
    assert reported is not None
    if reported.status != layout.expect.doctor:
        bad = [f"{line.status} {line.name}: {line.what}" for line in reported.lines if line.status in ("warn", "fail")]
        yield f"doctor: {reported.status} and not {layout.expect.doctor}: {'; '.join(bad)}"


def _report(layout: Layout, outcome: Outcome) -> Iterator[str]:
    """The report has the nodes under their names, with their load and the requests of their pods."""
    if layout.source not in ("prometheus", "victoriametrics"):
        return
    report = outcome.report
    if not layout.expect.report:
        if report is not None:
            yield f"report: written although the nodes are not known: {report['findings']['hot']}"
        return
    if report is None:
        yield f"report: {outcome.report_error}"
        return
    heat = {each["node"]: each for each in report["hot"]["nodes"]}
    known = {machine.name: machine for machine in _known(layout)}
    outside = {name for each in layout.machines if each.outside for name in (each.name, each.host, each.address)}
    for name in sorted(heat.keys() - known.keys() - outside):
        yield f"report: {name} is the name of no machine with known load: CPU {heat[name]['cpu_mean']} %"
    for name, machine in known.items():
        if machine.key in layout.expect.new:
            continue
        mean = heat[name]["cpu_mean"] if name in heat else None
        if not _near(mean, 100.0 * machine.cpu):
            yield f"report: mean CPU of {name} is {mean} and not {100.0 * machine.cpu:g}"
    yield from _requests(layout, outcome)


def _requests(layout: Layout, outcome: Outcome) -> Iterator[str]:
    if not any(scrape.exporter == "state" for scrape in layout.scrapes) or outcome.report is None:
        return
    (cpu,) = (each for each in outcome.report["peaks"] if each["resource"] == "cpu")
    requested = {each["node"]: each["requested"] for each in cpu["nodes"]}
    for machine in _known(layout):
        if machine.key in layout.expect.new:
            continue
        truth = sum(pod.requested for pod in layout.all_pods() if pod.node == machine.key)
        if truth and not _near(requested.get(machine.name), truth):
            yield f"report: requests of {machine.name} are {requested.get(machine.name)} and not {truth:g} cores"


def _scheduling(layout: Layout, outcome: Outcome) -> Iterator[str]:
    """Hot nodes are filtered out and no others; scores follow the loads, and unknown nodes have the lowest."""
    if not layout.api:
        return
    known = {machine.name: machine for machine in _known(layout)}
    hot = {name for name, machine in known.items() if 100.0 * machine.cpu > HOT_PERCENT}
    if outcome.failed.keys() != hot:
        yield f"extender: rejects {sorted(outcome.failed)} and not {sorted(hot)}"
    for name, machine in known.items():
        truth = 10.0 * (1.0 - max(machine.cpu, machine.memory if "Memory" in layout.expect.metrics else 0.0) / 2.0)
        score = outcome.scores.get(name, -1)
        if abs(score - truth) > 0.6:
            yield f"extender: score of {name} is {score} and not {truth:.1f}"
    for name in sorted(outcome.scores.keys() - known.keys() if known else ()):
        if outcome.scores[name] != 0:
            yield f"extender: score of {name}, whose load is unknown, is {outcome.scores[name]} and not 0"


def _pods(layout: Layout, outcome: Outcome) -> Iterator[str]:
    """The usage of each pod that can be known is known, on its node."""
    if not layout.expect.pods:
        return
    names = {machine.key: machine.name for machine in layout.nodes}
    for pod in layout.all_pods():
        found = outcome.pods.get(f"{pod.namespace}/{pod.name}")
        if pod.node in layout.expect.no_pods:
            if found is not None:
                yield f"pods: {pod.name} has {found} although its usage cannot be known"
        elif found is None:
            yield f"pods: {pod.namespace}/{pod.name} is missing"
        elif found["node"] != names[pod.node] or not _near(found["cores"], pod.cores):
            yield f"pods: {pod.name} has {found} and not {pod.cores:g} cores on {names[pod.node]}"


CHECKS: tuple[Callable[[Layout, Outcome], Iterator[str]], ...] = (
    _loads,
    _names,
    _findings,
    _doctor,
    _report,
    _scheduling,
    _pods,
)
