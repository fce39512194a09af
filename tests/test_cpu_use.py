"""The share of CPU use between two readings, and the readings that have none."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.crane import cases
from watcher.core.cpu_use import CpuTimes, CpuUseUnknown, used_share

BEFORE = {"cpu0": CpuTimes(100.0, 900.0, 10.0), "cpu1": CpuTimes(200.0, 800.0, 0.0)}


def grown(name: str = "cpu0", **by: float) -> dict[str, CpuTimes]:
    """The CPUs ten seconds later, with 4 s of use each; one of them grew differently."""
    after = {each: replace(times, used=times.used + 4.0, idle=times.idle + 6.0) for each, times in BEFORE.items()}
    values = {field: getattr(BEFORE[name], field) + value for field, value in by.items()}
    return after | {name: replace(after[name], **values)}


@cases("node_cpu_busy_percent")
def test_use_equals_that_of_crane_except_for_iowait_steal_and_decreasing_counters(case: dict[str, Any]):
    previous, current = ({"cpu0": CpuTimes.of(case["input"][when])} for when in ("previous", "current"))
    different = {"node-cpu-busy-2": None, "node-cpu-busy-3": 0.0}
    expected = different.get(case["id"], case["expected"]["head"]["busy"])
    if expected is None:
        with pytest.raises(CpuUseUnknown, match="decreased"):
            used_share(previous, current, elapsed_s=100.0)
    else:
        assert 100.0 * used_share(previous, current, elapsed_s=100.0) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (grown(), 0.4),
        (grown(used=0.0, idle=10.0), 0.2),
        (grown(used=4.0, idle=2.0, stolen=4.0), 0.4),
        (grown(used=10.0, idle=-0.02), 0.7),
    ],
)
def test_idle_waiting_and_stolen_time_are_not_use(after: dict[str, CpuTimes], expected: float):
    assert used_share(BEFORE, after, elapsed_s=10.0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (grown(idle=-0.5), "a counter of cpu0 decreased"),
        (grown(idle=-899.0), "a counter of cpu0 decreased"),
        (grown("cpu1", used=-0.01), "a counter of cpu1 decreased"),
        (grown(stolen=-1.0), "a counter of cpu0 decreased"),
        (grown("cpu1", idle=3600.0), "cpu1 counted 3604 s in 10 s"),
        (grown(stolen=600.0), "cpu0 counted 610 s in 10 s"),
        (grown() | {"cpu2": CpuTimes(0.0, 5.0)}, "cpu2 is new"),
        ({"cpu0": grown()["cpu0"]}, "cpu1 is gone"),
        (BEFORE, "no CPU time was counted"),
        ({}, "cpu0 is gone"),
    ],
)
def test_an_impossible_reading_has_no_use(after: dict[str, CpuTimes], why: str):
    with pytest.raises(CpuUseUnknown, match=why):
        used_share(BEFORE, after, elapsed_s=10.0)


@given(*[st.floats(0.0, 1e6)] * 6, st.floats(0.1, 60.0))
def test_a_share_is_between_0_and_1(a: float, b: float, c: float, d: float, e: float, f: float, elapsed: float):
    try:
        share = used_share({"cpu0": CpuTimes(a, b, c)}, {"cpu0": CpuTimes(d, e, f)}, elapsed_s=elapsed)
    except CpuUseUnknown:
        return
    assert 0.0 <= share <= 1.0
