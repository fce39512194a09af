"""Each layout with series that went wrong at random: no load is ever under the name of another machine."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from random import Random

import pytest

from tests.field.layout import Layout, Machine, read_layouts
from tests.field.mutations import FOREIGN, Judged, Row, World, judge, mutate, world_of
from watcher.core.naming.labels import EXPORTED, NODE_LABELS
from watcher.model import FindingKind

LAYOUTS = {name: layout for name, layout in read_layouts().items() if layout.source != "metrics-server"}
"""All but those of metrics-server, whose objects have the name of their node and no labels that could be wrong."""
COUNT = 200


@pytest.mark.parametrize("name", LAYOUTS)
def test_mutated_series_are_under_no_other_name(name: str):
    layout, world = LAYOUTS[name], world_of(LAYOUTS[name])
    assert world.metrics
    before = {key: judge(world, key) for key in world.metrics}
    wrong: list[str] = []
    for i in range(COUNT):
        seed = zlib.crc32(f"{name} {i}".encode())
        mutated = mutate(world, Random(seed))
        for key in mutated.metrics:
            judged = judge(mutated, key)
            found = [*_misnamed(layout, judged), *_too_much(layout, key, judged), *_unsaid(judged)]
            if mutated.only_foreign:
                found += _changed(before[key], judged)
            wrong += [f"{key}, mutation {i}: {each}; after {'; '.join(mutated.reported)}" for each in found]
    assert not wrong, f"{name}: {len(wrong)} of {COUNT} mutations\n" + "\n".join(wrong[:10])


def _misnamed(layout: Layout, judged: Judged) -> Iterator[str]:
    """The name of a node is given to series of this node alone."""
    nodes = {machine.name for machine in layout.nodes}
    named = {machine.key: machine.name for machine in layout.machines}
    for row, node in zip(judged.rows, judged.found.nodes, strict=True):
        if node in nodes and node != named.get(row.machine) and _tells(row, layout, row.machine):
            yield f"series of {row.machine} is under the name {node}: {dict(row.labels)}"
    if layout.expect.refused:
        for node in sorted(nodes & judged.loads.keys()):
            rows = {row.machine for row, name in zip(judged.rows, judged.found.nodes, strict=True) if name == node}
            if len(rows) > 1:
                yield f"{node} has the load of several machines: {sorted(rows)}"


def _tells(row: Row, layout: Layout, key: str) -> bool:
    """Whether the labels of a series say which machine it is about: without that, it is about the one they name."""
    machine = next((each for each in layout.machines if each.key == key), None)
    # The name of a pod means nothing without its namespace, and a device does not say where it is.
    silent = {"UUID", "machine", *layout.of_scraper}
    labels = {
        name: text
        for name, text in row.labels.items()
        if name not in silent and ("pod" not in name or "namespace" in row.labels)
    }
    # A name that two machines have does not say which of them it is; then only a label that means the machine does.
    others = {name for each in layout.machines if each.key != key for name in _names(each)}
    names = FOREIGN if machine is None else [name for name in _names(machine) if name not in others]
    if machine is not None and len(names) < len(_names(machine)):
        meant = ("instance", *NODE_LABELS)
        labels = {name: text for name, text in labels.items() if name.removeprefix(EXPORTED) in meant}
    return any(name in text for text in labels.values() for name in names)


def _names(machine: Machine) -> tuple[str, ...]:
    every = machine.name, machine.host, machine.kernel, machine.address, machine.address6, machine.pod_address
    return tuple(name for name in every if name)


def _too_much(layout: Layout, key: str, judged: Judged) -> Iterator[str]:
    """No load is more than the devices of the machine have together, or the busiest GPU."""
    every = zip(judged.rows, judged.found.nodes, strict=True)
    unsure = {node for row, node in every if not _tells(row, layout, row.machine)}
    for machine in layout.nodes if not layout.expect.refused else ():
        if machine.name in unsure:
            continue
        most = max(machine.gpus, default=0.0) if key == "GPU" else machine.truth()[key]
        if judged.loads.get(machine.name, 0.0) > most * 1.0001:
            yield f"{machine.name} has {judged.loads[machine.name]:g}, and its devices have {most:g}"


def _unsaid(judged: Judged) -> Iterator[str]:
    """A value that is not a number is a finding."""
    lost = [row for row in judged.rows if row.value is not None and math.isnan(row.value)]
    named = [row for row, node in zip(judged.rows, judged.found.nodes, strict=True) if node is not None and row in lost]
    kinds = {finding.kind for finding in judged.findings}
    if named and not kinds & {FindingKind.NON_FINITE, FindingKind.DUPLICATE_SERIES}:
        yield f"no finding about {dict(named[0].labels)}, which has no number"
    for problem in judged.found.problems:
        if not problem.reason:
            yield "a problem without a reason"


def _changed(before: Judged, after: Judged) -> Iterator[str]:
    """A machine outside changes no load of a node."""
    for node, load in before.loads.items():
        if after.loads.get(node) != load:
            yield f"{node} had {load:g} and has {after.loads.get(node)}"


def test_a_mutation_says_what_it_did():
    world = world_of(LAYOUTS["kube-prometheus"])
    assert all(_reported(world, seed) for seed in range(50))


def _reported(world: World, seed: int) -> list[str]:
    return mutate(world, Random(seed)).reported
