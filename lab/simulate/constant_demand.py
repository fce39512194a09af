"""A trace whose demand stays constant from some time on, to measure when a balancer comes to rest.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lab.simulate.trace_columns import Steps, TraceColumns
from watcher.arrays import Bool


def with_constant_demand(course: TraceColumns, *, since: float, until: float) -> TraceColumns:
    """The trace until `since` (unix seconds), and then until `until` with the same nodes, pods and usage: no pod
    arrives or ends. A pod that waited for a node continues its usage by its age."""
    pods = tuple(each for each in course.pods if each.arrives <= since)
    staying = tuple(replace(each, lifetime=math.inf) if each.arrives + each.lifetime > since else each for each in pods)
    counts = np.diff(course.usage.first)
    arrives = np.repeat([each.arrives for each in course.pods], counts)
    of_pods = np.repeat(np.arange(len(course.pods)) < len(pods), counts)
    usage = _kept(course.usage, of_pods & (arrives + course.usage.time <= since), series=len(pods))
    return replace(
        course,
        ends=until,
        changes=tuple(each for each in course.changes if each.time <= since),
        load=_kept(course.load, course.load.time <= since, series=len(course.names)),
        pods=staying,
        usage=usage,
    )


def _kept(steps: Steps, keep: Bool, *, series: int) -> Steps:
    """The steps to `keep` of the first `series` series."""
    before = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(keep, dtype=np.int64)])
    first = before[steps.first[: series + 1]]
    kept = keep.copy()
    kept[steps.first[series] :] = False
    return Steps(first, steps.time[kept], steps.cores[kept], steps.bytes[kept])
