"""Usage of nodes by koordlet's rules as a part of the document of GET /api/v1/columns.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import numpy as np

from watcher.core.koordinator.report import NodeUsages
from watcher.core.publishing.documents import nullable, to_wire
from watcher.core.publishing.wire import AggregateColumn, AggregatesDocument

KOORDLET = "koordlet"
"""Value of `?aggregate=` and of AggregatesDocument.rules."""


def aggregates_document(usages: NodeUsages) -> AggregatesDocument:
    """Return the usages as columns, with values rounded as in all documents."""
    means = [(key, "avg", 0, values) for key, values in usages.usage.items()]
    statistics = [(*key_of, values) for key_of, values in usages.aggregated.items()]
    return AggregatesDocument(
        rules=KOORDLET,
        interval_s=usages.interval.tolist(),
        period_s=usages.period.tolist(),
        columns=[
            AggregateColumn(key, statistic, seconds, nullable(to_wire(values)))
            for key, statistic, seconds, values in (*means, *statistics)
        ],
    )


def usages_of(document: AggregatesDocument) -> NodeUsages:
    """Return the usages of a document; the inverse of `aggregates_document`. Raises ValueError if columns differ in
    length."""
    size = len(document.interval_s)
    usage, aggregated = {}, {}
    for column in document.columns:
        values = np.array(column.values, dtype=np.float64) if size else np.empty(0)  # None becomes NaN
        if len(column.values) != size:
            raise ValueError(f"a column has {len(column.values)} values for {size} rows")
        values.flags.writeable = False
        if column.duration_s:
            aggregated[column.type, column.statistic, column.duration_s] = values
        else:
            usage[column.type] = values
    interval, period = np.array(document.interval_s, dtype=np.float64), np.array(document.period_s, dtype=np.int64)
    if len(period) != size:
        raise ValueError(f"{len(period)} averaging periods for {size} rows")
    for array in (interval, period):
        array.flags.writeable = False
    return NodeUsages(usage, aggregated, interval, period)
