"""The findings of a report from values in tables."""

from dataclasses import replace

import numpy as np
import pytest

from lab.report.analyse import busy_span, hot_hours, hourly_peaks
from lab.report.collected import PodLoads, utilization_grid
from lab.report.data.pods import choose_nodes, whole_step, whole_steps
from lab.report.names import controller_of, workload_of
from lab.report.peaks import bounds, resource_peaks
from lab.report.workloads import WorkloadShares, workload_shares
from tests.lab.report.histories import BEGINS, DAY_S, SLOT_S, STEP_S, daily, history, node_loads


def by_hour(**hours: float) -> np.ndarray:
    values = np.zeros(24)
    for name, value in hours.items():
        values[int(name[1:])] = value
    return values


def test_hot_hours_count_each_node_and_name_the_hours_of_the_day():
    heat = hot_hours(node_loads(daily(3)))
    assert (heat.node_hours, heat.hot_nodes, heat.memory_node_hours) == (6.0, 1, 0.0)
    assert heat.busy == (9, 11)
    assert heat.by_day.shape == (3, 24)
    assert heat.by_day[:, 9].tolist() == [1.0, 1.0, 1.0]
    first = heat.nodes[0]
    assert (first.node, first.cpu_hot_hours, first.cpu_peak, first.known_hours) == ("node-0", 6.0, 95.0, 72.0)


def test_a_range_within_days_leaves_the_other_hours_unknown():
    heat = hot_hours(node_loads(daily(1)[: 12 * 12], begins=BEGINS + 6 * 3600))
    assert heat.days == (BEGINS,)
    assert np.isnan(heat.by_day[0, :6]).all()
    assert np.isfinite(heat.by_day[0, 6:18]).all()
    assert np.isnan(heat.by_day[0, 18:]).all()


def test_absent_values_are_not_zeros():
    cpu = daily(1)
    cpu[:144, 1] = np.nan
    cpu[:, 0] = np.nan
    heat = hot_hours(node_loads(cpu))
    node = {each.node: each for each in heat.nodes}
    assert (node["node-1"].cpu_mean, node["node-1"].known_hours) == (30.0, 12.0)
    assert np.isnan(node["node-0"].cpu_mean)
    assert np.isnan(hourly_peaks(node_loads(cpu), ["node-1"])[0, 0])


@pytest.mark.parametrize(
    ("hours", "span"),
    [
        (by_hour(), None),
        (by_hour(h9=2, h10=2), (9, 11)),
        (by_hour(h9=9, h15=1), (9, 10)),
        (by_hour(h23=2, h0=2), (23, 1)),
        (np.ones(24), None),
    ],
)
def test_the_busy_span_is_the_shortest_with_more_than_half(hours, span):
    assert busy_span(hours) == span


def test_the_bound_of_a_steady_load_holds():
    percent = np.full((7 * 288, 1), 50.0)
    bound, coverage, record = bounds(percent, BEGINS)
    assert bound[0] == pytest.approx(50.0, abs=0.4)
    assert (coverage[0], record.coverage, record.severity, record.reason) == (1.0, 1.0, 0.0, "")


def test_there_is_no_bound_with_less_than_a_day():
    bound, _, record = bounds(np.full((287, 1), 50.0), BEGINS)
    assert np.isnan(bound[0])
    assert record.reason == "less than a day of history"


def test_peaks_are_compared_with_requests_and_capacity():
    peaks = resource_peaks(history(), "cpu")
    assert peaks is not None
    cluster = peaks.cluster
    assert cluster is not None
    assert (cluster.allocatable, cluster.requested) == (7.6, 4.0)
    assert cluster.peak == pytest.approx(0.95 * 4 + 0.3 * 4)
    assert [each.node for each in peaks.nodes] == ["node-0", "node-1"]
    assert peaks.nodes[1].freed == pytest.approx(3.8 - 1.2, abs=0.02)
    assert peaks.nodes[1].excess == pytest.approx(2.0 - 1.2, abs=0.02)


def test_workloads_share_the_hot_hours_of_their_nodes():
    given = history()
    assert given.pods is not None
    shares = workload_shares(given.pods, given.loads, given.owners)
    assert [(each.workload, each.hot_share, each.share) for each in shares.workloads] == [
        ("Deployment/web", 1.0, 0.5),
        ("db", 0.0, 0.5),
    ]
    assert shares.hot_values == 3 * 2 * 4  # three days, two hours, four values an hour


def test_a_pod_counts_in_the_part_of_a_step_in_which_its_node_is_hot():
    """node-0 is hot for a third of a step of 15 minutes, in which its pod uses 3 cores on average."""
    cpu = np.full((288, 1), 30.0)
    cpu[::3] = 95.0
    keys = (("shop", "web-0", "node-0"), ("shop", "db-0", "node-0"))
    cores = np.tile([3.0, 1.0], (96, 1))
    loads = node_loads(cpu)
    shares = workload_shares(PodLoads(keys, BEGINS, STEP_S, cores, choose_nodes(loads, loads.nodes, most=1)), loads, {})
    assert [each.workload for each in shares.workloads] == ["web", "db"]
    assert [each.mean_cores for each in shares.workloads] == [3.0, 1.0]
    assert [each.hot_share for each in shares.workloads] == pytest.approx([0.75, 0.25])


# --- values in slots -------------------------------------------------------------------------------------------------


def test_the_time_above_the_threshold_is_between_the_values_at_both_ends():
    """A mean of five minutes rises from 70 to 90 % within a minute: it is above 85 % for 15 s of it."""
    values = np.array([[70.0], [90.0], [90.0], [90.0], [70.0]])
    grid = utilization_grid(values, 60, slots=1, threshold=85.0, smoothed=True)
    assert (grid.hot[0, 0], grid.peak[0, 0], grid.mean[0, 0]) == (pytest.approx(2.5 / 5), 90.0, 70.0)


def test_a_value_that_jumps_is_above_the_threshold_for_as_long_as_it_is_seen():
    """95 % for five minutes of each hour, else 20 %: two hours of a day, whatever the first minute is."""
    for first in range(60):
        minutes = (np.arange(24 * 60) - first) % 60 < 5
        grid = utilization_grid(np.where(minutes, 95.0, 20.0)[:, None], 60, slots=288, threshold=80.0)
        assert grid.hot.sum() / 12 == pytest.approx(2.0, abs=0.01)
        assert grid.mean.mean() == pytest.approx(26.25)


def test_a_slot_without_values_is_unknown():
    values = np.full((10, 1), np.nan)
    values[7:] = 90.0
    grid = utilization_grid(values, 60, slots=2, threshold=80.0)
    assert np.isnan([grid.mean[0, 0], grid.peak[0, 0], grid.hot[0, 0]]).all()
    assert (grid.mean[1, 0], grid.peak[1, 0], grid.hot[1, 0]) == (90.0, 90.0, pytest.approx(0.6))


def test_a_node_that_ends_is_not_hot_afterwards():
    values = np.full((5, 1), np.nan)
    values[:2] = 90.0
    assert utilization_grid(values, 60, slots=1, threshold=80.0).hot[0, 0] == pytest.approx(0.4)


def test_the_highest_values_are_those_of_their_own_query():
    means, peaks = np.full((12, 1), 30.0), np.full((12, 1), 95.0)
    grid = utilization_grid(means, 300, slots=12, threshold=80.0, peaks=peaks)
    assert (grid.mean.max(), grid.peak.min(), grid.hot.sum()) == (30.0, 95.0, 0.0)


def test_the_first_and_the_last_step_of_a_pod_have_the_cores_of_their_part():
    """A pod uses 2 cores from 300 s into the second step to 600 s into the fourth, in steps of 900 s that are read with
    the 60 s before them."""
    rates = np.array([np.nan, 2.0 * 600 / 960, 2.0, 2.0 * 660 / 960, np.nan])[:, None]
    found = whole_steps(rates, 900, 60)[:, 0]
    assert found[1:4] == pytest.approx([2.0 * 600 / 900, 2.0, 2.0 * 600 / 900])
    assert np.isnan(found[[0, 4]]).all()


@pytest.mark.parametrize(("interval", "step"), [(10, 300), (15, 300), (30, 300), (60, 300), (120, 600), (45, 600)])
def test_steps_are_multiples_of_the_scrape_interval_or_much_longer(interval, step):
    assert whole_step(interval) == step


# --- workloads -------------------------------------------------------------------------------------------------------


def test_a_node_without_pod_usage_for_a_time_does_not_count_as_without_pods():
    """node-1 has load for three days, and values of its pods on two of them. A pod that starts later on a measured node
    used nothing before."""
    given = history()
    assert given.pods is not None
    cores = given.pods.cores.copy()
    cores[:96, 1] = np.nan
    shares = workload_shares(replace(given.pods, cores=cores), given.loads, given.owners)
    assert {each.workload: (each.mean_cores, each.share) for each in shares.workloads} == {
        "Deployment/web": (1.0, 0.5),
        "db": (1.0, 0.5),
    }
    assert ("node-1",) == shares.gaps
    later = replace(given.pods, pods=tuple((*key[:2], "node-1") for key in given.pods.pods), cores=cores)
    found = workload_shares(later, given.loads, given.owners)
    assert {each.workload: each.mean_cores for each in found.workloads}["db"] == pytest.approx(2 / 3)
    assert () == found.gaps


@pytest.mark.parametrize(
    ("kind", "name", "controller"),
    [
        ("ReplicaSet", "web-6d4b75c9f8", "Deployment/web"),
        ("Job", "report-29012345", "CronJob/report"),
        ("Job", "once", "Job/once"),
        ("StatefulSet", "db", "StatefulSet/db"),
        ("<none>", "<none>", ""),
    ],
)
def test_the_controller_behind_an_owner(kind, name, controller):
    assert controller_of(kind, name) == controller


@pytest.mark.parametrize(
    ("pod", "owner", "workload"),
    [
        ("web-6d4b75c9f8-abcde", "", "web"),
        ("db-0", "", "db"),
        ("log-x7k2p", "", "log"),
        ("web-0", "StatefulSet/web", "StatefulSet/web"),
        ("plain", "", "plain"),
    ],
)
def test_the_workload_of_a_pod(pod, owner, workload):
    assert workload_of(pod, owner) == workload


def sampled_shares(most: int, seed: int = 5) -> WorkloadShares:
    """300 nodes, of which ten are hot in the first half, with pods of 20 workloads of different sizes."""
    random = np.random.default_rng(seed)
    names = tuple(f"node-{i:03d}" for i in range(300))
    cpu = np.full((DAY_S // SLOT_S, 300), 30.0)
    cpu[: len(cpu) // 2, :10] = 95.0
    loads = replace(node_loads(cpu), nodes=names)
    sample = choose_nodes(loads, names, most=most)
    everything = [(name, int(app), size) for name in names for app, size in zip(
        random.integers(0, 20, 8), random.lognormal(size=8), strict=True)]  # fmt: skip
    chosen = [each for each in everything if each[0] in sample.nodes]
    keys = tuple(("shop", f"app-{app}-6d4b75c9f8-{i:05d}", node) for i, (node, app, _) in enumerate(chosen))
    owners = {(key[0], key[1]): f"Deployment/app-{app}" for key, (_, app, _) in zip(keys, chosen, strict=True)}
    cores = np.tile([size * (1 + app) for _, app, size in chosen], (96, 1))
    return workload_shares(PodLoads(keys, BEGINS, STEP_S, cores, sample), loads, owners)


def test_shares_of_a_sample_of_the_nodes_are_within_their_intervals():
    """About one in twenty intervals does not contain the share of all nodes."""
    inside = []
    for seed in range(10):
        whole = {each.workload: each.share for each in sampled_shares(300, seed).workloads}
        found = sampled_shares(90, seed)
        assert (len(found.sample.nodes), len(found.sample.hottest)) == (90, 10)
        assert sum(each.share for each in found.workloads) == pytest.approx(1.0)
        assert all(each.share_error > 0.0 for each in found.workloads)
        inside += [abs(each.share - whole[each.workload]) <= each.share_error for each in found.workloads]
    assert len(inside) == 10 * 20
    assert 0.88 <= sum(inside) / len(inside) <= 0.99


def test_all_hot_nodes_in_the_sample_give_exact_shares_of_the_hot_hours():
    whole = {each.workload: each for each in sampled_shares(300).workloads}
    for each in sampled_shares(90).workloads:
        assert each.hot_share == pytest.approx(whole[each.workload].hot_share)
        assert each.hot_share_error == 0.0


def test_one_node_has_no_interval():
    found = sampled_shares(1)
    assert all(np.isnan(each.share_error) for each in found.workloads)
