"""Settings of the node agent (the table [agent] of load-watcher.toml), with type, default and description of each."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

from agent.decision.eviction_limits import EvictionLimits
from agent.executor.executor import OnExit
from agent.metrics.action_metric import ActionMetric
from agent.metrics.options import DecisionOptions
from agent.metrics.sorters import CHAINS
from agent.metrics.trigger_only import ActsOn, triggering
from agent.service.node_settings import (
    CGROUP_DRIVER,
    CGROUP_NEST,
    KUBELET_INSECURE,
    METRICS_HOST,
    METRICS_PORT,
    NODE,
    PORT,
    NodeTable,
    nest_problems,
)
from watcher.platform.net.listening import host_port
from watcher.platform.net.loopback import is_loopback
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.field_metadata import SettingsTable, described, setting
from watcher.platform.settings.problems import Problem
from watcher.platform.settings.section_reader import read_table

SECTION = "agent"
MODES = ("preview", "enforce")
KUBELET, API = POD_SOURCES = ("kubelet", "api")
KUBELET_PORT = 10250
FEW = values.integer(lowest=0, highest=1000)
INTERVAL = quantities.duration(lowest=0.2, highest=3600)
KEY = values.NAME


@dataclass(frozen=True, repr=False, kw_only=True)
class Query(SettingsTable):
    """One table [agent.queries.NAME]: a metric from a PromQL expression."""

    expression: str = setting(
        "",
        values.TEXT,
        "PromQL expression of the metric; $node is replaced by the node's name.",
        example="'max(ingress_latency_p99{node=\"$node\"})'",
    )
    acts_on: str = setting(
        "anything",
        values.choice(("cpu", "memory", "anything")),
        "Which pod order to use for the metric: that of CPU, of memory, or the general one (anything).",
    )
    throttleable: bool = setting(False, values.BOOLEAN, "Whether rules on the metric may lower the CPU quota of pods.")
    evictable: bool = setting(True, values.BOOLEAN, "Whether rules on the metric may evict pods.")

    def metric(self, name: str) -> ActionMetric:
        """The metric for the registry: it triggers rules and is never quantified."""
        return triggering(
            name,
            CHAINS,
            acts_on=cast(ActsOn, self.acts_on),
            throttleable=self.throttleable,
            evictable=self.evictable,
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class AgentSettings(NodeTable):
    """The table [agent]; durations are in seconds."""

    removed: ClassVar[Mapping[str, str]] = {
        "order": "remove it: pods are ordered by QoS class before priority, as with qos-first"
    }

    mode: str = setting(
        "preview", values.choice(MODES), "preview plans and reports without any change; enforce carries the plans out."
    )
    node: str | None = described(None, NODE)
    host: str = setting("127.0.0.1", values.NAME, "Address that the HTTP API listens on.")
    port: int = described(2021, PORT)
    token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token that /explain, /audit and /pods require; mandatory unless host is a loopback "
        "address.",
        example='"/etc/load-watcher/token"',
    )
    metrics_host: str | None = described(None, METRICS_HOST)
    metrics_port: int = described(2023, METRICS_PORT)
    policies: Path | None = setting(
        None,
        values.PATH,
        "Directory with policies. Default: policies are read from the Kubernetes API.",
        example='"/etc/load-watcher/policies"',
    )
    kubernetes: bool | None = setting(
        None,
        values.BOOLEAN,
        "Whether to use the Kubernetes API; without it, the agent does not evict pods or taint the node. Default: "
        "true in a cluster or with a kubeconfig.",
        example="true",
    )
    interval: float = setting(
        10.0,
        INTERVAL,
        "Interval between cycles. Below 3s, waiting for an unresponsive Kubernetes API prevents the agent from acting.",
    )
    state_file: Path = setting(
        Path("load-watcher-agent.db"),
        values.PATH,
        "The audit file, with original quotas and audit entries. Must be on storage that outlives the process.",
    )
    on_exit: str = setting(
        OnExit.KEEP.value,
        values.choice(each.value for each in OnExit),
        "At a regular shutdown, whether to keep lowered quotas and the taint, or to restore them.",
    )
    excess: float = setting(
        0.10, values.SHARE, "Fraction of the gap by which releases are enlarged and restores are reduced."
    )
    settle: float = setting(
        30.0, quantities.duration(), "Time for throttling to take effect before pods are evicted for the same resource."
    )
    effect: float = setting(30.0, quantities.duration(), "Maximum time until a new quota shows in the usage.")
    grace_slack: float = setting(
        30.0, quantities.duration(), "Time beyond its grace period that an evicted pod may take to end."
    )
    evict_daemons: bool = setting(
        False, values.BOOLEAN, "Whether to evict pods of DaemonSets too; they are recreated immediately."
    )
    evict_unmanaged: bool = setting(
        False, values.BOOLEAN, "Whether to evict pods without a controller too; nothing recreates them."
    )
    eviction_window: float = setting(
        600.0,
        quantities.duration(lowest=1),
        "Time window of the limits evictions_per_node, evictions_per_namespace and evictions_per_owner.",
    )
    evictions_per_node: int = setting(6, FEW, "Maximum number of evictions on this node within eviction_window.")
    evictions_per_namespace: int = setting(
        3, FEW, "Maximum number of evictions on this node per namespace within eviction_window."
    )
    evictions_per_owner: int = setting(
        1, FEW, "Maximum number of evictions on this node per controller within eviction_window."
    )
    control: str = setting(
        "load-watcher-agent/agent-control",
        KEY,
        "NAMESPACE/NAME of the ConfigMap that stops the agents and holds the cluster's eviction budget.",
    )
    beside_others: bool = setting(
        False,
        values.BOOLEAN,
        "Whether to enforce although a koordlet, a crane-agent or another load-watcher agent manages the same "
        "control groups.",
    )
    pods: str | None = setting(
        None,
        values.choice(POD_SOURCES),
        "Source of this node's pods: its kubelet, or the Kubernetes API, with one watch per agent. Default: "
        "kubelet if its address is known, otherwise api.",
        example='"kubelet"',
    )
    kubelet: str | None = setting(
        None,
        addresses.ADDRESS,
        "Address of the kubelet. Default: port 10250 at the address in the environment variable HOST_IP, which the "
        "DaemonSet sets.",
        example='"https://10.0.0.7:10250"',
    )
    kubelet_name: str | None = setting(
        None,
        values.NAME,
        "Name in the kubelet's certificate. Default: the host of its address. A self-signed certificate has the "
        "name of the node.",
        example='"node-1"',
    )
    kubelet_token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token for the kubelet. Default: that of the pod's service account, for an https address.",
        example='"/etc/load-watcher/kubelet-token"',
    )
    kubelet_ca_file: Path | None = setting(
        None,
        values.PATH,
        "File with the CA certificate that signed the kubelet's certificate. Default: that of the pod's service "
        "account.",
        example='"/var/lib/kubelet/pki/kubelet.crt"',
    )
    kubelet_insecure: bool = described(False, KUBELET_INSECURE)
    watcher: str | None = setting(
        None,
        addresses.ADDRESS,
        "Address of the load-watcher service, whose windows for this node become metrics (named window_*).",
        example='"http://load-watcher.load-watcher:2020"',
    )
    watcher_token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token for the load-watcher service, if that protects reads.",
        example='"/etc/load-watcher/token"',
    )
    prometheus: str | None = setting(
        None,
        addresses.ADDRESS,
        "Address of the Prometheus server that evaluates [agent.queries.NAME].",
        example='"http://prometheus.monitoring:9090"',
    )
    prometheus_token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token for the Prometheus server.",
        example='"/etc/load-watcher/prometheus-token"',
    )
    proc: Path = setting(Path("/proc"), values.PATH, "Path of the host's /proc.")
    cgroup: Path = setting(Path("/sys/fs/cgroup"), values.PATH, "Path of the host's control groups.")
    cgroup_driver: str | None = described(None, CGROUP_DRIVER)
    cgroup_nest: str | None = described(None, CGROUP_NEST)
    interfaces: tuple[str, ...] = setting(
        (),
        values.list_of(values.NAME, called="names of interfaces"),
        "Network interfaces that are measured; empty: those of the default routes.",
    )
    run_queues: bool = setting(
        False, values.BOOLEAN, "Whether to measure how long the tasks of each container wait for a CPU."
    )
    audit_to_stdout: bool = setting(
        False, values.BOOLEAN, "Whether to print audit entries to standard output too, as one JSON object per line."
    )

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

    def options(self) -> DecisionOptions:
        """Options of the analyzer and planner."""
        return DecisionOptions(
            excess=self.excess,
            settle_seconds=self.settle,
            effect_seconds=self.effect,
            grace_slack_seconds=self.grace_slack,
            evict_daemons=self.evict_daemons,
            evict_unmanaged=self.evict_unmanaged,
        )

    def limits(self) -> EvictionLimits:
        """Eviction limits of this node."""
        return EvictionLimits(
            window=self.eviction_window,
            node=self.evictions_per_node,
            namespace=self.evictions_per_namespace,
            owner=self.evictions_per_owner,
        )


def read_settings(given: Mapping[str, Any], *, cwd: Path) -> tuple[AgentSettings, list[Problem]]:
    """Read the table [agent]; returns the settings and all problems. Relative paths are relative to `cwd`."""
    plain = {name: value for name, value in given.items() if name != "queries"}
    settings, problems = read_table(AgentSettings, plain, section=SECTION, cwd=cwd)
    queries, wrong = _read_queries(given.get("queries", {}), cwd=cwd)
    settings, problems = replace(settings, queries=queries), [*problems, *wrong]
    if queries and settings.prometheus is None:
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


def _read_queries(given: Any, *, cwd: Path) -> tuple[dict[str, Query], list[Problem]]:
    """Read [agent.queries.NAME]; returns the queries by metric name, and all problems."""
    cure = 'for example [agent.queries.ingress_p99] with expression = "…"'
    if not isinstance(given, Mapping):
        return {}, [Problem("agent.queries", "must contain one table per metric", cure)]
    queries: dict[str, Query] = {}
    problems: list[Problem] = []
    for name, table in given.items():
        section = f"agent.queries.{name}"
        if not isinstance(table, Mapping):
            problems.append(Problem(section, "must be a table", cure))
            continue
        query, wrong = read_table(Query, table, section=section, cwd=cwd)
        problems += wrong
        if not query.expression and not wrong:
            problems.append(Problem(f"{section}.expression", "is missing", cure))
        queries[name] = query
    return queries, problems


def validate(given: Mapping[str, Any]) -> list[Problem]:
    """All problems of the table [agent], for `config check` and the other commands."""
    return read_settings(given, cwd=Path.cwd())[1]
