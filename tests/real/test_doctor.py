"""`load-watcher doctor` with real servers: frequent mistakes with Prometheus and InfluxDB in a first deployment."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.conftest import StartPrometheus
from tests.doctor import Reported, doctor
from tests.real.fleet import Fleet, between, by_node_label, make_fleet, node_exporter_series, recording_rule_series
from tests.real.parts import InfluxDB, NodeExporter, Prometheus, Server, free_port, new_secret
from tests.real.remote_write import Series
from tests.real.telegraf import telegraf_lines

pytestmark = pytest.mark.real

RULE = "instance:node_cpu:ratio"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory, in which the database and the settings file are searched."""
    monkeypatch.chdir(tmp_path)


def fleet_until_now(nodes: int = 3, *, step: float = 15.0) -> Fleet:
    """Sixteen minutes of load that end a moment ago."""
    end = time.time() - 5.0
    return make_fleet(nodes, start=end - 960, end=end, step=step, seed=3)


def named(prefix: str) -> Callable[[Series], bool]:
    return lambda series: series.labels["__name__"].startswith(prefix)


def without(series: Iterable[Series], prefix: str) -> list[Series]:
    return [each for each in series if not named(prefix)(each)]


def ask(server: Server, *arguments: str) -> Reported:
    return doctor("--provider", "prometheus", "--address", server.url, *arguments)


# --- Prometheus ------------------------------------------------------------------------------------------------------


def test_with_the_recording_rules_all_checks_pass(prometheus: Prometheus):
    """Exit code 0; each metric with its expression, its label, and the reason."""
    prometheus.write(recording_rule_series(fleet_until_now(), labels=by_node_label))
    reported = ask(prometheus)
    assert (0, "ok") == (reported.exit_code, reported.status), str(reported)
    assert f"Prometheus at {prometheus.url} is accessible" in reported.one("source", "ok").what
    reported.one("series", "ok", f"CPU: {RULE}", "node names from node", "(recording rule)")
    assert 7 == len(reported.of("series", "ok"))
    reported.one("freshness", "ok", "3 nodes")
    reported.one("cadence", "ok", "samples every 15 s", "5m, 10m, 15m")
    reported.one("clock", "ok")
    reported.one("addresses", "ok", "node-0001")


def test_without_the_cpu_rule_the_raw_series_are_used(prometheus: Prometheus):
    """As on OpenShift. The result names the missing rule and the replacement; there is no failure, unlike in the Go
    load-watcher."""
    fleet = fleet_until_now()
    rules = without(recording_rule_series(fleet, labels=by_node_label), RULE)
    raw = [each for each in node_exporter_series(fleet, labels=by_node_label) if named("node_cpu_seconds")(each)]
    prometheus.write([*rules, *raw])
    reported = ask(prometheus)
    assert 0 == reported.exit_code, str(reported)
    reported.one("series", "ok", "CPU: 1 - 2 * avg by (node)", f"raw series (no series of {RULE}, ")


def test_a_missing_cpu_series_is_a_failure(prometheus: Prometheus):
    """With the candidates, and the setting for another expression; the other metrics are still reported."""
    prometheus.write(without(recording_rule_series(fleet_until_now(), labels=by_node_label), RULE))
    reported = ask(prometheus)
    assert (1, "fail") == (reported.exit_code, reported.status)
    line = reported.one("series", "fail", "CPU: no series of any of: ", RULE, "rate5m", "node_cpu_seconds_total")
    assert "node exporter is scraped" in line.cure
    assert "provider.queries.CPU" in line.cure
    reported.one("series", "ok", "Memory: ")


def test_a_misspelt_configured_query_is_a_failure(prometheus: Prometheus):
    """The setting already exists, so the remedy is not to set it; and Kepler's metrics do not come from node
    exporter."""
    prometheus.write(recording_rule_series(fleet_until_now(), labels=by_node_label))
    own = {"LOAD_WATCHER_PROVIDER_METRICS": "CPU,Energy,Pressure"}
    Path("load-watcher.toml").write_text(f'[provider.queries.CPU]\nexpression = "{RULE}s"\nunit = "ratio"\n')
    reported = doctor("--provider", "prometheus", "--address", prometheus.url, env=own)
    assert "check the spelling" in reported.one("series", "fail", f"CPU: no series of {RULE}s").cure
    assert "Kepler" in reported.one("series", "warn", "EnergyCore: ").cure
    assert "psi=1" in reported.one("series", "warn", "PressureCPU: ", "node_pressure_cpu_waiting_seconds_total").cure


def test_matchers_of_another_cluster_are_a_failure(prometheus: Prometheus):
    """On a source of several clusters; the queries are shown with their matchers, which are named as the probable
    cause."""
    prometheus.write(recording_rule_series(fleet_until_now(), labels=by_node_label))
    reported = ask(prometheus, "--set", 'provider.matchers=cluster="prod-9"')
    line = reported.one("series", "fail", "CPU: no series of any of: ", RULE + '{cluster="prod-9"}')
    assert "have the labels of provider.matchers" in line.cure


def test_nodes_that_are_named_by_their_addresses_are_reported(prometheus: Prometheus):
    """If `instance` is an IP address and no label has the name: the most frequent problem of first deployments."""

    def by_address(node: str) -> dict[str, str]:
        return {"instance": f"10.0.0.{int(node[-4:])}:9100", "job": "node-exporter"}

    prometheus.write(recording_rule_series(fleet_until_now(), labels=by_address))
    reported = ask(prometheus)
    assert {"addresses"} == reported.failed()
    line = reported.one("addresses", "fail", "these nodes by IP address: 10.0.0.1, 10.0.0.2, 10.0.0.3 (3 of 3 nodes)")
    assert "provider.node_label" in line.cure
    assert "__meta_kubernetes_pod_node_name" in line.cure


def test_with_node_uname_info_nodes_have_their_names(prometheus: Prometheus):
    """There is no failure, and the line of the series names the origin of the names."""

    def by_address(node: str) -> dict[str, str]:
        return {"instance": f"10.0.0.{int(node[-4:])}:9100", "job": "node-exporter"}

    prometheus.write(node_exporter_series(fleet_until_now(), labels=by_address, uname=True))
    reported = ask(prometheus)
    assert 0 == reported.exit_code, str(reported)
    reported.one("series", "ok", "CPU: ", "nodename (of node_uname_info, by instance)")


def test_a_misspelt_node_label_is_reported_with_the_existing_labels(prometheus: Prometheus):
    prometheus.write(recording_rule_series(fleet_until_now(), labels=by_node_label))
    reported = ask(prometheus, "--set", "provider.node_label=nod")
    assert "source" in reported.failed()
    line = reported.one("source", "fail", "tried nod")
    assert "node" in line.what.split("its labels: ")[1]
    assert "provider.node_label" in line.cure


def test_a_scrape_interval_that_is_too_long_is_reported(prometheus: Prometheus):
    """A scrape every four minutes: no window of five minutes has two samples."""
    prometheus.write(recording_rule_series(fleet_until_now(step=240.0), labels=by_node_label))
    reported = ask(prometheus)
    line = reported.one("cadence", "fail", "samples every 240 s, not frequent enough")
    assert "scrape interval" in line.cure


def test_old_samples_are_reported(prometheus: Prometheus):
    """The exporters are not scraped any more."""
    end = time.time() - 420
    fleet = make_fleet(2, start=end - 900, end=end, step=15.0, seed=3)
    prometheus.write(recording_rule_series(fleet, labels=by_node_label))
    reported = ask(prometheus)
    assert {"series", "freshness"} == reported.failed()
    reported.one("series", "fail", "CPU: ", "scraped")
    reported.one("freshness", "fail", "no node has a sample that is recent enough")


def test_a_silent_node_is_named(prometheus: Prometheus):
    """Other checks pass."""
    fleet = fleet_until_now(8)
    series = recording_rule_series(fleet, labels=by_node_label)
    silent = [each for each in series if each.labels["node"] == "node-0005"]
    others = [each for each in series if each.labels["node"] != "node-0005"]
    prometheus.write([*others, *between(silent, 0, float(fleet.times[-14]))])
    reported = ask(prometheus)
    assert 0 == reported.exit_code, str(reported)
    reported.one("freshness", "warn", "nodes that are silent", "node-0005 (1 of 8 nodes)")


def test_a_closed_port_is_a_failure(prometheus: Prometheus):
    reported = doctor("--provider", "prometheus", "--address", f"http://127.0.0.1:{free_port()}")
    line = reported.one("source", "fail", "Connection refused")
    assert "port of provider.address" in line.cure
    assert {"skipped"} == {each.status for name in ("series", "cadence", "nodes") for each in reported.of(name)}


def test_another_server_at_the_address_is_a_failure(node_exporter: NodeExporter):
    """The port of the exporter."""
    reported = doctor("--provider", "prometheus", "--address", node_exporter.url)
    line = reported.one("source", "fail", node_exporter.url, "a web page")
    assert "provider.address" in line.cure


def test_http_and_https_are_distinguished(start_prometheus: StartPrometheus, prometheus: Prometheus):
    """The remedy names the other one."""
    secure = start_prometheus(tls=True)
    plain = doctor("--provider", "prometheus", "--address", f"https://127.0.0.1:{prometheus.port}")
    assert "http://" in plain.one("source", "fail", "does not support TLS").cure
    reported = doctor("--provider", "prometheus", "--address", f"http://127.0.0.1:{secure.port}")
    assert "https" in reported.one("source", "fail").cure
    untrusted = ask(secure)
    assert "provider.ca_file" in untrusted.one("source", "fail", "certificate is not trusted").cure
    trusting = ask(secure, "--set", "provider.insecure_skip_verify=true")
    trusting.one("surroundings", "warn", "insecure_skip_verify", "provider.ca_file")
    trusting.one("source", "ok")
    trusted = ask(secure, "--set", f"provider.ca_file={secure.ca_file}")
    trusted.one("source", "ok")
    assert not trusted.of("surroundings", "warn")


def test_a_wrong_password_is_a_failure(start_prometheus: StartPrometheus):
    """401 for any user; no secret is shown."""
    right, wrong = new_secret(), new_secret()
    server = start_prometheus(basic_auth=("watcher", right))
    refused = doctor("--provider", "prometheus", "--address", f"http://watcher:{wrong}@127.0.0.1:{server.port}")
    refused.one("source", "fail", "401")
    assert wrong not in refused.output
    anonymous = ask(server)
    assert "provider" in anonymous.one("source", "fail", "401").cure
    welcome = doctor("--provider", "prometheus", "--address", f"http://watcher:{right}@127.0.0.1:{server.port}")
    welcome.one("source", "ok")
    assert right not in welcome.output


# --- InfluxDB --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def influxdb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InfluxDB]:
    """A real 1.6 with a user, and sixteen minutes of Telegraf's points until now."""
    with InfluxDB(tmp_path_factory.mktemp("influxdb"), auth=("watcher", "a-password")) as server:
        server.write(telegraf_lines(make_fleet(3, start=time.time() - 960, end=time.time() - 2, step=10.0, seed=5)))
        yield server


def flux(server: InfluxDB, *arguments: str, user: str = "watcher:a-password@") -> Reported:
    return doctor("--provider", "influxdb", "--address", f"http://{user}127.0.0.1:{server.port}", *arguments)


def test_a_working_influxdb_passes(influxdb: InfluxDB):
    """With the same checks as a Prometheus."""
    reported = flux(influxdb)
    assert 0 == reported.exit_code, str(reported)
    reported.one("series", "ok", "CPU: ", "node names from host")
    reported.one("cadence", "ok", "samples every 10 s")


def test_failures_of_influxdb_are_reported(influxdb: InfluxDB):
    """A wrong password, a wrong database, and a tag that no point has."""
    reported = flux(influxdb, user="watcher:wrong@")
    reported.one("source", "fail", "401")
    assert "wrong" not in reported.one("source", "fail").what
    reported = flux(influxdb, "--set", "provider.database=telegraph")
    assert "telegraph" in reported.one("source", "fail").what
    reported = flux(influxdb, "--set", "provider.node_label=machine")
    assert 1 == reported.exit_code
    assert any("machine" in line.what for line in reported.lines if line.status == "fail"), str(reported)
