"""The Prometheus provider with a real Prometheus: each expression of a metric, each label of node names, and a server
that refuses, hangs and dies. Its results are the same with a real VictoriaMetrics."""

import asyncio
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import StartPrometheus
from tests.fetches import Sections, failure_of, sections, use
from tests.real.fleet import (
    Fleet,
    Labels,
    by_instance,
    by_node_label,
    make_fleet,
    node_exporter_series,
    recording_rule_series,
)
from tests.real.parts import REPOSITORY, Prometheus, PromqlServer, Server, VictoriaMetrics, new_secret
from tests.real.remote_write import Series
from tests.waiting import PATIENCE_SECONDS, eventually
from watcher.core.queries.matchers import Matcher
from watcher.model import METRIC_BY_KEY, SeriesBatch
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderRefused, ProviderUnreachable
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.prometheus.queries import CANDIDATES
from watcher.sources.settings import QuerySettings

pytestmark = pytest.mark.real

STEP = 15.0


@pytest.fixture(params=[Prometheus, VictoriaMetrics])
def promql(request: pytest.FixtureRequest, tmp_path: Path, running: Callable[[Server], Server]) -> PromqlServer:
    """An empty server of either kind, which ends with the test."""
    server: PromqlServer = request.param(tmp_path / "promql")
    running(server)
    return server.start()


def run(config: Sections, work: Callable[[PrometheusProvider], Awaitable[Any]]) -> Any:
    return use(lambda: PrometheusProvider(*config), work, limit_s=60.0)


def fetch(server: PromqlServer, *, until: float, span: float = 180.0, **settings: Any) -> Fetch:
    """One fetch."""
    config = sections(**{"address": server.url, "backoff": (0.05,), **settings})
    got: Fetch = run(config, lambda provider: provider.fetch(until - span, until))
    return got


def failure(server: PromqlServer, **settings: Any) -> ProviderError:
    return failure_of(lambda: fetch(server, until=time.time(), metrics=("CPU",), **settings))


def fleet_until_now(nodes: int = 3, *, seed: int = 1) -> Fleet:
    """Sixteen minutes of load that end 7 s ago, so that no sample is at an edge of a range."""
    end = time.time() - 7.0
    return make_fleet(nodes, start=end - 960, end=end, step=STEP, seed=seed)


def samples(batch: SeriesBatch) -> dict[str, dict[float, float]]:
    """node -> time -> value, the maximum where a node has several series."""
    found: dict[str, dict[float, float]] = {node: {} for node in batch.nodes}
    for series, at, value in zip(batch.series, batch.time, batch.value, strict=True):
        of_node = found[batch.nodes[series]]
        of_node[float(at)] = max(float(value), of_node.get(float(at), -np.inf))
    return found


def by_key(got: Fetch) -> dict[str, SeriesBatch]:
    return {batch.metric.key: batch for batch in got.batches}


# --- expressions of metrics ------------------------------------------------------------------------------------------


def test_recording_rules_have_their_own_samples(promql: PromqlServer):
    """Real times to the millisecond, values as stored, each device of a node as a separate series."""
    fleet = fleet_until_now()
    promql.write(recording_rule_series(fleet, labels=by_node_label))
    until = float(fleet.times[-1]) + 5.0
    got = fetch(promql, until=until)

    batches = by_key(got)
    assert 7 == len(batches)
    assert () == got.failures == got.findings
    inside = fleet.times >= until - 180.0
    for key, values, factor in [
        ("CPU", fleet.cpu, 100.0),
        ("Memory", fleet.memory, 100.0),
        ("NetworkReceive", fleet.receive, 1.0),
    ]:
        for row, node in enumerate(fleet.nodes):
            one = samples(batches[key])[node]
            assert np.allclose(fleet.times[inside], sorted(one), atol=1e-3, rtol=0)
            assert np.allclose(values[row, inside] * factor, [one[at] for at in sorted(one)], rtol=1e-12)
    assert 2 * len(fleet.nodes) == len(batches["Storage"].nodes)
    assert {"node"} == {plan.node_label for plan in got.plans.values()}
    assert got.clock_offset_s == 0.0


def test_raw_series_give_the_values_of_the_rules(promql: PromqlServer):
    """The CPU averaged over five minutes, memory unchanged, traffic without the loopback, the busiest disk."""
    fleet = fleet_until_now()
    promql.write(node_exporter_series(fleet, labels=by_node_label))
    got = fetch(promql, until=float(fleet.times[-1]) + 7.0)

    batches = by_key(got)
    assert 7 == len(batches)
    assert () == got.failures == got.findings

    # A rate of Prometheus begins with the first sample in its range, one of VictoriaMetrics with the previous one.
    first = 0 if isinstance(promql, VictoriaMetrics) else 1

    def smoothed(values: np.ndarray, seconds: float, at: float) -> float:
        window = (fleet.times > at - seconds) & (fleet.times <= at)
        return float(values[window][first:].mean())

    for row, node in enumerate(fleet.nodes):
        for key, values, seconds, factor in [
            ("CPU", fleet.cpu[row], 300.0, 100.0),
            ("NetworkReceive", fleet.receive[row], 180.0, 1.0),
            ("NetworkTransmit", fleet.transmit[row], 180.0, 1.0),
            ("NetworkReceiveDrop", fleet.receive_drop[row], 300.0, 1.0),
        ]:
            for at, value in samples(batches[key])[node].items():
                assert value == pytest.approx(factor * smoothed(values, seconds, at), rel=0.03, abs=0.03), (key, at)
        for at, value in samples(batches["Memory"])[node].items():
            latest = fleet.memory[row][fleet.times <= at][-1]
            assert value == pytest.approx(100.0 * latest, abs=1e-6)
        for at, value in samples(batches["Storage"])[node].items():
            busiest = max(smoothed(disk, 300.0, at) for disk in fleet.disk[row])
            assert value == pytest.approx(100.0 * busiest, rel=0.03)
    assert all(at % STEP == 0 for at in batches["CPU"].time)
    assert 300.0 == got.plans["instance:node_cpu:ratio"].smoothing_s


@pytest.mark.parametrize("raw", [False, True])
def test_the_maxima_of_five_minutes_are_those_of_the_samples(promql: PromqlServer, raw: bool):
    """The highest of the stored samples; an average over five minutes counts at its end, memory is read once a
    minute."""
    end = np.floor((time.time() - 7.0) / 300) * 300
    fleet = make_fleet(3, start=end - 1800, end=end + 7.0, step=STEP, seed=1)
    series = node_exporter_series if raw else recording_rule_series
    promql.write(series(fleet, labels=by_node_label))

    async def work(provider: PrometheusProvider) -> list[SeriesBatch]:
        await provider.fetch(end - 120, end)
        got = [
            await provider.fetch_maxima(end - 1200, end, metric=METRIC_BY_KEY[key].name) for key in ("CPU", "Memory")
        ]
        return [batch for fetched in got for batch in fetched.batches]

    cpu, memory = run(sections(address=promql.url, backoff=(0.05,)), work)
    for batch, values, tolerance in (
        (cpu, fleet.cpu, 0.08 if raw else 1e-9),
        (memory, fleet.memory, 0.06 if raw else 1e-9),
    ):
        found = samples(batch)
        assert set(fleet.nodes) == set(found)
        for row, node in enumerate(fleet.nodes):
            assert [end - 1200 + 300 * k + 150 for k in range(4)] == sorted(found[node])
            for middle, value in found[node].items():
                inside = (fleet.times > middle - 150) & (fleet.times <= middle + 150)
                expected = values[row, inside].mean() if raw and batch is cpu else values[row, inside].max()
                assert value / 100.0 == pytest.approx(expected, rel=tolerance)


def raw_series_of(key: str, number: int, times: np.ndarray) -> Iterable[Series]:
    """Raw series for a single candidate, so that its metric is 25 of its unit on node a and 50 on node b (bandwidth and
    drops: per second; energy: watts)."""
    candidate = CANDIDATES[key][number]
    elapsed = times - times[0]
    for node, level in (("a", 25.0), ("b", 50.0)):
        own = {"node": node, "instance": f"{node}:9100"}
        plain = "<label>" not in candidate.expression
        if plain:
            scale = {"ratio": 0.01, "microwatts": 1e6}.get(candidate.unit, 1.0)
            yield Series({"__name__": candidate.expression, **own}, times, np.full_like(times, level * scale))
        elif candidate.origin == "windows_exporter":
            yield from windows_series(key, level, elapsed, times, own)
        elif key == "Memory":
            yield Series({"__name__": "node_memory_MemTotal_bytes", **own}, times, np.full_like(times, 1000.0))
            # An old kernel: no MemAvailable.
            for part, share in {"Buffers": 0.1, "Cached": 0.4, "MemFree": 0.3, "Slab": 0.2}.items():
                free = np.full_like(times, share * 10.0 * (100.0 - level))
                yield Series({"__name__": f"node_memory_{part}_bytes", **own}, times, free)
        elif key == "CPU":
            for cpu, idle in (("0", 0.5), ("1", 1.5)):  # different busy times: the mean counts
                name = {"__name__": "node_cpu_seconds_total", **own, "cpu": cpu}
                share = idle * (1.0 - level / 100.0)
                yield Series({**name, "mode": "idle"}, times, elapsed * share * 0.7)
                yield Series({**name, "mode": "iowait"}, times, elapsed * share * 0.2)
                yield Series({**name, "mode": "steal"}, times, elapsed * share * 0.1)
                yield Series({**name, "mode": "user"}, times, elapsed * (1.0 - share))
        else:
            counter = {"__name__": candidate.raw.partition("{")[0], **own}
            if zone := re.search(r'zone=~"([a-z]+)', candidate.raw):
                counter["zone"] = zone[1]
            scale = 0.01 if candidate.unit == "ratio" else 1.0
            yield Series({**counter, "device": "x1"}, times, elapsed * level * scale)
            if "node_network" in candidate.raw:
                yield Series({**counter, "device": "lo"}, times, elapsed * 1e6)


def windows_series(
    key: str, level: float, elapsed: np.ndarray, times: np.ndarray, own: Mapping[str, str]
) -> Iterable[Series]:
    """windows_exporter's CPU and memory of a node."""
    if key == "Memory":
        yield Series({"__name__": "windows_memory_physical_total_bytes", **own}, times, np.full_like(times, 1000.0))
        free = np.full_like(times, 10.0 * (100.0 - level))
        yield Series({"__name__": "windows_memory_available_bytes", **own}, times, free)
        return
    for core, idle in (("0,0", 0.5), ("0,1", 1.5)):
        share = idle * (1.0 - level / 100.0)
        name = {"__name__": "windows_cpu_time_total", **own, "core": core}
        yield Series({**name, "mode": "idle"}, times, elapsed * share)
        yield Series({**name, "mode": "user"}, times, elapsed * (1.0 - share))


@pytest.mark.parametrize(
    ("key", "number"),
    [pytest.param(key, number, id=f"{key}-{number}") for key in CANDIDATES for number in range(len(CANDIDATES[key]))],
)
def test_each_candidate_is_found_and_used(promql: PromqlServer, key: str, number: int):
    """If it is the only one in a Prometheus, it gives the metric in its unit."""
    end = time.time() - 7.0
    times = end - STEP * np.arange(64, -1, -1)
    promql.write(raw_series_of(key, number, times))
    got = fetch(promql, until=end + 7.0, metrics=(key,))

    metric = METRIC_BY_KEY[key]
    (batch,) = got.batches
    plan, candidate = got.plans[metric.name], CANDIDATES[key][number]
    expected = (
        candidate.cheaper.replace("<number>", "3") if key == "CPU" and candidate.cheaper else candidate.expression
    )
    assert expected.replace("<label>", "node") == plan.expression
    step = max(STEP, candidate.smoothing_s / (10 if key == "CPU" else 5)) if candidate.raw else STEP
    step = STEP * math.ceil(step / STEP)
    assert {"a", "b"} == set(batch.nodes)
    for node, level in (("a", 25.0), ("b", 50.0)):
        found = samples(batch)[node]
        assert 180 / step - 1 <= len(found) <= 180 / step + 1
        assert np.allclose(level, list(found.values()))


def test_the_cpu_of_a_new_node_is_right_from_the_second_sample_on(promql: PromqlServer):
    """rate() over five minutes is too small while the counters are younger, also that of the idle time."""
    end = time.time() - 7.0
    times = end - STEP * np.arange(6, -1, -1)
    raw = next(number for number, each in enumerate(CANDIDATES["CPU"]) if each.cheaper)
    promql.write(raw_series_of("CPU", raw, times))
    (batch,) = fetch(promql, until=end + 7.0, metrics=("CPU",)).batches

    for node, level in (("a", 25.0), ("b", 50.0)):
        found = samples(batch)[node]
        assert found
        assert np.allclose(level, list(found.values()))


def test_the_first_existing_candidate_is_used(promql: PromqlServer):
    """Rules before raw series; the reason names what was found."""
    fleet = fleet_until_now()
    promql.write(recording_rule_series(fleet))
    promql.write(node_exporter_series(fleet))
    got = fetch(promql, until=time.time())

    assert {"recording rule", "recording rule of the mixin"} == {plan.reason for plan in got.plans.values()}


def test_several_devices_of_a_gpu_stay_separate(promql: PromqlServer):
    """The review computes their mean."""
    now = time.time()
    promql.write(
        Series({"__name__": "DCGM_FI_DEV_GPU_UTIL", "node": "a", "gpu": str(gpu)}, [now - 10], [float(20 * gpu)])
        for gpu in range(4)
    )
    got = fetch(promql, until=now, metrics=("GPU",))

    (batch,) = got.batches
    assert ("a",) * 4 == batch.nodes
    assert [0.0, 20.0, 40.0, 60.0] == sorted(batch.value)


def test_overlapping_fetches_give_the_same_samples(promql: PromqlServer):
    """Times and values, from rules and from expressions."""
    fleet = fleet_until_now()
    promql.write(node_exporter_series(fleet, labels=by_node_label))
    promql.write(recording_rule_series(fleet, labels=by_node_label)[: 1 * len(fleet.nodes)])
    until = float(fleet.times[-1])

    def work(since: float, until: float) -> Callable[[PrometheusProvider], Awaitable[Fetch]]:
        return lambda provider: provider.fetch(since, until)

    config = sections(address=promql.url)
    first, second = run(config, work(until - 300, until - 60)), run(config, work(until - 180, until))
    for before, after in zip(first.batches, second.batches, strict=True):
        for node, earlier in samples(before).items():
            later = samples(after)[node]
            common = {at for at in earlier if at >= until - 180}
            # 3.x excludes the left edge of a range.
            assert len(common - later.keys()) <= 1
            assert len(common) >= 2
            # VictoriaMetrics rounds sums over another range differently in the last digit.
            assert all(earlier[at] == pytest.approx(later[at], abs=1e-9) for at in common & later.keys())


# --- labels of nodes -------------------------------------------------------------------------------------------------


def relabelled(**changes: str) -> Labels:
    """`#` is replaced by the node's name, `@` by its address."""

    def labels(node: str) -> Mapping[str, str]:
        address = by_node_label(node)["instance"]
        return {name: text.replace("#", node).replace("@", address) for name, text in changes.items()}

    return labels


JOINED = "nodename (of node_uname_info, by instance)"


@pytest.mark.parametrize(
    ("labels", "uname", "shown"),
    [
        pytest.param(relabelled(instance="@", node="#"), True, "node", id="node"),
        pytest.param(relabelled(instance="@", kubernetes_node="#"), True, "kubernetes_node", id="kubernetes_node"),
        pytest.param(relabelled(instance="@"), True, JOINED, id="nodename"),
        pytest.param(relabelled(instance="@", node="the-prometheus"), True, JOINED, id="one node for all"),
        pytest.param(relabelled(instance="#:9100"), False, "instance without its port", id="instance with a port"),
        pytest.param(by_instance, False, "instance without its port", id="instance"),
    ],
)
@pytest.mark.parametrize("kind", ["rules", "raw"])
def test_the_label_of_node_names_is_found(promql: PromqlServer, labels: Labels, uname: bool, shown: str, kind: str):
    """The first label that distinguishes nodes, in any series."""
    fleet = fleet_until_now(4)
    raw = node_exporter_series(fleet, labels=labels, uname=uname)
    rules = recording_rule_series(fleet, labels=labels)
    promql.write(raw if kind == "raw" else [*rules, *(one for one in raw if "uname" in one.labels["__name__"])])
    got = fetch(promql, until=time.time())

    assert {shown} == {plan.node_label for plan in got.plans.values()}
    assert 7 == len(got.batches)
    assert all(set(fleet.nodes) == set(batch.nodes) for batch in got.batches)
    assert () == got.findings


def test_a_rule_that_only_keeps_the_instance_has_the_names_of_raw_series(promql: PromqlServer):
    """As kube-prometheus' network rules; a node must not have two names."""
    fleet = fleet_until_now()
    raw = node_exporter_series(fleet, labels=by_node_label, uname=True)
    # The host name differs from the node's name.
    renamed = [
        one._replace(labels={**one.labels, "nodename": "ip-" + one.labels["nodename"]})
        if "nodename" in one.labels
        else one
        for one in raw
    ]
    promql.write(renamed)
    rules = recording_rule_series(fleet, labels=lambda node: {"instance": by_node_label(node)["instance"]})
    promql.write(one for one in rules if "network_receive_bytes" in one.labels["__name__"])
    got = fetch(promql, until=time.time())

    assert JOINED == got.plans["instance:node_network_receive_bytes:rate:sum"].node_label
    assert all(set(fleet.nodes) == set(batch.nodes) for batch in got.batches)


# --- several clusters in one server ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rules", "raw"])
def test_matchers_separate_clusters(promql: PromqlServer, kind: str):
    """With nodes of equal names and addresses, and a cluster name with all characters that could end a string."""
    ours, theirs = r"""our "own" <label> \d{1} `'""", "theirs"
    make = recording_rule_series if kind == "rules" else node_exporter_series
    fleets = {ours: fleet_until_now(seed=1), theirs: fleet_until_now(4, seed=2)}
    for cluster, fleet in fleets.items():
        uname = [one for one in node_exporter_series(fleet, uname=True) if "uname" in one.labels["__name__"]]
        for one in [*make(fleet), *uname]:
            promql.write([Series({**one.labels, "cluster": cluster, "env": "x"}, one.times, one.values)])
    until = time.time()
    mine = fetch(promql, until=until, matchers=(Matcher("cluster", "=", ours), Matcher("env", "=~", "x|y")))
    rest = fetch(promql, until=until, matchers=(Matcher("cluster", "!=", ours),))

    for got, fleet in ((mine, fleets[ours]), (rest, fleets[theirs])):
        assert 7 == len(got.batches)
        assert () == got.failures == got.findings
        assert {tuple(fleet.nodes)} == {tuple(sorted(set(batch.nodes))) for batch in got.batches}
        for row, node in enumerate(fleet.nodes):
            found = samples(by_key(got)["Memory"])[node]
            assert found
            for at, value in found.items():
                assert value == pytest.approx(100 * fleet.memory[row][fleet.times <= at + 1e-3][-1], abs=1e-6)
    assert set(mine.plans.values()).isdisjoint(rest.plans.values())


# --- a stopped exporter ----------------------------------------------------------------------------------------------


def write_one_dead(server: PromqlServer, *, silent_s: float) -> tuple[Fleet, float]:
    """A fleet whose first node stopped this many seconds ago, and the time of that node's last sample."""
    fleet = fleet_until_now()
    last = float(fleet.times[-1]) - silent_s
    dead = fleet.nodes[0]
    for series in node_exporter_series(fleet, labels=by_node_label):
        times, values = np.asarray(series.times), np.asarray(series.values)
        keep = times <= last if series.labels["node"] == dead else np.ones(len(times), dtype=bool)
        server.write([Series(series.labels, times[keep], values[keep])])
    return fleet, float(fleet.times[fleet.times <= last][-1])


def test_a_stopped_exporter_does_not_look_alive(promql: PromqlServer):
    """No sample of its node is newer than its last one plus two scrape intervals, for any metric; other nodes
    continue."""
    fleet, last = write_one_dead(promql, silent_s=120.0)
    got = fetch(promql, until=time.time(), span=240.0)

    assert 7 == len(got.batches)
    for batch in got.batches:
        newest = {node: max(found) for node, found in samples(batch).items()}
        assert last - 4 * STEP < newest[fleet.nodes[0]] <= last + 2 * STEP, batch.metric.key
        assert all(newest[node] >= fleet.times[-1] - 4 * STEP for node in fleet.nodes[1:]), batch.metric.key


def test_without_a_guard_a_stopped_exporter_looks_alive(promql: PromqlServer):
    """So the guard is necessary; a configured expression has it if one is configured."""
    fleet, last = write_one_dead(promql, silent_s=120.0)
    expression = '1 - avg by (node) (rate(node_cpu_seconds_total{mode="idle"}[5m]))'
    ages = []
    for guard in (None, 'node_cpu_seconds_total{mode="idle",cpu="0"}'):
        got = fetch(promql, until=time.time(), queries={"CPU": QuerySettings(expression, "ratio", guard=guard)})
        ages.append(max(samples(by_key(got)["CPU"])[fleet.nodes[0]]) - last)

    assert ages[0] > 60.0
    assert ages[1] <= 2 * STEP


# --- credentials -----------------------------------------------------------------------------------------------------


def test_tls_with_basic_authentication_works(start_prometheus: StartPrometheus, tmp_path: Path):
    """With the authority and a password file; without either, the error names the setting."""
    password = new_secret()
    server = start_prometheus(tls=True, basic_auth=("me", password))
    server.write(recording_rule_series(fleet_until_now()))
    file = tmp_path / "password"
    file.write_text(password)
    good: dict[str, Any] = {"ca_file": str(server.ca_file), "username": "me", "password_file": str(file)}

    assert 7 == len(fetch(server, until=time.time(), **good).batches)

    untrusted = failure(server, **{**good, "ca_file": None})
    anonymous = failure(server, ca_file=str(server.ca_file))
    wrong = failure(server, **{**good, "password_file": None, "password": new_secret()})
    plain = failure(server, **{**good, "address": server.url.replace("https", "http")})
    for error, part, setting in [
        (untrusted, "certificate is not trusted", "provider.ca_file"),
        (anonymous, "401", "Set provider.token"),
        (wrong, "401", "rejected"),
        (plain, "TLS", "https://"),
    ]:
        assert isinstance(error, ProviderRefused)
        assert part in str(error)
        assert setting in error.hint
        assert password not in str(error)


def test_an_invalid_authority_is_an_error(start_prometheus: StartPrometheus, tmp_path: Path):
    """A file that does not exist, or that contains no certificate."""
    server = start_prometheus(tls=True)
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")

    for file in (tmp_path / "absent.pem", junk):
        error = failure(server, ca_file=str(file))
        assert isinstance(error, ProviderRefused)
        assert "provider.ca_file" in error.hint


def test_only_insecure_skip_verify_disables_verification(start_prometheus: StartPrometheus):
    """Then any certificate is accepted, and no library warns at each request (warnings are errors here)."""
    server = start_prometheus(tls=True)
    server.write(recording_rule_series(fleet_until_now()))

    assert 7 == len(fetch(server, until=time.time(), insecure_skip_verify=True).batches)


def test_a_client_certificate_is_used(start_prometheus: StartPrometheus):
    """Without it or its key, the error names the setting."""
    server = start_prometheus(client_certificates=True)
    server.write(recording_rule_series(fleet_until_now()))
    authority: dict[str, Any] = {"ca_file": str(server.ca_file)}
    own: dict[str, Any] = {**authority, "client_cert": str(server.client_cert), "client_key": str(server.client_key)}

    assert 7 == len(fetch(server, until=time.time(), **own).batches)

    anonymous = failure(server, **authority)
    # Unless the server's reset of the connection arrives before its reason.
    assert "aborted the TLS handshake" in str(anonymous) or isinstance(anonymous, ProviderUnreachable)
    keyless = failure(server, **{**authority, "client_cert": str(server.client_cert)})
    assert isinstance(keyless, ProviderRefused)
    for error in (anonymous, keyless):
        assert "client_cert" in error.hint


# --- failures of the server ------------------------------------------------------------------------------------------


def test_a_query_beyond_the_limits_is_refused(start_prometheus: StartPrometheus):
    """Limits and grammar of the server: a retry would not help."""
    server = start_prometheus(flags=["--query.max-samples=10"])
    server.write(recording_rule_series(fleet_until_now()))

    assert isinstance(failure(server), ProviderRefused)
    bad = failure(server, queries={"CPU": QuerySettings("sum(", "ratio")})
    assert isinstance(bad, ProviderRefused)
    assert "parse error" in str(bad)
    assert "provider.queries" in bad.hint


def test_a_query_that_takes_too_long_is_retried(start_prometheus: StartPrometheus):
    """2.42 responds with 422, 3.5 with 503."""
    server = start_prometheus(flags=["--query.timeout=1ms"])
    fleet = fleet_until_now(300)
    server.write(node_exporter_series(fleet))

    assert isinstance(failure(server), ProviderUnreachable)


def test_a_paused_server_is_unreachable_until_it_resumes(prometheus: Prometheus):
    """A stopped process accepts connections and sends nothing: unreachable within the timeout, and available at once
    afterwards."""
    prometheus.write(recording_rule_series(fleet_until_now()))

    async def work(provider: PrometheusProvider) -> None:
        now = time.time()

        async def whole():
            return 7 == len((await provider.fetch(now - 180, now)).batches)

        # On a busy machine, half a second is sometimes too short for a response.
        await eventually(whole, what="all metrics", ignoring=(ProviderUnreachable,))
        prometheus.pause()
        with pytest.raises(ProviderUnreachable, match="in time"):
            await provider.fetch(now - 180, now)
        prometheus.resume()
        await eventually(whole, what="all metrics again", ignoring=(ProviderUnreachable,))

    run(sections(address=prometheus.url, timeout=0.5, backoff=()), work)


def test_a_metric_that_never_existed_does_not_hide_an_outage(prometheus: Prometheus):
    """With the two rules of a small installation, the first fetch without a response fails."""
    series = recording_rule_series(fleet_until_now())
    prometheus.write([one for one in series if one[0]["__name__"] == "instance:node_cpu:ratio"])

    async def work(provider: PrometheusProvider) -> None:
        now = time.time()
        assert 1 == len((await provider.fetch(now - 180, now)).batches)
        prometheus.kill()
        with pytest.raises(ProviderUnreachable, match="Connection refused"):
            await provider.fetch(now - 180, now)

    run(sections(address=prometheus.url, backoff=()), work)


def test_a_killed_server_is_unreachable_until_it_restarts(prometheus: Prometheus):
    """Then it has its stored samples."""
    prometheus.write(recording_rule_series(fleet_until_now()))

    async def work(provider: PrometheusProvider) -> None:
        now = time.time()
        before = await provider.fetch(now - 180, now)
        prometheus.kill()
        with pytest.raises(ProviderUnreachable, match="Connection refused"):
            await provider.fetch(now - 180, now)
        await asyncio.to_thread(prometheus.start)
        after = await provider.fetch(now - 180, now)
        assert [samples(batch) for batch in before.batches] == [samples(batch) for batch in after.batches]

    run(sections(address=prometheus.url, backoff=()), work)


def unread_bytes(port: int) -> int:
    """The number of bytes that the kernel keeps for the server at this port, which does not read."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    queues = [row[4] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return sum(int(queue.partition(":")[2], 16) for queue in queues)


def test_a_server_that_dies_during_a_fetch_fails_it_at_once(prometheus: Prometheus):
    """Pending queries fail before their timeout."""
    prometheus.write(recording_rule_series(fleet_until_now()))

    async def work(provider: PrometheusProvider) -> None:
        now = time.time()
        await provider.fetch(now - 180, now)
        prometheus.pause()
        task = asyncio.create_task(provider.fetch(now - 180, now))
        await eventually(lambda: unread_bytes(prometheus.port), what="questions that the server has not read")
        prometheus.kill()
        with pytest.raises(ProviderUnreachable, match="connection failed"):
            await task

    run(sections(address=prometheus.url, timeout=50.0, backoff=()), work)


LEAVE = """
import asyncio, sys, time
from tests.fetches import sections
from tests.real.test_prometheus_provider import unread_bytes
from tests.waiting import eventually, wait_for

from watcher.sources.prometheus.provider import PrometheusProvider

async def main():
    provider = PrometheusProvider(*sections(address=sys.argv[1], timeout=600.0, fetch_deadline=600.0))
    await provider.start()
    task = asyncio.create_task(provider.fetch(time.time() - 60, time.time()))
    port = int(sys.argv[1].rpartition(":")[2])
    await eventually(lambda: unread_bytes(port), what="the question")
    if sys.argv[2] == "close":
        await provider.close()
        print("closed")
    elif sys.argv[2] == "leave":
        print("left")

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["close", "leave"])
def test_a_hanging_server_does_not_prevent_the_exit_of_the_process(prometheus: Prometheus, way: str):
    """After a close or without it, with ten minutes of the timeout remaining."""
    prometheus.pause()
    done = subprocess.run(
        [sys.executable, "-c", LEAVE, prometheus.url, way],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
    )

    assert 0 == done.returncode, done.stderr
    # either would take the ten minutes of the provider's timeout if it waited for the response
    assert ("closed\n" if way == "close" else "left\n") == done.stdout
    assert "Traceback" not in done.stderr
