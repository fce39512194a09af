"""From counters to rates: the numbers of Crane, and the cases without a rate."""

from typing import Any

import pytest

from agent.state.rates import NoRate, growth, run_queue_time, seconds_between, usage_cores
from tests.agent.crane import cases


@cases("container_cpu_usage")
def test_the_usage_of_a_container_equals_that_of_crane(case: dict[str, Any]):
    given, expected = case["input"], case["expected"]["head"]
    elapsed = (given["ts_ns"] - given["prev_ts_ns"]) / 1e9
    used = given["cpu_ns"] - given["prev_cpu_ns"]
    waited = given["runqueue_ns"] - given["prev_runqueue_ns"]
    if elapsed <= 0.0:  # Crane reports 0; here the usage is unknown
        with pytest.raises(NoRate, match="no time has passed"):
            seconds_between(0.0, elapsed, longest=30.0)
        return
    assert usage_cores(used, elapsed) == pytest.approx(expected["cores"], abs=1e-6)
    assert run_queue_time(waited, elapsed) == pytest.approx(expected["sched_run_queue_time"], abs=1e-6)


def test_a_decreasing_counter_has_no_rate():
    assert growth(5, 5) == 0
    with pytest.raises(NoRate, match="was reset"):
        growth(5, 4)


@pytest.mark.parametrize(
    ("previous", "current", "reason"), [(5.0, 5.0, "no time"), (5.0, 4.0, "no time"), (5.0, 36.0, "31 s old")]
)
def test_times_without_a_rate(previous: float, current: float, reason: str):
    with pytest.raises(NoRate, match=reason):
        seconds_between(previous, current, longest=30.0)
    assert seconds_between(5.0, 35.0, longest=30.0) == 30.0
