"""The settings of the node agent, [agent] of load-watcher.toml: each with its kind, default and meaning."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from agent.decision.eviction_limits import Limits
from agent.executor.permissions import OnExit
from agent.metrics.action_metric import Metric
from agent.metrics.options import Options, Order
from agent.metrics.sorters import CHAINS
from agent.metrics.trigger_only import ActsOn, triggering
from agent.service.node_settings import (
    CGROUP_DRIVER,
    CGROUP_NEST,
    KUBELET_CA,
    KUBELET_INSECURE,
    KUBELET_TOKEN,
    METRICS_HOST,
    METRICS_PORT,
    NODE,
    PORT,
    NodeTable,
    nest_problems,
)
from watcher.platform.net.loopback import is_loopback
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.declaring import Table, about, settings_fields
from watcher.platform.settings.problems import Problem
from watcher.platform.settings.reference import documented
from watcher.platform.settings.section_reader import read_table
from watcher.platform.settings.tables import Key

SECTION = "agent"
MODES = ("preview", "enforce")
FEW = values.whole(lowest=0, highest=1000)
INTERVAL = quantities.duration(lowest=0.2, highest=3600)
KEY = values.NAME


@dataclass(frozen=True, repr=False, kw_only=True)
class Query(Table):
    """[agent.queries.NAME]"""

    expression: str = field(
        default="",
        metadata=about(
            values.TEXT, "PromQL; $node is this node's name.", example="'max(ingress_latency_p99{node=\"$node\"})'"
        ),
    )
    acts_on: str = field(
        default="anything",
        metadata=about(values.choice(("cpu", "memory", "anything")), "In whose order pods are hit for it."),
    )
    throttleable: bool = field(
        default=False, metadata=about(values.BOOLEAN, "Whether lowering the CPU quota of pods helps against it.")
    )
    evictable: bool = field(default=True, metadata=about(values.BOOLEAN, "Whether evicting pods helps against it."))

    def metric(self, name: str, order: Order) -> Metric:
        """As the registry has it: it triggers, and is never quantified."""
        chains = CHAINS[order]
        return triggering(
            name,
            chains,
            acts_on=cast(ActsOn, self.acts_on),
            throttleable=self.throttleable,
            evictable=self.evictable,
        )


@dataclass(frozen=True, repr=False, kw_only=True)
class AgentSettings(NodeTable):
    """[agent]"""

    mode: str = field(
        default="preview",
        metadata=about(values.choice(MODES), "preview decides and reports, and changes nothing; enforce acts."),
    )
    node: str | None = field(default=None, metadata=NODE)
    host: str = field(default="127.0.0.1", metadata=about(values.NAME, "Address that the agent's API listens on."))
    port: int = field(default=2021, metadata=PORT)
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "File with the bearer token that /explain and /audit need; a must for whoever is not on this machine.",
            example='"/etc/load-watcher/token"',
        ),
    )
    metrics_host: str | None = field(default=None, metadata=METRICS_HOST)
    metrics_port: int = field(default=2023, metadata=METRICS_PORT)
    policies: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Directory of policies; else they are read from the Kubernetes API.",
            example='"/etc/load-watcher/policies"',
        ),
    )
    kubernetes: bool | None = field(
        default=None,
        metadata=about(
            values.BOOLEAN,
            "Whether there is a Kubernetes API; without it nothing is evicted or tainted. Else found out: there is one "
            "in a cluster, and with a kubeconfig.",
            example="true",
        ),
    )
    interval: float = field(
        default=10.0,
        metadata=about(INTERVAL, "How often the node is looked at. Below 3s an API that hangs keeps it from acting."),
    )
    state_file: Path = field(
        default=Path("load-watcher-agent.db"),
        metadata=about(values.PATH, "The agent's own file: original quotas and the audit. Must outlive the process."),
    )
    on_exit: str = field(
        default=OnExit.KEEP.value,
        metadata=about(
            values.choice(each.value for each in OnExit),
            "Whether quotas and taint stay when the agent ends in good order, or are restored.",
        ),
    )
    excess: float = field(
        default=0.10, metadata=about(values.SHARE, "Share by which more is released than the gap, and less restored.")
    )
    order: str = field(
        default=Order.SEED.value,
        metadata=about(values.choice(each.value for each in Order), "Whose order of pods: the document's, upstream's."),
    )
    settle: float = field(
        default=30.0,
        metadata=about(quantities.duration(), "What throttling gets to show before anybody is evicted for the same."),
    )
    effect: float = field(default=30.0, metadata=about(quantities.duration(), "How long a new quota may take to show."))
    grace_slack: float = field(
        default=30.0, metadata=about(quantities.duration(), "How much longer than its grace period a victim may take.")
    )
    evict_daemons: bool = field(
        default=False,
        metadata=about(values.BOOLEAN, "Whether to evict pods of DaemonSets too; they come back at once."),
    )
    eviction_window: float = field(
        default=600.0, metadata=about(quantities.duration(lowest=1), "The time for which the next three limits hold.")
    )
    evictions_per_node: int = field(default=6, metadata=about(FEW, "Evictions of this node's pods within it, at most."))
    evictions_per_namespace: int = field(default=3, metadata=about(FEW, "Of one namespace's pods on this node."))
    evictions_per_owner: int = field(default=1, metadata=about(FEW, "Of pods on this node that one controller owns."))
    control: str = field(
        default="load-watcher-agent/agent-control",
        metadata=about(KEY, "NAMESPACE/NAME of the ConfigMap with the brake and the cluster's budget of evictions."),
    )
    beside_others: bool = field(
        default=False,
        metadata=about(
            values.BOOLEAN,
            "Whether to enforce beside a koordlet, a crane-agent or another load-watcher agent on the same groups.",
        ),
    )
    kubelet: str | None = field(
        default=None,
        metadata=about(
            addresses.ADDRESS,
            "The kubelet to ask for this node's pods; else they are read from the Kubernetes API.",
            example='"https://127.0.0.1:10250"',
        ),
    )
    kubelet_token_file: Path | None = field(default=None, metadata=KUBELET_TOKEN)
    kubelet_ca_file: Path | None = field(default=None, metadata=KUBELET_CA)
    kubelet_insecure: bool = field(default=False, metadata=KUBELET_INSECURE)
    watcher: str | None = field(
        default=None,
        metadata=about(
            addresses.ADDRESS,
            "load-watcher's service, whose windows of this node are metrics too (window_cpu_avg_5m).",
            example='"http://load-watcher.load-watcher:2020"',
        ),
    )
    watcher_token_file: Path | None = field(
        default=None,
        metadata=about(values.PATH, "Token for it, if it protects reads.", example='"/etc/load-watcher/token"'),
    )
    prometheus: str | None = field(
        default=None,
        metadata=about(
            addresses.ADDRESS,
            "Prometheus that answers [agent.queries.NAME].",
            example='"http://prometheus.monitoring:9090"',
        ),
    )
    prometheus_token_file: Path | None = field(
        default=None, metadata=about(values.PATH, "Token for it.", example='"/etc/load-watcher/prometheus-token"')
    )
    proc: Path = field(default=Path("/proc"), metadata=about(values.PATH, "Where the host's /proc is."))
    cgroup: Path = field(default=Path("/sys/fs/cgroup"), metadata=about(values.PATH, "Where its control groups are."))
    cgroup_driver: str | None = field(default=None, metadata=CGROUP_DRIVER)
    cgroup_nest: str | None = field(default=None, metadata=CGROUP_NEST)
    interfaces: tuple[str, ...] = field(
        default=("eth0",),
        metadata=about(values.several(values.NAME, called="names of interfaces"), "Interfaces that are measured."),
    )
    run_queues: bool = field(
        default=False,
        metadata=about(values.BOOLEAN, "Whether to measure how long the tasks of each container wait for a CPU."),
    )
    audit_to_stdout: bool = field(
        default=False, metadata=about(values.BOOLEAN, "Whether the audit is printed too, as lines of JSON.")
    )

    queries: Mapping[str, Query] = field(default_factory=dict)
    """Metrics of the user's own, by name."""

    def options(self) -> Options:
        """How the agent decides."""
        return Options(
            excess=self.excess,
            settle_seconds=self.settle,
            effect_seconds=self.effect,
            grace_slack_seconds=self.grace_slack,
            evict_daemons=self.evict_daemons,
            order=Order(self.order),
        )

    def limits(self) -> Limits:
        """How many evictions this node may do."""
        return Limits(
            window=self.eviction_window,
            node=self.evictions_per_node,
            namespace=self.evictions_per_namespace,
            owner=self.evictions_per_owner,
        )


def read_settings(given: Mapping[str, Any], *, cwd: Path) -> tuple[AgentSettings, list[Problem]]:
    """The settings, and everything that is wrong with what was given."""
    plain = {name: value for name, value in given.items() if name != "queries"}
    settings, problems = read_table(AgentSettings, plain, section=SECTION, cwd=cwd)
    queries, wrong = _read_queries(given.get("queries", {}), cwd=cwd)
    settings, problems = replace(settings, queries=queries), [*problems, *wrong]
    if queries and settings.prometheus is None:
        cure = 'for example agent.prometheus = "http://prometheus.monitoring:9090"'
        problems.append(Problem("agent.prometheus", "nobody is named who answers agent.queries", cure))
    problems += nest_problems(settings.cgroup_nest, section=SECTION)
    if settings.control.count("/") != 1:
        cure = 'for example agent.control = "load-watcher-agent/agent-control"'
        problems.append(Problem("agent.control", "must have the form NAMESPACE/NAME", cure))
    if not is_loopback(settings.host) and settings.token_file is None:
        message = f"others can reach {settings.host}, and nothing keeps them from reading what the agent knows of pods"
        problems.append(Problem("agent.token_file", message, "set agent.token_file, or agent.host to 127.0.0.1"))
    cures = {
        "token_file": "make it, with one line in it that nobody can guess",
        "watcher_token_file": "put the watcher's token there",
        "prometheus_token_file": "put Prometheus' token there",
    }
    for name, cure in cures.items():
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            problems.append(Problem(f"agent.{name}", f"there is no file {path}", cure))
    return settings, problems


def _read_queries(given: Any, *, cwd: Path) -> tuple[dict[str, Query], list[Problem]]:
    """By the name of the metric."""
    cure = 'for example [agent.queries.ingress_p99] with expression = "…"'
    if not isinstance(given, Mapping):
        return {}, [Problem("agent.queries", "must be tables, one for each metric", cure)]
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
    """Everything that is wrong with [agent], for `config check` and every command."""
    return read_settings(given, cwd=Path.cwd())[1]


# --- documentation ---------------------------------------------------------------------------------------------------

_HEADER = """\
# Settings of the node agent

[agent] of `load-watcher.toml`, beside the tables of the [watcher](settings.md), of which `[log]`, `[kubernetes]` and
`[cluster]` count for the agent too. Each key can be given as `--set agent.KEY=VALUE` and in the environment as
`LOAD_WATCHER_AGENT_KEY`. This page is made by `python -m agent.service.settings > docs/agent-settings.md`; a test holds
it.
"""
_OWN = "The DaemonSet sets `control`, `proc`, `cgroup` and `state_file`: in its pods the host is mounted elsewhere."
_QUERIES = "Metrics of your own, from a PromQL expression that `agent.prometheus` answers; policies name them by NAME."


def documentation() -> str:
    """docs/agent-settings.md."""
    own = [Key((SECTION,), each) for each in settings_fields(AgentSettings) if each.metadata]
    queries = [Key((SECTION, "queries", "NAME"), each) for each in settings_fields(Query)]
    tables = [documented("## `[agent]`", _OWN, own), documented("## `[agent.queries.NAME]`", _QUERIES, queries)]
    return "\n".join([_HEADER, *tables])


if __name__ == "__main__":
    sys.stdout.write(documentation())
