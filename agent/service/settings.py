"""Settings of the node agent (the table [agent] of load-watcher.toml), with type, default and description of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from agent.cgroups.paths import Driver
from agent.decision.eviction_limits import EvictionLimits
from agent.executor.executor import OnExit
from agent.metrics.action_metric import ActionMetric
from agent.metrics.options import DecisionOptions
from agent.metrics.trigger_only import ActsOn, triggering
from agent.service.node_settings import (
    CGROUP_DRIVER,
    CGROUP_NEST,
    METRICS_HOST,
    NODE,
    PORT,
    NodeTable,
    nest_problems,
)
from watcher.core.config import addresses, quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.problems import Problem
from watcher.core.config.section_reader import read_table
from watcher.platform.net.listening import host_port
from watcher.platform.net.loopback import is_loopback

SECTION = "agent"
MODES = ("preview", "enforce")
KUBELET, API = POD_SOURCES = ("kubelet", "api")
KUBELET_PORT = 10250
INTERVAL = quantities.duration(lowest=0.2, highest=3600)
KEY = values.NAME


@dataclass(frozen=True, repr=False, kw_only=True)
class Query(SettingsTable):
    """One table [agent.queries.NAME]: a metric from a PromQL expression."""

    expression: Annotated[str, values.TEXT.like("'max(ingress_latency_p99{node=\"$node\"})'")]
    """PromQL expression of the metric; $node is replaced by the node's name."""
    acts_on: Annotated[str, values.choice(("cpu", "memory", "anything"))] = "anything"
    """Which pod order to use for the metric: that of CPU, of memory, or the general one (anything)."""
    throttleable: Annotated[bool, values.BOOLEAN] = False
    """Whether rules on the metric may lower the CPU quota of pods."""
    evictable: Annotated[bool, values.BOOLEAN] = True
    """Whether rules on the metric may evict pods."""

    def metric(self, name: str) -> ActionMetric:
        """The metric for the registry: it triggers rules and is never quantified."""
        return triggering(
            name,
            acts_on=cast(ActsOn, self.acts_on),
            throttleable=self.throttleable,
            evictable=self.evictable,
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class AgentProcessSettings(NodeTable):
    """Part of [agent]: mode, listeners, sources of policies, and the cycle of the process."""

    mode: Annotated[str, values.choice(MODES)] = "preview"
    """preview plans and reports without any change; enforce carries the plans out."""
    node: Annotated[str | None, NODE] = None
    """Name of this node in Kubernetes. Default: the environment variable NODE_NAME, otherwise the host name."""
    host: Annotated[str, values.NAME] = "127.0.0.1"
    """Address that the HTTP API listens on."""
    port: Annotated[int, PORT] = 2021
    """TCP port that the HTTP API listens on; 0 selects a free port."""
    token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/token"')] = None
    """File with the bearer token that /explain, /audit and /pods require; mandatory unless host is a loopback
    address."""
    metrics_host: Annotated[str | None, METRICS_HOST] = None
    """Address of a second listener, for example the pod's, for /metrics and /healthz; with token_file, for all
    pages."""
    metrics_port: Annotated[int, PORT] = 2023
    """TCP port of the second listener (metrics_host); 0 selects a free port."""
    policies: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/policies"')] = None
    """Directory with policies. Default: policies are read from the Kubernetes API."""
    kubernetes: Annotated[bool | None, values.BOOLEAN.like("true")] = None
    """Whether to use the Kubernetes API; without it, the agent does not evict pods or taint the node. Default: true in
    a cluster or with a kubeconfig."""
    interval: Annotated[float, INTERVAL] = 10.0
    """Interval between cycles. Below 3s, waiting for an unresponsive Kubernetes API prevents the agent from acting."""
    state_file: Annotated[Path, values.PATH] = Path("load-watcher-agent.db")
    """The audit file, with original quotas and audit entries. Must be on storage that outlives the process."""
    on_exit: Annotated[OnExit, values.choice(OnExit)] = OnExit.KEEP
    """At a regular shutdown, whether to keep lowered quotas and the taint, or to restore them."""


@dataclass(frozen=True, repr=False, kw_only=True)
class AgentSettings(EvictionLimits, DecisionOptions, AgentProcessSettings):
    """The table [agent]; durations are in seconds. The settings of its parts come before its own."""

    removed: ClassVar[Mapping[str, str]] = {
        "order": "remove it: pods are ordered by QoS class before priority, as with qos-first"
    }

    control: Annotated[str, KEY] = "load-watcher-agent/agent-control"
    """NAMESPACE/NAME of the ConfigMap that stops the agents and holds the cluster's eviction budget."""
    beside_others: Annotated[bool, values.BOOLEAN] = False
    """Whether to enforce although a koordlet, a crane-agent or another load-watcher agent manages the same control
    groups."""
    pods: Annotated[str | None, values.choice(POD_SOURCES).like('"kubelet"')] = None
    """Source of this node's pods: its kubelet, or the Kubernetes API, with one watch per agent. Default: kubelet if its
    address is known, otherwise api."""
    kubelet: Annotated[str | None, addresses.ADDRESS.like('"https://10.0.0.7:10250"')] = None
    """Address of the kubelet. Default: port 10250 at the address in the environment variable HOST_IP, which the
    DaemonSet sets."""
    kubelet_name: Annotated[str | None, values.NAME.like('"node-1"')] = None
    """Name in the kubelet's certificate. Default: the host of its address. A self-signed certificate has the name of
    the node."""
    kubelet_token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/kubelet-token"')] = None
    """File with the bearer token for the kubelet. Default: that of the pod's service account, for an https address."""
    kubelet_ca_file: Annotated[Path | None, values.PATH.like('"/var/lib/kubelet/pki/kubelet.crt"')] = None
    """File with the CA certificate that signed the kubelet's certificate. Default: that of the pod's service
    account."""
    kubelet_insecure: Annotated[bool, values.BOOLEAN] = False
    """Whether to skip verification of the kubelet's certificate."""
    watcher: Annotated[str | None, addresses.ADDRESS.like('"http://load-watcher.load-watcher:2020"')] = None
    """Address of the load-watcher service, whose windows for this node become metrics (named window_*)."""
    watcher_token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/token"')] = None
    """File with the bearer token for the load-watcher service, if that protects reads."""
    prometheus: Annotated[str | None, addresses.ADDRESS.like('"http://prometheus.monitoring:9090"')] = None
    """Address of the Prometheus server that evaluates [agent.queries.NAME]."""
    prometheus_token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/prometheus-token"')] = None
    """File with the bearer token for the Prometheus server."""
    proc: Annotated[Path, values.PATH] = Path("/proc")
    """Path of the host's /proc."""
    cgroup: Annotated[Path, values.PATH] = Path("/sys/fs/cgroup")
    """Path of the host's control groups."""
    cgroup_driver: Annotated[Driver | None, CGROUP_DRIVER] = None
    """Cgroup driver of the kubelet. Default: detected."""
    cgroup_nest: Annotated[str | None, CGROUP_NEST] = None
    """Parent of the kubelet's control groups (its cgroupRoot, without slashes). Default: detected automatically (none,
    or kubelet in a kind cluster)."""
    interfaces: Annotated[tuple[str, ...], values.list_of(values.NAME, called="names of interfaces")] = ()
    """Network interfaces that are measured; empty: those of the default routes."""
    run_queues: Annotated[bool, values.BOOLEAN] = False
    """Whether to measure how long the tasks of each container wait for a CPU."""
    audit_to_stdout: Annotated[bool, values.BOOLEAN] = False
    """Whether to print audit entries to standard output too, as one JSON object per line."""

    queries: Mapping[str, Query] = field(default_factory=dict)
    """User-defined metrics by name, from [agent.queries.NAME]."""

    def kubelet_address(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Address of the kubelet that lists the pods: the setting, otherwise from HOST_IP; None if the API lists them,
        or if the address is unknown."""
        if self.pods == API:
            return None
        host = environ.get("HOST_IP", "")
        default = f"https://{host_port(host, KUBELET_PORT)}" if host else None
        return self.kubelet or default


def read_settings(given: Mapping[str, Any], *, cwd: Path) -> tuple[AgentSettings, list[Problem]]:
    """Read the table [agent]; returns the settings and all problems. Relative paths are relative to `cwd`."""
    settings, problems = read_table(AgentSettings, given, section=SECTION, cwd=cwd)
    if settings.queries and settings.prometheus is None:
        cure = 'for example agent.prometheus = "http://prometheus.monitoring:9090"'
        problems.append(Problem("agent.prometheus", "must be set, because agent.queries need a Prometheus", cure))
    problems += nest_problems(settings.cgroup_nest, section=SECTION)
    if settings.control.count("/") != 1:
        cure = 'for example agent.control = "load-watcher-agent/agent-control"'
        problems.append(Problem("agent.control", "must have the form NAMESPACE/NAME", cure))
    if not is_loopback(settings.host) and settings.token_file is None:
        message = f"must be set, because other hosts can read pod data at {settings.host} without a token"
        problems.append(Problem("agent.token_file", message, "set agent.token_file, or agent.host to 127.0.0.1"))
    cures = {
        "token_file": "create it with a random secret as its only line",
        "watcher_token_file": "create it with the watcher's token",
        "prometheus_token_file": "create it with the Prometheus token",
    }
    for name, cure in cures.items():
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            problems.append(Problem(f"agent.{name}", f"file {path} does not exist", cure))
    return settings, problems


def validate(given: Mapping[str, Any]) -> list[Problem]:
    """All problems of the table [agent], for `config check` and the other commands."""
    return read_settings(given, cwd=Path.cwd())[1]
