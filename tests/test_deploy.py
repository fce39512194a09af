"""The image, the compose stack, and the names of the kustomize components.

Without a container engine, the tests check structure, existing files, users, ports, and the configuration with
Prometheus' own tools.
"""

import copy
import json
import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml

from tests.deploy.grafana import INFINITY
from tests.deploy.rendering import COMPONENTS, DeployComponent
from tests.real.fleet import DISKS, by_instance, make_fleet, node_exporter_series
from tests.real.parts import Prometheus, find_go_module, run_program
from tests.schemas import draft7
from watcher.api.settings import MetricsSettings
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.http.settings import ServerSettings
from watcher.service.settings.loading import load
from watcher.store.settings import StoreSettings

REPOSITORY = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
RULES = REPOSITORY / "deploy" / "compose" / "node-rules.yml"


def test_the_components_that_the_cluster_tests_use_exist():
    assert sorted(get_args(DeployComponent)) == sorted(each.name for each in COMPONENTS.iterdir())


# The compose stack


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_runs_as_a_numbered_user_that_is_not_root(name: str):
    uid = SERVICES[name]["user"].partition(":")[0]
    assert uid.isdecimal()
    assert int(uid) > 0


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_hardened(name: str):
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged", False)


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_only_open_to_this_machine(name: str):
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


@pytest.mark.parametrize("name", SERVICES)
def test_the_mounts_of_a_service_exist_and_are_read_only(name: str):
    for volume in SERVICES[name].get("volumes", []):
        source, _, rest = volume.partition(":")
        if source.startswith(("./", "/")):
            assert (REPOSITORY / source).exists()
            assert "ro" in rest.partition(":")[2].split(",")
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", SERVICES)
def test_an_image_has_a_version(name: str):
    _, _, tag = SERVICES[name]["image"].rpartition(":")
    assert re.search(r"\d+\.\d+", tag)


@pytest.mark.real
def test_the_stack_is_valid_for_compose():
    """By the published schema, in which unknown fields are errors; a misspelt one is detected."""
    schema = find_go_module("github.com/compose-spec/compose-go/v2") / "schema" / "compose-spec.json"
    validator = draft7(json.loads(schema.read_text()))
    assert [] == [f"{error.json_path}: {error.message}" for error in validator.iter_errors(COMPOSE)]
    for field in SERVICES["watcher"]:
        broken = copy.deepcopy(COMPOSE)
        broken["services"]["watcher"][f"{field}x"] = broken["services"]["watcher"].pop(field)
        assert not validator.is_valid(broken), field


@pytest.mark.real
def test_docker_compose_accepts_the_stack():
    """The program needs no engine for this. Only Docker distributes it, so it is not required."""
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode != 0:
        pytest.skip("there is no docker compose on this machine")
    done = subprocess.run(
        [docker, "compose", "--file", REPOSITORY / "docker-compose.yml", "config", "--quiet"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_dependencies_of_services_exist():
    for service in SERVICES.values():
        assert set(service.get("depends_on", [])) <= SERVICES.keys()


def test_the_image_has_the_version_of_the_package():
    version = re.search(r'__version__ = "(.+)"', (REPOSITORY / "watcher" / "__init__.py").read_text())
    assert version is not None
    assert SERVICES["watcher"]["image"] == f"load-watcher:{version[1]}"


def test_addresses_inside_the_stack_are_names_of_its_services():
    prometheus = yaml.safe_load((REPOSITORY / "deploy" / "compose" / "prometheus.yml").read_text())
    targets = [
        target.partition(":")[0]
        for job in prometheus["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    assert set(targets) - {"127.0.0.1"} <= SERVICES.keys()
    (source,) = yaml.safe_load(
        (REPOSITORY / "deploy" / "compose" / "grafana" / "datasources" / "prometheus.yml").read_text()
    )["datasources"]
    assert (
        source["url"] == SERVICES["watcher"]["environment"]["LOAD_WATCHER_PROVIDER_ADDRESS"] == "http://prometheus:9090"
    )


def test_grafana_requests_only_the_watcher():
    """With the configured plug-in, which the dashboards use; only the listed addresses are allowed."""
    (source,) = yaml.safe_load(
        (REPOSITORY / "deploy" / "compose" / "grafana" / "datasources" / "load-watcher.yml").read_text()
    )["datasources"]
    plugin, _, version = SERVICES["grafana"]["environment"]["GF_PLUGINS_PREINSTALL"].partition("@")
    assert plugin == source["type"] == INFINITY
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert [source["url"]] == source["jsonData"]["allowedHosts"] == ["http://watcher:2020"]
    assert SERVICES["watcher"]["ports"] == ["127.0.0.1:2020:2020"]


def test_the_watcher_exports_all_metrics_of_the_dashboards(tmp_path: Path):
    environ = {name: value for name, value in SERVICES["watcher"]["environment"].items() if "METRICS" in name}
    settings = load(flags={}, environ=environ, file=None, cwd=tmp_path)
    assert list(settings[MetricsSettings].windows) == [window.label for window in settings[RefreshSettings].windows]
    assert {"CPU", "Memory", "Storage", "Bandwidth", "Energy", "Pressure"} == set(settings[MetricsSettings].types)


def test_grafana_finds_the_mounted_dashboards():
    (provider,) = yaml.safe_load(
        (REPOSITORY / "deploy" / "compose" / "grafana" / "dashboards" / "load-watcher.yml").read_text()
    )["providers"]
    directory = provider["options"]["path"]
    assert f"./dashboards:{directory}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (REPOSITORY / "dashboards" / home.removeprefix(f"{directory}/")).exists()


# The image


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each with its arguments on one line."""
    text = re.sub(r"^\s*#.*\n", "", (REPOSITORY / "Dockerfile").read_text(), flags=re.MULTILINE)
    joined = text.replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in joined.splitlines() if line.strip()]


def final_stage() -> list[tuple[str, str]]:
    found = instructions()
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def test_the_image_runs_as_a_numbered_user_that_is_not_root():
    (user,) = (arguments for name, arguments in final_stage() if name == "USER")
    assert user == SERVICES["watcher"]["user"] == "65532:65532"


def test_the_final_stage_runs_no_command_and_needs_no_shell():
    stage = final_stage()
    assert "RUN" not in [name for name, _ in stage]
    for name, arguments in stage:
        if name in {"ENTRYPOINT", "CMD", "HEALTHCHECK"}:
            assert json.loads(arguments[arguments.index("[") :])


def test_the_image_starts_the_command_that_the_package_installs():
    stage = dict(final_stage())
    command = json.loads(stage["ENTRYPOINT"]) + json.loads(stage["CMD"])
    assert command == ["/opt/load-watcher/bin/load-watcher", "serve"]


def test_the_health_check_is_a_module_of_the_program():
    command = json.loads(dict(final_stage())["HEALTHCHECK"].partition("CMD ")[2])
    assert command == ["/opt/load-watcher/bin/python", "-m", "load_watcher.healthcheck"]


def test_the_service_in_the_image_listens_on_all_addresses_and_writes_to_the_volume(tmp_path: Path):
    environment = dict(pair.split("=", 1) for pair in shlex.split(dict(final_stage())["ENV"]))
    assert load(flags={}, environ=environment, cwd=tmp_path)[ServerSettings].host == "::"  # with IPv4
    (tmp_path / "load-watcher.toml").write_text('[server]\nhost = "10.0.0.1"')
    assert load(flags={}, environ=environment, cwd=tmp_path)[ServerSettings].host == "10.0.0.1"
    assert json.loads(dict(final_stage())["VOLUME"]) == [dict(final_stage())["WORKDIR"]] == ["/data"]
    # relative to it; a variable would take precedence over a mounted file
    assert StoreSettings().url == "sqlite:///load-watcher.db"
    assert "LOAD_WATCHER_STORE_URL" not in environment


def test_the_build_context_has_only_the_files_of_the_wheel():
    lines = (REPOSITORY / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert allowed == {
        "pyproject.toml",
        "hatch_build.py",
        "LICENSE",
        "NOTICE",
        "README.md",
        "load_watcher",
        "lab",
        "watcher",
        "scorers",
        "agent",
        "migrations",
        "deploy/image/*.lock",
        "deploy/image/agent.excludes",
    }


# The recording rules


@pytest.mark.real
def test_promtool_accepts_the_configuration_and_the_rules(tmp_path: Path):
    # `check config` reads rule_files, so it also finds a rules file with a wrong name.
    mounted = [volume.split(":")[:2] for volume in SERVICES["prometheus"]["volumes"] if volume.startswith("./")]
    for source, place in mounted:
        (tmp_path / Path(place).name).symlink_to(REPOSITORY / source)
    checked = run_program("promtool", "check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout
    assert "7 rules found" in checked.stdout


@pytest.mark.real
def test_the_rules_give_the_load_of_node_exporters(prometheus: Prometheus):
    now = time.time()
    fleet = make_fleet(3, start=now - 960, end=now - 7, seed=3)
    # Counters well above zero: if a counter may have begun within the range, rate extrapolates less.
    fleet.receive_drop += 1.0
    fleet.transmit_drop += 2.0
    prometheus.write(node_exporter_series(fleet))
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules = {rule["record"]: rule["expr"] for rule in group["rules"]}

    def rate(name: str) -> list[float]:
        rows = {row["metric"]["instance"]: row for row in prometheus.query(rules.pop(name), time=fleet.times[-1] + 1)}
        return [float(rows[node]["value"][1]) for node in fleet.nodes]

    # Samples 15 s apart that end 1 s before the query: 3 minutes hold 11 steps, 5 minutes 19.
    three, five = np.s_[:, -11:], np.s_[:, -19:]
    lo = 1000.0
    expected = {
        "instance:node_cpu:ratio": fleet.cpu[five].mean(axis=1),
        "instance:node_network_receive_bytes:rate:sum": fleet.receive[three].mean(axis=1) + lo,
        "instance:node_network_transmit_bytes:rate:sum": fleet.transmit[three].mean(axis=1) + lo,
        "instance:node_network_receive_drop_excluding_lo:rate5m": fleet.receive_drop[five].mean(axis=1),
        "instance:node_network_transmit_drop_excluding_lo:rate5m": fleet.transmit_drop[five].mean(axis=1),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(rate(name), values, rtol=1e-6, err_msg=name)
    np.testing.assert_allclose(rate("instance:node_memory_utilisation:ratio"), fleet.memory[:, -1], rtol=1e-6)
    disks = prometheus.query(rules.pop("instance_device:node_disk_io_time_seconds:rate5m"), time=fleet.times[-1] + 1)
    assert len(fleet.nodes) * len(DISKS) == len(disks)
    assert not rules, f"no test for {', '.join(rules)}"


@pytest.mark.real
def test_the_memory_of_a_node_without_available_is_computed_from_its_parts(prometheus: Prometheus):
    now = time.time() - 1
    parts = {"Buffers": 1.0, "Cached": 2.0, "MemFree": 3.0, "Slab": 4.0, "MemTotal": 40.0}
    prometheus.write(
        [
            ({"__name__": f"node_memory_{name}_bytes", **by_instance("old")}, [now], [gibibytes * 2.0**30])
            for name, gibibytes in parts.items()
        ]
    )
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    (rule,) = (rule for rule in group["rules"] if rule["record"] == "instance:node_memory_utilisation:ratio")
    (row,) = prometheus.query(rule["expr"])
    assert 0.75 == float(row["value"][1])
