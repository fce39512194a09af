"""Pools resized by load: golden numbers, and properties for any load."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import cpuset
from agent.qrm.plugins.calculator import take_by_numa_balance
from agent.qrm.plugins.resize import (
    PoolLoad,
    PoolSettings,
    PoolState,
    Resize,
    headroom,
    online_usage,
    required_cpus,
    resize,
    step,
    target_size,
)
from tests.agent.qrm.vectors import cases, group, machine
from tests.defaults import defaults

SEED = PoolSettings(align=2)
POOLS = PoolState(cpus=80, online=76, nodes=2)


def named(name: str) -> dict[str, Any]:
    (found,) = (case for case in group("pool_resize") if case["name"] == name)
    return found


def run(load: PoolLoad, start: int, *, settings: PoolSettings = SEED, seconds: int = 1000) -> list[list[Any]]:
    """Ticks of five seconds with a constant load: [second, size, online, offline] of each change."""
    m, size, last_shrink, changes = machine("seed80_adjacent"), start, None, []
    for now in range(0, seconds, 5):
        found = resize(load, PoolState(80, size, 2, last_shrink=last_shrink), now=now, settings=settings)
        if found.shrinks:
            last_shrink = float(now)
        if found.size != size:
            size = found.size
            online, offline = take_by_numa_balance(m, m.all, size)
            changes.append([now, size, cpuset.text(online), cpuset.text(offline)])
    return changes


def test_the_proposals_example_1_from_load():
    case = named("seed example 1 from load")
    load = PoolLoad(case["total_cpus"], case["node_cpu_percent"], age=10.0, offline=case["offline_usage_cpus"])
    assert set(online_usage(load).values()) == {case["online_usage_cpus"]}
    first = resize(load, POOLS, now=0, settings=SEED)
    assert (first.need, first.target) == (case["need"], case["target"])
    changes = run(load, case["start"])
    assert len(changes) == case["changes_count"]
    assert changes[-1][0] == case["last_change_s"]
    assert [change for change in changes if change[0] in {row[0] for row in case["changes"]}] == case["changes"]


def test_one_shot():
    case = named("one shot (step_down unlimited)")
    load = PoolLoad(80, {"5m": 28.75}, age=10.0, offline=4.0)
    settings = PoolSettings(align=2, step_down=0)
    assert run(load, case["start"], settings=settings) == case["changes"]


def test_growth():
    case = named("growth")
    windows = {name: used / 80 * 100 for name, used in case["online_usage_cpus"].items()}
    assert run(PoolLoad(80, windows, age=10.0), case["start"]) == case["changes"]


TARGETS = [case for case in group("pool_resize") if "unclamped" in case]
STEPS = [case for case in group("pool_resize") if "current" in case]


@pytest.mark.parametrize("case", TARGETS, ids=lambda case: case["name"])
def test_target(case: dict[str, Any]):
    need = required_cpus(case["online_usage_cpus"], SEED)
    assert need == pytest.approx(case["need"])
    assert target_size(need, POOLS, PoolSettings(align=2, min_online=0)) >= case["unclamped"]
    assert target_size(need, PoolState(80, 76, 2, requests=case["requests"]), SEED) == case["target"]


@pytest.mark.parametrize("case", STEPS, ids=lambda case: case["name"])
def test_step(case: dict[str, Any]):
    found = step(
        case["current"],
        case["target"],
        since_shrink=case["now_s"] - case["last_shrink_s"],
        may_shrink="" if case["shrink_allowed"] else "stale",
        settings=SEED,
    )
    assert (found.size, found.action) == (case["next"], case["action"])


@cases("offline_headroom")
def test_headroom(case: dict[str, Any]):
    asked = {name: value for name, value in case.items() if name != "expected"}
    assert headroom(**asked) == pytest.approx(case["expected"])


def test_without_settings_each_pool_keeps_four_cpus():
    assert [target_size(need, POOLS, PoolSettings()) for need in (0.0, 80.0)] == [4, 76]


# --- unknown load ----------------------------------------------------------------------------------------------------

CALM = {"5m": 10.0, "10m": 10.0, "15m": 10.0}


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (PoolLoad(80, CALM, age=91.0), "hold: the windows are 91 s old"),
        (PoolLoad(80, {**CALM, "5m": 95.0}, age=5.0, exclusive=60.0), "hold: the node is 95 % busy"),
        (PoolLoad(80, CALM, age=5.0, online=64.0), None),
        (PoolLoad(80, online=1.0), "hold: no windows of the node"),
        (PoolLoad(80, silent_for=899.0), "hold: no data"),
    ],
)
def test_missing_or_stale_data_shrink_no_pool(load: PoolLoad, reason: str | None):
    found = resize(load, POOLS, now=0, settings=SEED)
    assert found.size >= POOLS.online
    if reason:
        assert found.action == reason


def test_a_busy_online_pool_is_not_shrunk():
    found = resize(PoolLoad(80, CALM, age=5.0, online=33.0), PoolState(80, 76, 2), now=0, settings=SEED)
    assert found.action == "down"
    found = resize(PoolLoad(80, CALM, age=5.0, online=33.0), PoolState(80, 40, 2), now=0, settings=SEED)
    assert (found.size, found.action) == (46, "up")
    settings = PoolSettings(align=2, usage_factor=1.0, reserve_cpus=0.0)
    found = resize(PoolLoad(80, CALM, age=5.0, online=34.0), PoolState(80, 40, 2), now=0, settings=settings)
    assert (found.size, found.action) == (40, "hold: the online pool is 85 % busy")


def test_a_pool_grows_without_the_watcher():
    assert resize(PoolLoad(80, online=60.0), PoolState(80, 28, 2), now=0, settings=SEED).size == 38


def test_after_a_long_silence_the_requests_set_the_size():
    found = resize(PoolLoad(80, silent_for=900.0), PoolState(80, 76, 2, requests=30.0), now=0, settings=SEED)
    assert (found.target, found.action) == (34, "down")


# --- any load --------------------------------------------------------------------------------------------------------

percent = st.floats(0, 100)
cpus = st.none() | st.floats(0, 80)
loads = st.builds(
    PoolLoad,
    st.just(80),
    st.dictionaries(st.sampled_from(["5m", "10m", "15m"]), percent),
    age=st.none() | st.floats(0, 300),
    offline=cpus,
    online=cpus,
    exclusive=st.floats(0, 20),
    system=st.floats(0, 5),
    silent_for=st.floats(0, 2000),
)
settings = st.builds(
    PoolSettings, align=st.sampled_from([1, 2]), step_up=st.integers(1, 20), step_down=st.integers(0, 5)
)


@given(loads, st.integers(4, 76), st.floats(0, 100), settings)
def test_both_pools_always_keep_their_minimum(load: PoolLoad, online: int, requests: float, settings: PoolSettings):
    found = resize(load, PoolState(80, online, 2, requests=requests), now=100.0, settings=settings)
    assert 4 <= found.size <= 76
    assert abs(found.size - online) <= 80
    assert found.size == online or (found.size > online) == (found.target > online)


@given(loads, st.integers(2, 38), settings)
def test_with_a_constant_load_the_size_becomes_constant(load: PoolLoad, half: int, settings: PoolSettings):
    """Whatever its first size is, it stops changing, and does not oscillate."""
    size, last, seen = 2 * half, None, []
    for now in range(0, 4000, 5):
        found: Resize = resize(load, PoolState(80, size, 2, last_shrink=last), now=now, settings=settings)
        last = float(now) if found.shrinks else last
        if found.size != size:
            seen.append(found.size > size)
        size = found.size
    assert len(set(seen)) <= 1


@pytest.mark.parametrize(
    ("last", "utilization", "expected"),
    [
        (10.5, 0.55, 11.0),  # a twentieth of the pool is below the target of 60 %
        (10.5, 0.6, 10.5),
        (10.5, 0.99, 10.5),  # no utilization takes CPUs back
        (5.0, 0.6, 10.0),  # at least the CPUs of the pool
        (11.9, 0.0, 12.0),  # at most 1.2 times the CPUs of the pool
    ],
)
def test_the_default_headroom(last: float, utilization: float, expected: float):
    assert headroom(last=last, supply=10.0, utilization=utilization) == pytest.approx(expected)


def test_default_settings_of_the_pools():
    assert defaults(PoolSettings) == {
        "usage_factor": 1.25, "reserve_cpus": 4.0, "min_online": 4, "min_offline": 4, "step_up": 10, "step_down": 2,
        "min_down_period": 30.0, "respect_requests": True, "align": 1, "stale_after": 90.0, "forget_after": 900.0,
        "busy_node": 0.9, "busy_online": 0.8,
    }  # fmt: skip
    assert defaults(PoolLoad) == {"exclusive": 0.0, "system": 0.0, "silent_for": 0.0}
    assert defaults(PoolState) == {"requests": 0.0}
