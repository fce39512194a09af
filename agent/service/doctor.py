"""The node agent's check for `load-watcher doctor`: whether an agent runs here and works, and whether its requirements
are met: policies, pods, the Kubernetes API (rights, Node object, brake and budget), writable control groups without
another program that manages them, the watcher, and Prometheus.

The check uses the agent's own code, so the two cannot disagree. The command line passes the check to the doctor, which
does not depend on the agent.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from agent.cgroups.detection import Layout, NoCgroups, Version, pod_groups, top_of
from agent.executor.enforcement_switch import ControlMap, EnforcementSwitch
from agent.executor.other_agents import conflicting_agents
from agent.policy.schema import GROUPS
from agent.policy.source import ActivePolicies, ClusterPolicies, read_policies
from agent.service import dependencies
from agent.service.node_server import CannotRun, read_token
from agent.service.own_pages import ANSWER_S, decoded_page, get_page, page_session, page_url
from agent.service.rights import required_rights
from agent.service.settings import AgentSettings, read_settings
from agent.state.cgroup_usage import MIXED_DRIVERS
from agent.state.kubelet import KubeletError, KubeletPods
from agent.state.own_node import read_node
from watcher.core.config.settings import Settings
from watcher.core.kubernetes.errors import KubeError, KubeNotFound
from watcher.core.messages import shorten_names
from watcher.decoding.json_text import decode_json
from watcher.platform.checks.examination import CheckContext, in_thread
from watcher.platform.checks.permissions import check_permissions
from watcher.platform.checks.results import CheckResult, CheckStatus, count, fail, ok, skipped, warn
from watcher.platform.kube.client import KubeClient
from watcher.platform.net.redaction import without_credentials
from watcher.sources.errors import ProviderError

LIST_S = 10.0
"""Timeout in seconds for listing the policies from the Kubernetes API."""
LOOK_AGAIN_S = 0.05
DISABLED = "the kubelet enables it for groups it creates (--cgroups-per-qos); on cgroup v2, see cgroup.subtree_control"
CHANGED_DRIVER = (
    "the cgroup driver of the kubelet was changed while pods ran: drain the node, so that all pods are created again"
)
ROOT = "run the agent as root, with the host's /sys/fs/cgroup mounted read-write, as deploy/agent does"
ALONE = "remove one of the two from this node: they would undo each other's changes (or set agent.beside_others)"
UNSEEN = (
    "the rule takes no action until the metric is available; "
    "docs/reference/agent-state.md lists what each metric requires"
)
POD_SOURCE = 'see docs/tasks/agent-running.md#pods: the kubelet\'s address and certificate, or agent.pods = "api"'
NO_GROUP = "kubectl apply -f deploy/agent/crds.yaml, or set a directory (agent.policies)"
NONE_YET = "write policies: see docs/reference/agent-policies.md, and the samples in deploy/agent/policies"


class _ExplainResponse(msgspec.Struct):
    """The fields of GET /explain that the doctor reads."""

    node: str
    cycle: int
    policies: dict[str, Any]
    missing: dict[str, str]
    stance: str | None = None
    why: str = ""
    trouble: str = ""
    plan: dict[str, Any] | None = None


async def check_agent(examination: CheckContext) -> Sequence[CheckResult]:
    """Check a running agent, or the requirements of one, with the [agent] settings."""
    everything = examination.get(Settings)
    table = everything.parts.get("agent", {})
    if not table:
        return [skipped("these settings have no [agent] table")]
    own, _ = await in_thread(lambda: read_settings(table, cwd=examination.cwd))
    results: list[CheckResult] = []
    try:
        results += (running := await _running(own))
        if not running:
            results.append(
                skipped(f"no agent responds at {page_url(own)}; checking the requirements of mode {own.mode}")
            )
            results += await _policies(own, everything)
            results += await _pods(own)
            results += await in_thread(lambda: list(_claimed(own)))
        results += await _cluster(own, everything)
        results += await in_thread(lambda: [*_groups(own), *_rivals(own)])
        return [*results, *await _watcher(own), *await _queries(own)]
    except CannotRun as error:
        return [*results, fail(error.reason, "run load-watcher agent --once for details")]


# --- a running agent -------------------------------------------------------------------------------------------------


async def _running(own: AgentSettings) -> list[CheckResult]:
    """Check the agent at the configured address; empty if none responds there. Raises CannotRun."""
    url = page_url(own)
    try:
        async with page_session() as session:
            _, body = await get_page(session, f"{url}/healthz")
            health = decoded_page(body)
            error = health["error"] if isinstance(health.get("error"), dict) else {}
            stuck = error.get("code") == "stuck"
            if "cycle" not in health and not stuck:
                message = f"the program that responds at {url} is not a load-watcher agent"
                return [fail(message, "stop that program, or set another agent.port")]
            results = [fail(f"the agent is stuck: {error.get('message')}", "see the agent's log")] if stuck else []
            token = await in_thread(lambda: read_token(own.token_file))
            status, body = await get_page(session, f"{url}/explain", token=token)
    except (aiohttp.ClientError, OSError):
        return []
    if status == 401:
        cure = "set agent.token_file to the file with the agent's token"
        return [*results, fail(f"the agent at {url} requires its token for reading", cure)]
    try:
        return [*results, *_explained(decode_json(body, type=_ExplainResponse), own, url)]
    except (msgspec.DecodeError, KeyError):
        cure = "check that the agent and the doctor have the same version"
        return [*results, warn(f"GET /explain of the agent at {url} returned an unknown format ({status})", cure)]


def _explained(answer: _ExplainResponse, own: AgentSettings, url: str) -> Iterator[CheckResult]:
    stance = answer.stance or "waiting for policies"
    what = f"an agent runs at {url}: node {answer.node}, cycle {answer.cycle}, {stance}"
    if own.mode == "enforce" and answer.stance != "enforce":
        cure = (
            "see docs/concepts/agent-safety.md for the conditions; an agent that was started in preview needs a restart"
        )
        yield warn(f"{what}, although these settings enable enforce: {answer.why or 'it was started in preview'}", cure)
    else:
        yield ok(f"{what}{f' ({answer.why})' if answer.why else ''}")
    if answer.trouble:
        yield fail(f"the agent takes no action: {answer.trouble}", "make its audit file writable (agent.state_file)")
    there = len(answer.policies["rules"])
    yield from _judged(answer.policies["problems"], known=answer.policies["known"], there=there, what="active rules")
    if why := answer.missing.get("pods"):
        yield fail(f"the pods of the node are unknown: {why}", POD_SOURCE)
    for rule in (answer.plan or {}).get("rules", ()):
        if why := answer.missing.get(rule["metric"]):
            yield warn(f"rule {rule['rule']}: metric {rule['metric']} is missing: {why}", UNSEEN)


def _judged(problems: Sequence[str], *, known: bool, there: int, what: str) -> Iterator[CheckResult]:
    """Result for the policies; `there` is the number of rules or objects, and `what` names them."""
    if problems:
        kept = "the previous policies remain in effect" if known else "no rule is evaluated"
        cure = "load-watcher agent --check DIRECTORY finds such problems before the policies are deployed"
        yield fail(f"{count(len(problems), 'problem')} in policies, so {kept}: {shorten_names(problems)}", cure)
    elif not known:
        yield fail("no policies were read yet, so no rule is evaluated", "check that the Kubernetes API is reachable")
    elif not there:
        yield warn("there are no policies for this node, so the agent takes no action", NONE_YET)
    else:
        yield ok(f"the policies are valid ({what}: {there})")


# --- requirements of an agent ----------------------------------------------------------------------------------------


async def _policies(own: AgentSettings, everything: Settings) -> list[CheckResult]:
    """Check the configured policies, from the directory or the API. Raises CannotRun."""
    metrics = dependencies.known_metrics(dependencies.metrics_of(own))
    directory = own.policies
    if directory is not None:
        reading = await in_thread(lambda: read_policies(directory, metrics=metrics))
        found = ActivePolicies(reading.policies if reading.usable else None, reading.problems, reading.notices)
    else:
        client = dependencies.kube_client(own.kubernetes, everything)
        if client is None:
            cure = "set a directory (agent.policies), or kubernetes.kubeconfig"
            return [fail("policies cannot be read: no Kubernetes API is configured", cure)]
        source = ClusterPolicies(client, metrics=metrics)
        try:
            found = await _listed(source)
        finally:
            await client.close()
        if found.policies is not None and not source.installed():
            return [warn(f"no policies are defined in the API: {' and '.join(GROUPS)} are not installed", NO_GROUP)]
    known, there = found.policies is not None, 0 if found.policies is None else len(found.policies.objects)
    unused = [warn(str(each), each.cure) for each in found.notices if each.cure]
    return [*_judged([str(each) for each in found.problems], known=known, there=there, what="read"), *unused]


async def _listed(policies: ClusterPolicies) -> ActivePolicies:
    await policies.start()
    try:
        for _ in range(round(LIST_S / LOOK_AGAIN_S)):
            if (await policies.refresh()).policies is not None:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        return await policies.refresh()
    finally:
        await policies.close()


async def _pods(own: AgentSettings) -> list[CheckResult]:
    """Check that the kubelet lists its pods, if it is their source. Raises CannotRun."""
    access = dependencies.access_to_kubelet(own)
    if access is None:
        return []
    kubelet = KubeletPods(access)
    try:
        _, pods = await kubelet.request()
    except KubeletError as error:
        return [fail(f"the pods of the node are unknown: {error}", error.hint or POD_SOURCE)]
    finally:
        await kubelet.close()
    return [ok(f"the kubelet at {access.server} lists {count(len(pods), 'pod')}")]


async def _cluster(own: AgentSettings, everything: Settings) -> list[CheckResult]:
    """Check that the account has the rights that the settings need; if so, also what the agent reads with them."""
    client = dependencies.kube_client(own.kubernetes, everything)
    if client is None:
        return [skipped("rights are not checked: no Kubernetes API is configured (kubernetes.kubeconfig)")]
    try:
        results = await check_permissions(client, tuple(required_rights(own)))
        if all(each.status is CheckStatus.OK for each in results):
            results += await _node(client, own.node_name())
            results += await _control(client, own) if own.mode == "enforce" else []
        return results
    finally:
        await client.close()


async def _node(client: KubeClient, name: str) -> list[CheckResult]:
    try:
        await read_node(client, name)
    except KubeNotFound as error:
        return [fail(f"the Node object {name} does not exist, so NodeQOS with a selector do not apply", error.hint)]
    except KubeError as error:
        return [warn(f"the Node object {name} cannot be read: {error}", error.hint)]
    return []


async def _control(client: KubeClient, own: AgentSettings) -> list[CheckResult]:
    """Check the ConfigMap with the brake and the eviction budget."""
    control = await ControlMap(client, own.control, node=own.node_name(), patience=ANSWER_S).read()
    if control.problem:
        cure = "see deploy/agent/control.yaml, and agent.control"
        return [fail(f"the agent evicts no pod: {control.problem}", cure)]
    if control.enforcement is not EnforcementSwitch.ON:
        message = f"enforcement is {control.enforcement} in the ConfigMap {own.control}, so agents take no new action"
        return [warn(message, 'set it to "on" to let the agents act again')]
    return [ok(f"enforcement is on in the ConfigMap {own.control}, with {control.per_minute} evictions per minute")]


def _groups(own: AgentSettings) -> Iterator[CheckResult]:
    try:
        layout = own.find_layout()
        file = Path(top_of(layout), "cpu.max" if layout.version is Version.V2 else "cpu.cfs_quota_us")
    except NoCgroups as error:
        yield fail(str(error), error.hint)
        return
    if not file.exists():
        yield fail(f"the cpu controller is not enabled for the kubelet's groups: {file} does not exist", DISABLED)
    elif not os.access(file, os.W_OK):
        message = f"user {os.geteuid()} cannot write {file}, so no quota can be changed"
        yield fail(message, ROOT) if own.mode == "enforce" else warn(message, f"before enabling enforce, {ROOT}")
    else:
        yield ok(f"control groups of {layout.version} with driver {layout.driver} in {layout.root}: quotas can be set")
    yield from _drivers(own)


def _drivers(own: AgentSettings) -> Iterator[CheckResult]:
    """Check that kubelet and container runtime have one cgroup driver, and that it was not changed while pods ran."""
    found = pod_groups(str(own.cgroup), driver=own.cgroup_driver, nest=own.cgroup_nest)
    if not found:
        return
    first, *others = found
    if others:
        counts = " and ".join(f"{count(each.pods, 'pod')} of {_named_layout(each.layout)}" for each in found)
        message = f"there are control groups for {counts}: only those of {_named_layout(first.layout)} are managed"
        yield warn(message, CHANGED_DRIVER)
    if 2 * first.elsewhere >= first.pods:  # the groups of a few pods that have ended may be left
        message = (
            f"{first.elsewhere} of {count(first.pods, 'pod')} have no control group of a container below their own: "
            "their usage is unknown, and they are not throttled"
        )
        cure = MIXED_DRIVERS.format(driver=first.layout.driver)
        yield fail(message, cure) if first.elsewhere == first.pods else warn(message, cure)


def _named_layout(layout: Layout) -> str:
    return f"driver {layout.driver}{f' below {layout.nest}' if layout.nest else ''}"


def _rivals(own: AgentSettings) -> Iterator[CheckResult]:
    """Check for processes of other agents; a running load-watcher agent also detects them by their pods."""
    found = conflicting_agents(None, own.proc)
    if not found:
        yield ok("no koordlet or crane-agent process runs on this node")
        return
    message = f"the same control groups are managed by {', '.join(found)}, so the agent enforces nothing"
    yield fail(message, ALONE) if own.mode == "enforce" and not own.beside_others else warn(message, ALONE)


def _claimed(own: AgentSettings) -> Iterator[CheckResult]:
    """Check whether another enforcing agent holds the lock on the control groups."""
    claim = dependencies.cgroup_lock(own)
    try:
        if others := claim.acquire():
            message = f"{others[0]} holds the lock on the control groups, and does not respond at {page_url(own)}"
            yield warn(message, "pass its settings to the doctor (--config), or stop it")
    finally:
        claim.release()


async def _watcher(own: AgentSettings) -> list[CheckResult]:
    """Check that the watcher reports windows for this node. Raises CannotRun."""
    if own.watcher is None:
        return []
    from agent.state.remote import MAX_AGE_S, OPERATORS, WINDOWS
    from watcher.client import NodeClient, WatcherError

    where, node = without_credentials(own.watcher), own.node_name()
    token = await in_thread(lambda: read_token(own.watcher_token_file))
    client = NodeClient(own.watcher, node, windows=WINDOWS, operators=OPERATORS, token=token, timeout=ANSWER_S)
    try:
        load = await client.refresh()
    except WatcherError as error:
        cure = error.hint or "check agent.watcher, and that the watcher knows the node by this name (agent.node)"
        return [fail(f"the watcher at {where} returned no windows for {node}: {error}", cure)]
    finally:
        await client.close()
    if (age := load.age(time.monotonic())) > MAX_AGE_S:
        return [
            warn(
                f"the watcher's newest sample of {node} is {age:.0f} s old",
                "run load-watcher doctor on the watcher's host",
            )
        ]
    return [ok(f"the watcher at {where} returns windows for {node}")]


async def _queries(own: AgentSettings) -> list[CheckResult]:
    if own.prometheus is None or not own.queries:
        return []
    from agent.state.remote import PrometheusQueryClient, prometheus_connection

    questions = PrometheusQueryClient(prometheus_connection(own.prometheus, own.prometheus_token_file))
    results = []
    try:
        for name, query in own.queries.items():
            expression = query.expression.replace("$node", own.node_name())
            try:
                there = len(await questions.ask(expression))
            except ProviderError as error:
                results.append(fail(f"agent.queries.{name}: {error}", error.hint))
                continue
            cure = "try the expression in the Prometheus expression browser; $node is replaced by agent.node"
            message = f"agent.queries.{name}: {there} series"
            results.append(ok(message) if there else warn(f"{message}, so the metric is missing for its rules", cure))
    finally:
        await questions.close()
    return results
