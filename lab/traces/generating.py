"""Generates traces of simulated clusters, with the nodes and workloads of `load-watcher demo`, in named scenarios.

Equal seeds generate equal traces. The first pods fill the cluster within half an hour, or the whole trace if that is
shorter, up to the share of requests
defined by the scenario; later pods replace pods that end. If there are not enough pods to fill the cluster, all arrive
in the first half hour and stay.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from lab.fleet.load import SYSTEM_BYTES, SYSTEM_SHARE, DayPattern, RunningPods, pod_memory, running, wanted_cores
from lab.fleet.machines import SimulatedMachine, machines
from lab.fleet.noise import key_of, mixed, uniform, wandering
from lab.fleet.workloads import JOBS, MIB, PRIORITIES, SERVICES, Behaviour, Instance, SimulatedWorkload, instance
from lab.traces.records import MOST_PODS, Begin, EndRecord, LoadRecord, NodeRecord, PodRecord, Record, UsageRecord
from watcher.arrays import F64, I64, Bool

BEGINS = 1_699_952_400.0  # 2023-11-14T09:00:00Z, the start of the simulated day
FILLING_S = 1_800.0
USAGE_EVERY_S = 600.0
LOAD_EVERY_S = 300.0
SHORTEST_S, LONGEST_S = 300.0, 30 * 86_400.0
SHORTEST_JOB_S, LONGEST_JOB_S = 120.0, 1_800.0
HERD_S = 1_800.0
HERDS_FROM = 10_000_000  # first pod number of herds, distinct from the numbers of other services' pods
BACKGROUND_NODE_SHARE = 0.08  # share of nodes with processes outside Kubernetes
NEIGHBOUR_LEAST, NEIGHBOUR_MOST = 0.20, 0.45  # their load as a share of the node's cores

Arrivals = Callable[[int, int, float], Sequence[float]]
"""(number of pods, seed, seconds) -> arrival times of the pods in seconds, 0 <= time < `seconds`."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario. `description` is its description. Services request the share `requested_share` of the allocatable
    CPU; `jobs` is the share of pods that are jobs, and half of the other pods arrive in `herds` herds (0: none).
    `behave` changes the usage of pods relative to their requests, and `request_factor` is a factor on requests.
    `weekend` is a factor on the usage of services on Saturdays and Sundays."""

    description: str
    requested_share: float
    arrivals: Arrivals
    behave: Callable[[Behaviour], Behaviour]
    jobs: float = 0.4
    herds: int = 0
    request_factor: float = 1.0
    weekend: float = 1.0


def _evenly(count: int, seed: int, seconds: float) -> list[float]:
    return [seconds * chance for chance in _chances(count, seed, "arrival")]


def _by_day(count: int, seed: int, seconds: float) -> list[float]:
    """Arrivals by time of day: twice as many around 14:00 as at night."""
    return _as_busy(count, seed, seconds, weekend=1.0)


def _by_week(count: int, seed: int, seconds: float) -> list[float]:
    """Arrivals by time of day, at weekends WEEKEND times as many."""
    return _as_busy(count, seed, seconds, weekend=WEEKEND)


def _as_busy(count: int, seed: int, seconds: float, *, weekend: float) -> list[float]:
    hours = np.linspace(0.0, seconds, 1 + max(1, round(seconds / 60.0)))
    busy = 0.5 + 0.25 * (1.0 + np.cos(2.0 * np.pi * (hours / 86_400.0 + (9.0 - 14.0) / 24.0)))
    busy *= np.where(_at_weekend(BEGINS + hours), weekend, 1.0)
    share = np.concatenate([[0.0], np.cumsum(busy[:-1])]) / busy[:-1].sum()
    return [float(each) for each in np.interp(_chances(count, seed, "arrival"), share, hours)]


def _at_weekend(time: F64) -> Bool:
    """Whether times (unix seconds) are on a Saturday or Sunday, UTC; the epoch was a Thursday."""
    weekend: Bool = (time // 86_400.0 + 3.0) % 7.0 >= 5.0
    return weekend


def _in_bursts(count: int, seed: int, seconds: float) -> list[float]:
    """Half of the pods arrive in six bursts of five minutes each; the others evenly."""
    found = []
    for chance, which in zip(_chances(count, seed, "arrival"), _chances(count, seed, "burst"), strict=True):
        if which < 0.5:
            burst = int(which * 12.0)
            found.append(seconds * (burst + 0.5) / 6.0 + 300.0 * chance)
        else:
            found.append(seconds * chance)
    return [min(each, seconds - 1.0) for each in found]


def _steady(of: Behaviour) -> Behaviour:
    usual = (of.low + of.high) / 2.0
    return replace(of, low=usual, high=usual, burst=0.0)


def _bursting(of: Behaviour) -> Behaviour:
    return replace(of, burst=max(2.0 * of.burst, 0.6), bursts=max(of.bursts, 0.5))


def _hungry(of: Behaviour) -> Behaviour:
    """Unchanged usage with requests reduced to OVERCOMMIT."""
    return replace(of, low=of.low / OVERCOMMIT, high=of.high / OVERCOMMIT, burst=of.burst / OVERCOMMIT,
                   memory=min(of.memory / OVERCOMMIT, 1.3))  # fmt: skip


OVERCOMMIT = 0.45
WEEKEND = 0.5
SCENARIOS: Mapping[str, Scenario] = {
    "steady": Scenario("pods arrive evenly and have constant usage", 0.70, _evenly, _steady),
    "burst": Scenario(
        "half of the pods arrive in six bursts; each pod has usage peaks at different times",
        *(0.65, _in_bursts, _bursting),
    ),
    "daily": Scenario("arrivals and usage follow a daily pattern", 0.75, _by_day, lambda of: of),
    "weekly": Scenario(
        "arrivals and usage follow a daily pattern, with less of both at weekends",
        *(0.75, _by_week, lambda of: of), weekend=WEEKEND,
    ),
    "herd": Scenario(
        "deployments scale out twelve times: similar pods arrive within a minute and run for half an hour",
        *(0.60, _evenly, _steady), jobs=0.2, herds=12,
    ),
    "overcommit": Scenario(
        "pods request less than half of their usage", 0.80, _by_day,
        _hungry, request_factor=OVERCOMMIT,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _PodArrival:
    """A pod with its arrival time (seconds since the start) and lifetime (seconds)."""

    time: float
    of: Instance
    lifetime: float


def generate(scenario: str, *, nodes: int, pods: int, seed: int, hours: float = 24.0) -> Iterator[Record]:
    """Generate a trace of one of SCENARIOS."""
    chosen = SCENARIOS[scenario]
    seconds = hours * 3600.0
    there = machines(nodes, seed=seed)
    coming = _coming(chosen, there, pods, seed=seed, seconds=seconds)
    note = f"generated: scenario {scenario} ({chosen.description}), {nodes} nodes, {pods} pods, seed {seed}"
    yield Begin(BEGINS, note)
    for machine in there:
        yield NodeRecord(
            BEGINS,
            machine.name,
            float(machine.pool.cores),
            int(machine.memory),
            machine.allocatable_milli / 1000.0,
            machine.allocatable_bytes,
            MOST_PODS,
        )
    yield from heapq.merge(
        _load(there, seconds=seconds),
        _arrivals(coming),
        _usage(coming, seconds=seconds, weekend=chosen.weekend),
        key=lambda each: each.time,
    )
    yield EndRecord(BEGINS + seconds)


# --- arrival of pods -------------------------------------------------------------------------------------------------


def _coming(
    scenario: Scenario, there: Sequence[SimulatedMachine], pods: int, *, seed: int, seconds: float
) -> list[_PodArrival]:
    """All pods in order of arrival."""
    jobs = round(pods * scenario.jobs)
    herd = (pods - jobs) // 2 if scenario.herds else 0
    services = pods - jobs - herd
    of = _services(services, scenario, seed=seed)
    lasting = _lasting(scenario, there, of, seconds=seconds)
    filling = services if math.isinf(lasting) else round(services * lasting / (lasting + seconds))
    early = [min(FILLING_S, seconds) * chance for chance in _chances(filling, seed, "filling")]
    late = scenario.arrivals(services - filling, seed, seconds)
    found = [
        _PodArrival(time, each, lasting if math.isinf(lasting) else _exponential(each.key, lasting))
        for time, each in zip([*early, *late], of, strict=True)
    ]
    found += _herd(herd, scenario, seed=seed, seconds=seconds)
    for number, time in enumerate(scenario.arrivals(jobs, seed + 1, seconds)):
        job = _made(JOBS[number % len(JOBS)], number, scenario, seed=seed)
        found.append(
            _PodArrival(time, job, SHORTEST_JOB_S + (LONGEST_JOB_S - SHORTEST_JOB_S) * _chance(job.key, "lasts"))
        )
    return sorted(found, key=lambda each: (each.time, each.of.key))


def _services(count: int, scenario: Scenario, *, seed: int) -> list[Instance]:
    """`count` pods of all services, distributed by the services' shares of cores."""
    weights = np.array([service.share / service.milli for service in SERVICES])
    edges = np.cumsum(weights) / weights.sum()
    which = np.searchsorted(edges, np.array(_chances(count, seed, "service")), side="right")
    return [_made(SERVICES[min(i, len(SERVICES) - 1)], n, scenario, seed=seed) for n, i in enumerate(which.tolist())]


def _herd(count: int, scenario: Scenario, *, seed: int, seconds: float) -> Iterator[_PodArrival]:
    """`count` pods in herds; a herd has one service, arrives within a minute and runs for about half an hour."""
    kinds = [service for service in SERVICES if service.owner == "ReplicaSet"]
    for number in range(count):
        herd = number * scenario.herds // count
        kind = kinds[key_of(seed, "herd", herd) % len(kinds)]
        each = _made(kind, HERDS_FROM + number, scenario, seed=seed)
        time = seconds * (herd + 0.5) / scenario.herds + 60.0 * _chance(each.key, "arrival")
        yield _PodArrival(min(time, seconds - 1.0), each, HERD_S * (0.75 + 0.5 * _chance(each.key, "lasts")))


def _made(workload: SimulatedWorkload, number: int, scenario: Scenario, *, seed: int) -> Instance:
    changed = replace(
        workload,
        behaviour=scenario.behave(workload.behaviour),
        milli=round(workload.milli * scenario.request_factor),
        mib=round(workload.mib * scenario.request_factor),
    )
    return instance(changed, number, seed=seed)


def _lasting(scenario: Scenario, there: Sequence[SimulatedMachine], of: Sequence[Instance], *, seconds: float) -> float:
    """The mean lifetime of services in seconds that keeps the cluster at the requested share; infinity if all pods
    fit."""
    wanted = scenario.requested_share * sum(machine.allocatable_milli for machine in there)
    asked = sum(each.workload.milli for each in of)
    return seconds * wanted / (asked - wanted) if asked > wanted else math.inf


def _exponential(key: int, mean: float) -> float:
    return min(max(-mean * math.log1p(-_chance(key, "lasts")), SHORTEST_S), LONGEST_S)


def _arrivals(coming: Sequence[_PodArrival]) -> Iterator[Record]:
    for number, each in enumerate(coming):
        workload = each.of.workload
        yield PodRecord(
            _moment(each.time),
            _uid(number),
            each.of.full_name,
            workload.milli / 1000.0,
            workload.mib * MIB,
            workload.limit_milli / 1000.0 if workload.limit_milli else None,
            workload.limit_mib * MIB if workload.limit_mib else None,
            None if math.isinf(each.lifetime) else round(each.lifetime, 3),
            PRIORITIES[workload.priority],
            f"{workload.owner}/{each.of.owner_name}",
        )


def _uid(number: int) -> str:
    """A short uid, because most rows contain it."""
    return f"p{number}"


def _moment(seconds: float) -> float:
    return round(BEGINS + seconds, 3)


# --- usage of pods and load of nodes ---------------------------------------------------------------------------------


def _usage(coming: Sequence[_PodArrival], *, seconds: float, weekend: float) -> Iterator[Record]:
    """Usage records of each pod, at its arrival and every ten minutes afterwards."""
    begin = np.array([_moment(each.time) for each in coming])
    end = np.minimum(begin + np.array([each.lifetime for each in coming]), BEGINS + seconds)
    counts = np.maximum(np.ceil((end - begin) / USAGE_EVERY_S), 1.0).astype(np.int64)
    pod = np.repeat(np.arange(len(coming)), counts)
    age = (np.arange(len(pod)) - np.repeat(np.cumsum(counts) - counts, counts)) * USAGE_EVERY_S
    time = np.round(begin[pod] + age, 3)
    order = np.lexsort((pod, time))
    pods, pattern = running([(each.of, 0) for each in coming], begin=-np.inf), DayPattern(BEGINS, 1.0)
    job = np.array([each.of.workload.owner == "Job" for each in coming], dtype=np.bool_)
    for part in np.array_split(order, max(1, len(order) // 100_000)):
        quiet = np.where(_at_weekend(time[part]) & ~job[pod[part]], weekend, 1.0)
        yield from _usage_of(pods, pod[part], time[part], pattern, quiet)


def _usage_of(pods: RunningPods, pod: I64, when: F64, pattern: DayPattern, factor: F64) -> Iterator[Record]:
    of = RunningPods(*(getattr(pods, each.name)[pod] for each in fields(pods)))
    cores, size = factor * wanted_cores(of, when, pattern), pod_memory(of, when, pattern)
    for i, at, used, taken in zip(pod.tolist(), when.tolist(), cores.tolist(), size.tolist(), strict=True):
        yield UsageRecord(at, _uid(i), round(used, 3), MIB * round(taken / MIB))


def _load(there: Sequence[SimulatedMachine], *, seconds: float) -> Iterator[Record]:
    """Load records of nodes: system usage, and on some nodes processes outside Kubernetes."""
    key = np.array([machine.key for machine in there], dtype=np.uint64)
    cores = np.array([machine.pool.cores for machine in there], dtype=np.float64)
    has = uniform(mixed(key, 11)) < BACKGROUND_NODE_SHARE
    size = NEIGHBOUR_LEAST + (NEIGHBOUR_MOST - NEIGHBOUR_LEAST) * uniform(mixed(key, 12))
    share = SYSTEM_SHARE + np.where(has, size, 0.0)
    for at in np.arange(0.0, seconds, LOAD_EVERY_S).tolist():
        time = np.full(len(there), at)
        used = cores * share * (1.0 + 0.2 * wandering(mixed(key, 13), time, 1_800.0))
        for machine, amount in zip(there, used.tolist(), strict=True):
            yield LoadRecord(BEGINS + at, machine.name, round(amount, 3), int(SYSTEM_BYTES) // MIB * MIB)


def _chances(count: int, seed: int, what: str) -> list[float]:
    """`count` pseudo-random numbers, uniformly distributed over 0 ≤ x < 1."""
    keys = mixed(np.full(count, key_of(seed, what), dtype=np.uint64), np.arange(count, dtype=np.uint64))
    return [float(each) for each in uniform(keys)]


def _chance(key: int, what: str) -> float:
    return key_of(key, what) / 2.0**64
