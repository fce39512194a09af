"""From counters to rates: upstream's numbers, and the cases in which there are none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.state.rates import (
    CpuTimes,
    NoRate,
    busy_percent,
    growth,
    idle_percent,
    run_queue_time,
    seconds_between,
    usage_cores,
)
from tests.agent.crane import cases

BUSY = ("user", "system", "nice", "iowait", "irq", "softirq", "steal")


def times(of: dict[str, int]) -> CpuTimes:
    return CpuTimes(sum(of[name] for name in BUSY), of["idle"])


@cases("node_cpu_busy_percent")
def test_busy_and_idle_are_upstreams(case: dict[str, Any]):
    previous, current = times(case["input"]["previous"]), times(case["input"]["current"])
    expected = case["expected"]["head"]
    assert busy_percent(previous, current) == pytest.approx(expected["busy"], abs=1e-6)
    assert idle_percent(previous, current) == pytest.approx(expected["idle"], abs=1e-6)


@cases("container_cpu_usage")
def test_usage_of_a_container_is_upstreams(case: dict[str, Any]):
    given_, expected = case["input"], case["expected"]["head"]
    elapsed = given_["ts_ns"] - given_["prev_ts_ns"]
    used = given_["cpu_ns"] - given_["prev_cpu_ns"]
    waited = given_["runqueue_ns"] - given_["prev_runqueue_ns"]
    assert usage_cores(used, elapsed) == pytest.approx(expected["cores"], abs=1e-6)
    assert run_queue_time(waited, elapsed) == pytest.approx(expected["sched_run_queue_time"], abs=1e-6)


@given(*[st.integers(0, 2**60)] * 4)
def test_a_share_is_a_percentage_whatever_the_counters_do(a: int, b: int, c: int, d: int):
    previous, current = CpuTimes(a, b), CpuTimes(c, d)
    assert 0.0 <= busy_percent(previous, current) <= 100.0
    assert 0.0 <= idle_percent(previous, current) <= 100.0


def test_a_counter_that_went_back_has_no_rate():
    assert growth(5, 5) == 0
    with pytest.raises(NoRate, match="was reset"):
        growth(5, 4)


@pytest.mark.parametrize(
    ("previous", "current", "reason"), [(5.0, 5.0, "no time"), (5.0, 4.0, "no time"), (5.0, 36.0, "31 s old")]
)
def test_times_that_allow_no_rate(previous: float, current: float, reason: str):
    with pytest.raises(NoRate, match=reason):
        seconds_between(previous, current, longest=30.0)
    assert seconds_between(5.0, 35.0, longest=30.0) == 30.0
