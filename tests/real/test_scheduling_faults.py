"""The real kube-scheduler with the shipped configuration of the extender: each pod is bound, for any failure of the
extender. A pod waits for at most one timeout of the extender, and is not scheduled again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import Authority
from tests.conftest import RunService
from tests.real.kube import ApiServer
from tests.real.scheduled_cluster import (
    SETTINGS,
    ExtendedScheduler,
    NodeLoad,
    add_nodes,
    add_pods,
    bindings,
    clear,
    decision_about,
    mixed_nodes,
    wait_until_bound,
    wait_until_loaded,
    write_trace,
)
from tests.service import Service, TlsService

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

PROFILE = """
[scheduler.default]
plugins = [
  {{ name = "TargetLoadPacking" }},
  {{ name = "HighLoadFilter", args = {{ usageThresholds = {{ cpu = 90 }} }} }},
]
{more}
"""
HOT, SILENT = 5, 2
CLOSED = """
[server]
tls_cert = "{folder}/server.crt"
tls_key = "{folder}/server.key"
tls_client_ca = "{folder}/ca.pem"
scheduler_clients = ["system:kube-scheduler"]
"""
TLS_FILES = {"cert": "server.pem", "key": "server.key", "client_ca": "ca.pem"}
BIND_METRIC = 'load_watcher_scheduler_request_duration_seconds_count{profile="default",verb="bind"}'


@pytest.fixture
def nodes(apiserver: ApiServer) -> Iterator[dict[str, NodeLoad]]:
    made = mixed_nodes(50, seed=3, hot=HOT, silent=SILENT)
    add_nodes(apiserver, made)
    yield made
    clear(apiserver)


@pytest.fixture
def arguments(apiserver: ApiServer, nodes: dict[str, NodeLoad], tmp_path: Path) -> dict[str, Any]:
    """The arguments of a service that knows the nodes."""
    trace = write_trace(tmp_path / "trace.csv", nodes)
    kubeconfig = apiserver.kubeconfig(tmp_path / "kubeconfig")
    config = SETTINGS.format(kubeconfig=kubeconfig) + PROFILE.format(more="")
    return {"arguments": ("--provider", "replay", "--trace", str(trace)), "config": config}


@pytest.fixture
def service(run_service: RunService, arguments: dict[str, Any], nodes: dict[str, NodeLoad]) -> Service:
    made = run_service(*arguments["arguments"], config=arguments["config"])
    wait_until_loaded(made, nodes, profile="default")
    return made


def avoided(nodes: dict[str, NodeLoad]) -> set[str]:
    """The nodes on which no pod with scores of the extender is placed."""
    names = list(nodes)
    return {*names[:HOT], *names[len(names) - SILENT :]}


def named(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{i}" for i in range(count)]


def test_a_stopped_extender_delays_pods_and_loses_none(
    apiserver: ApiServer, service: Service, nodes: dict[str, NodeLoad], tmp_path: Path
):
    """200 pods, 20 of them while the process of the extender is stopped (SIGSTOP)."""
    before, during, after = named("before", 90), named("during", 20), named("after", 90)
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service) as scheduler:
        add_pods(apiserver, before)
        wait_until_bound(apiserver, before)
        service.pause()
        try:
            add_pods(apiserver, during)
            wait_until_bound(apiserver, during)
        finally:
            service.resume()
        add_pods(apiserver, after)
        placed = wait_until_bound(apiserver, after)
        failed, attempts = scheduler.failed_prioritize(), scheduler.attempts()
    assert len(placed) == 200
    assert set(during) <= failed
    assert {attempts[name] for name in placed} == {1}
    scored = {name: node for name, node in placed.items() if name not in failed}
    assert set(scored) & set(before)
    assert set(scored) & set(after)
    assert not avoided(nodes) & set(scored.values())


def test_a_killed_extender_loses_no_pod(
    apiserver: ApiServer, service: Service, nodes: dict[str, NodeLoad], tmp_path: Path
):
    """Later pods are placed by requests only."""
    before, after = named("before", 30), named("after", 60)
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service) as scheduler:
        add_pods(apiserver, before)
        wait_until_bound(apiserver, before)
        service.kill()
        add_pods(apiserver, after)
        placed = wait_until_bound(apiserver, after)
        failed, attempts = scheduler.failed_prioritize(), scheduler.attempts()
    assert set(after) <= failed
    assert {attempts[name] for name in placed} == {1}
    assert not avoided(nodes) & {placed[name] for name in before if name not in failed}


def test_a_filter_that_fails_is_skipped(
    apiserver: ApiServer, service: Service, nodes: dict[str, NodeLoad], tmp_path: Path
):
    """`ignorable: true` in the shipped configuration."""
    before, after = named("before", 10), named("after", 10)
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service, filterVerb="filter") as scheduler:
        add_pods(apiserver, before)
        wait_until_bound(apiserver, before)
        service.kill()
        add_pods(apiserver, after)
        placed = wait_until_bound(apiserver, after)
        text, attempts = scheduler.log(), scheduler.attempts()
    assert "Skipping extender as it returned error and has ignorable flag set" in text
    assert {attempts[name] for name in placed} == {1}


def test_the_extender_binds_over_https_with_a_client_certificate(
    apiserver: ApiServer,
    arguments: dict[str, Any],
    certificates: Path,
    nodes: dict[str, NodeLoad],
    running: Any,
    tmp_path: Path,
):
    """Without the extender, kube-scheduler binds."""
    tls = "".join(f'tls_{name} = "{certificates / file}"\n' for name, file in TLS_FILES.items())
    profile = PROFILE.format(more="bind = true")
    config = f"[server]\n{tls}" + SETTINGS.format(kubeconfig=tmp_path / "kubeconfig") + profile
    service = TlsService(tmp_path / "service", *arguments["arguments"], folder=certificates, config=config)
    running(service)
    service.start()
    wait_until_loaded(service, nodes, profile="default")
    extender = {
        "filterVerb": "filter",
        "bindVerb": "bind",
        "enableHTTPS": True,
        "tlsConfig": {
            "caFile": str(certificates / "ca.pem"),
            "certFile": str(certificates / "client.pem"),
            "keyFile": str(certificates / "client.key"),
        },
        "httpTimeout": "10s",
    }
    before, after = named("before", 40), named("after", 10)
    with ExtendedScheduler(tmp_path / "scheduler", apiserver, service, **extender) as scheduler:
        add_pods(apiserver, before)
        placed = wait_until_bound(apiserver, before)
        assert decision_about(service, before[-1])["outcome"]["node"] == placed[before[-1]]
        bound = [line for line in service.get("/metrics").text.splitlines() if BIND_METRIC in line]
        service.kill()
        add_pods(apiserver, after)
        wait_until_bound(apiserver, after)
        text = scheduler.log()
    assert [float(line.split()[-1]) for line in bound] == [len(before)]
    assert not avoided(nodes) & set(placed.values())
    assert "Skipping extender in bind as it returned error and has ignorable flag set" in text
    assert len(bindings(apiserver)) == 50


def test_a_scheduler_without_its_certificate_gets_no_scores(
    apiserver: ApiServer, arguments: dict[str, Any], nodes: dict[str, NodeLoad], running: Any, tmp_path: Path
) -> None:
    """server.scheduler_clients: with another name, the pods are placed as if the extender were absent."""
    authority = Authority("clients")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    authority.issue("127.0.0.1").write(tmp_path, "server")
    config = {"enableHTTPS": True, "httpTimeout": "10s"}
    tls = {}
    for name, subject in (("own", "system:kube-scheduler"), ("other", "system:node:kn-00")):
        certificate, key = map(str, authority.issue(subject=subject).write(tmp_path, name))
        tls[name] = {"caFile": str(tmp_path / "ca.pem"), "certFile": certificate, "keyFile": key}
    for end in ("crt", "key"):  # with the names of TlsService
        (tmp_path / f"client.{end.replace('crt', 'pem')}").write_bytes((tmp_path / f"own.{end}").read_bytes())
    service = TlsService(
        tmp_path / "service",
        *arguments["arguments"],
        folder=tmp_path,
        config=CLOSED.format(folder=tmp_path) + arguments["config"],
    )
    running(service)
    service.start()
    wait_until_loaded(service, nodes, profile="default")
    scored, refused = named("scored", 10), named("refused", 10)
    with ExtendedScheduler(tmp_path / "first", apiserver, service, tlsConfig=tls["own"], **config) as scheduler:
        add_pods(apiserver, scored)
        placed = wait_until_bound(apiserver, scored)
        assert not scheduler.failed_prioritize()
    assert not avoided(nodes) & {placed[name] for name in scored}
    with ExtendedScheduler(tmp_path / "second", apiserver, service, tlsConfig=tls["other"], **config) as scheduler:
        add_pods(apiserver, refused)
        wait_until_bound(apiserver, refused)
        assert set(refused) == scheduler.failed_prioritize()
        assert "code 403" in scheduler.log()
