"""The page docs/reference/layouts.md: the installations that were tried, generated from the layouts."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.field.layout import Layout, read_layouts

_HEADER = """\
# Layouts

Status: stable.

Installations on which load-watcher was tried: the series of each, according to the documentation and sources named
here, in a real Prometheus, VictoriaMetrics or InfluxDB 1, or in an emulation of InfluxDB 2 or of the Kubernetes API;
then `serve`, `doctor`, `report` (of Prometheus) and the extender. Right means: each node has its own load under its own
name, totals are those of the devices, each pod has its usage and requests, and unknown values are reported with the
cause. Then 200 random faults per layout (a label or series missing, a job twice, a machine outside, exchanged
addresses) must put no load under the name of another machine; the objects of metrics-server have the names of their
nodes and no labels, so there is nothing to exchange.

The node exporter runs in these tests, a kubelet and metrics-server in `make cluster`. kube-state-metrics and the other
exporters do not run: their programs or devices are not available to the tests. Prometheus 3 is built by
`scripts/go-programs prometheus`; without it, its layout is skipped.

A new layout is one file in `tests/field/layouts/`. Generate this page with
`python -m tests.field.page > docs/reference/layouts.md`; a test compares it.

| layout | versions | source, Kubernetes API | expected | result |
|---|---|---|---|---|
"""


def documentation() -> str:
    """The content of the page."""
    layouts = read_layouts().values()
    return _HEADER + "".join(f"| {' | '.join(_row(each))} |\n" for each in sorted(layouts, key=lambda each: each.title))


def _row(layout: Layout) -> Iterator[str]:
    links = ", ".join(f"[{i}]({url})" for i, url in enumerate(layout.references, start=1))
    yield f"{layout.title}: {_lower(layout.about)} {links}"
    yield ", ".join(f"{name} {version}" for name, version in layout.versions.items())
    source = {"prometheus": "Prometheus", "victoriametrics": "VictoriaMetrics", "metrics-server": "metrics-server",
              "influxdb1": "InfluxDB 1", "influxdb2": "InfluxDB 2"}[layout.source]  # fmt: skip
    source += " 3" if layout.prometheus_3 else ""
    yield f"{source}, {'yes' if layout.api or layout.source == 'metrics-server' else 'no'}"
    yield _expected(layout)
    yield f"wrong: {layout.wrong}" if layout.wrong else "right"


def _lower(sentence: str) -> str:
    """The sentence as the part after a colon."""
    first, _, _ = sentence.partition(" ")
    return sentence[:1].lower() + sentence[1:] if first.isalpha() and first[1:].islower() else sentence


def _expected(layout: Layout) -> str:
    expect = layout.expect
    parts = [f"{len(layout.nodes) - len(expect.unknown)} nodes"] if not expect.refused else ["refused"]
    if expect.unknown:
        parts.append(f"{', '.join(expect.unknown)} unknown")
    if expect.no_pods:
        parts.append(f"pods of {', '.join(expect.no_pods)} unknown")
    if expect.findings:
        parts.append("finding " + ", ".join(f"`{kind}`" for kind in expect.findings))
    if layout.set:
        parts.append("with " + ", ".join(f"`{key}`" for key in layout.set))
    return "; ".join(parts)


if __name__ == "__main__":
    sys.stdout.write(documentation())
