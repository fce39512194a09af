"""What `load-watcher doctor` says of the node agent: whether one runs here and how it fares, and whether it would find
here what it needs: policies, control groups that it may write, nobody else who does, the watcher and Prometheus that it
asks.

Nothing here knows better than the agent does: its own code looks, so the two cannot disagree. The command line hands
this to the doctor, which knows nothing of agents.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import hdrs

from agent.cgroups.detection import NoCgroups, Version, top_of
from agent.executor.conflicts import process_names, rivals
from agent.policy.source import ClusterPolicies, InForce, check_policies
from agent.service import build, sources
from agent.service.node_server import CannotRun, read_token
from agent.service.settings import AgentSettings, read_settings
from watcher.platform.checks.examination import Examination, aside
from watcher.platform.checks.results import Result, count, fail, ok, skipped, some, warn
from watcher.platform.net.loopback import EVERYWHERE
from watcher.platform.net.redaction import without_credentials
from watcher.platform.settings.tables import Settings
from watcher.providers.base import ProviderError

ANSWER_S = 5.0
LIST_S = 10.0
"""How long the API has for its policies."""
LOOK_AGAIN_S = 0.05
DISABLED = "the kubelet enables it where it makes groups (--cgroups-per-qos); on version 2 see cgroup.subtree_control"
ROOT = "run the agent as root, with the host's /sys/fs/cgroup mounted and not read-only: deploy/agent does"
ALONE = "keep one of the two from this node: two would undo each other's work (or set agent.beside_others)"
UNSEEN = "it does nothing until there is; docs/agent-state.md says what each metric takes"
NONE_YET = "write some: docs/agent-policies.md, and deploy/agent/policies has samples"


class _Explanation(msgspec.Struct):
    """Of GET /explain what is looked at."""

    node: str
    cycle: int
    policies: dict[str, Any]
    missing: dict[str, str]
    stance: str | None = None
    why: str = ""
    trouble: str = ""
    plan: dict[str, Any] | None = None


async def agent(examination: Examination) -> Sequence[Result]:
    """The check."""
    everything = examination.the(Settings)
    table = everything.parts.get("agent", {})
    if not table:
        return [skipped("there is no [agent] in these settings", "look with the agent's own: --config FILE")]
    own, _ = await aside(lambda: read_settings(table, cwd=examination.cwd))
    results: list[Result] = []
    try:
        results += (running := await _running(own))
        if not running:
            results.append(skipped(f"none answers at {_url(own)}: what follows is what one in {own.mode} would find"))
            results += await _policies(own, everything)
            results += await aside(lambda: list(_claimed(own)))
        results += await aside(lambda: [*_groups(own), *_rivals(own)])
        return [*results, *await _watcher(own), *await _queries(own)]
    except CannotRun as error:
        return [*results, fail(str(error).partition("\n")[0], "load-watcher agent --once says more")]


# --- one that runs ---------------------------------------------------------------------------------------------------


def _url(own: AgentSettings) -> str:
    host = EVERYWHERE.get(own.host, own.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{own.port}"


async def _running(own: AgentSettings) -> list[Result]:
    """What the agent at the address of the settings says of itself; nothing if none answers there. Raises CannotRun."""
    url = _url(own)
    try:
        async with _session() as session:
            _, body = await _get(session, f"{url}/healthz")
            health = _decoded(body)
            error = health["error"] if isinstance(health.get("error"), dict) else {}
            stuck = error.get("code") == "stuck"
            if "cycle" not in health and not stuck:
                told = f"what answers at {url} is no agent of load-watcher"
                return [fail(told, "end that program, or set another agent.port")]
            results = [fail(f"it is stuck: {error.get('message')}", "its log says why")] if stuck else []
            token = await aside(lambda: read_token(own.token_file))
            status, body = await _get(session, f"{url}/explain", token=token)
    except (aiohttp.ClientError, OSError):
        return []
    if status == 401:
        cure = "set agent.token_file to the file with its token, as it has it itself"
        return [*results, fail(f"the agent at {url} does not let us read without its token", cure)]
    try:
        return [*results, *_explained(msgspec.json.decode(body, type=_Explanation), own, url)]
    except (msgspec.DecodeError, KeyError):
        cure = "is it of another version?"
        return [*results, warn(f"the agent at {url} explains nothing that we understand ({status})", cure)]


def _explained(told: _Explanation, own: AgentSettings, url: str) -> Iterator[Result]:
    stance = told.stance or "waiting for policies"
    what = f"an agent answers at {url}: node {told.node}, cycle {told.cycle}, {stance}"
    if own.mode == "enforce" and told.stance != "enforce":
        cure = "docs/agent-safety.md says what keeps it from acting; what was started in preview takes a restart"
        yield warn(f"{what}, although these settings say enforce: {told.why or 'it was started in preview'}", cure)
    else:
        yield ok(f"{what}{f' ({told.why})' if told.why else ''}")
    if told.trouble:
        yield fail(f"it does nothing: {told.trouble}", "its file must be writable (agent.state_file)")
    there = len(told.policies["rules"])
    yield from _judged(told.policies["problems"], known=told.policies["known"], there=there, what="rules in force")
    if why := told.missing.get("pods"):
        yield fail(f"it does not know the pods of its node: {why}", "look at agent.kubelet, or at its rights to pods")
    for rule in (told.plan or {}).get("rules", ()):
        if why := told.missing.get(rule["metric"]):
            yield warn(f"rule {rule['rule']} sees nothing of {rule['metric']}: {why}", UNSEEN)


def _judged(problems: Sequence[str], *, known: bool, there: int, what: str) -> Iterator[Result]:
    """What there is to say of policies, of which so many rules or objects are there."""
    if problems:
        kept = "the ones before stay in force" if known else "nothing is decided"
        cure = "load-watcher agent --check DIRECTORY says the same before they are in place"
        yield fail(f"{count(len(problems), 'problem')} of policies, so {kept}: {some(problems)}", cure)
    elif not known:
        yield fail("no policies were read yet, so nothing is decided", "is the Kubernetes API at hand?")
    elif not there:
        yield warn("there are no policies for this node, so nothing is to be done", NONE_YET)
    else:
        yield ok(f"nothing is wrong with the policies ({what}: {there})")


# --- what one would find ---------------------------------------------------------------------------------------------


async def _policies(own: AgentSettings, everything: Settings) -> list[Result]:
    """Raises CannotRun."""
    metrics = build.known(build.metrics_of(own))
    directory = own.policies
    if directory is not None:
        reading = await aside(lambda: check_policies(directory, metrics=metrics))
        found = InForce(reading.policies if reading.usable else None, reading.problems)
    else:
        client = build.kube_client(own.kubernetes, everything)
        if client is None:
            cure = "name a directory (agent.policies), or set kubernetes.kubeconfig"
            return [fail("there is no Kubernetes API to read policies from", cure)]
        try:
            found = await _listed(ClusterPolicies(client, metrics=metrics))
        finally:
            await client.close()
    known, there = found.policies is not None, 0 if found.policies is None else len(found.policies.objects)
    return list(_judged([str(each) for each in found.problems], known=known, there=there, what="read"))


async def _listed(policies: ClusterPolicies) -> InForce:
    await policies.start()
    try:
        for _ in range(round(LIST_S / LOOK_AGAIN_S)):
            if (await policies.refresh()).policies is not None:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        return await policies.refresh()
    finally:
        await policies.close()


def _groups(own: AgentSettings) -> Iterator[Result]:
    groups = sources.WrittenGroups(own)
    try:
        layout = groups.layout()
        file = Path(top_of(layout), "cpu.max" if layout.version is Version.V2 else "cpu.cfs_quota_us")
    except NoCgroups as error:
        yield fail(str(error), error.hint)
        return
    if not file.exists():
        yield fail(f"the cpu controller is not there for the kubelet's groups: there is no {file}", DISABLED)
    elif not os.access(file, os.W_OK):
        told = f"{file} cannot be written here by user {os.geteuid()}, so no quota could be changed"
        yield fail(told, ROOT) if own.mode == "enforce" else warn(told, f"before it is to enforce, {ROOT}")
    else:
        yield ok(
            f"control groups of {layout.version}, laid out by {layout.driver}, in {layout.root}: quotas can be set"
        )


def _rivals(own: AgentSettings) -> Iterator[Result]:
    """By their processes: who else there is in pods, a running agent knows."""
    found = rivals((), process_names(own.proc))
    if not found:
        yield ok("no koordlet and no crane-agent runs beside it, as far as processes tell")
        return
    told = f"the same control groups are managed by {', '.join(found)}: beside it nothing is enforced"
    yield fail(told, ALONE) if own.mode == "enforce" and not own.beside_others else warn(told, ALONE)


def _claimed(own: AgentSettings) -> Iterator[Result]:
    """Whether an agent that enforces is here, although none answers."""
    groups = sources.WrittenGroups(own)
    try:
        if others := groups.claim.others():
            told = f"{others[0]} has the control groups, and it does not answer at {_url(own)}"
            yield warn(told, "give the doctor its settings too (--config), or end it")
    finally:
        groups.close()


async def _watcher(own: AgentSettings) -> list[Result]:
    """Raises CannotRun."""
    if own.watcher is None:
        return []
    from agent.state.windows import OPERATORS, WINDOWS, YOUNG_S
    from watcher.client import NodeClient, WatcherError

    where, node = without_credentials(own.watcher), own.node_name()
    token = await aside(lambda: read_token(own.watcher_token_file))
    client = NodeClient(own.watcher, node, windows=WINDOWS, operators=OPERATORS, token=token, timeout=ANSWER_S)
    try:
        load = await client.refresh()
    except WatcherError as error:
        cure = error.hint or "is agent.watcher right, and does it have this node by this name (agent.node)?"
        return [fail(f"the watcher at {where} tells no windows of {node}: {error}", cure)]
    finally:
        await client.close()
    if (age := load.age(time.monotonic())) > YOUNG_S:
        return [warn(f"the watcher's newest sample of {node} is {age:.0f} s old", "load-watcher doctor, where it runs")]
    return [ok(f"the watcher at {where} tells windows of {node}")]


async def _queries(own: AgentSettings) -> list[Result]:
    if own.prometheus is None or not own.queries:
        return []
    from agent.state.prometheus import PrometheusQuestions, prometheus_config

    questions = PrometheusQuestions(prometheus_config(own.prometheus, own.prometheus_token_file))
    results = []
    try:
        for name, query in own.queries.items():
            expression = query.expression.replace("$node", own.node_name())
            try:
                there = len(await questions.ask(expression))
            except ProviderError as error:
                results.append(fail(f"agent.queries.{name}: {error}", error.hint))
                continue
            cure = "try the expression in Prometheus' own page; $node stands for agent.node"
            told = f"agent.queries.{name}: {there} series"
            results.append(ok(told) if there else warn(f"{told}, so its rules see nothing", cure))
    finally:
        await questions.close()
    return results


# --- asking ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_S), trust_env=False) as session:
        yield session


async def _get(session: aiohttp.ClientSession, url: str, *, token: str | None = None) -> tuple[int, bytes]:
    headers = {hdrs.AUTHORIZATION: f"Bearer {token}"} if token else {}
    async with session.get(url, allow_redirects=False, headers=headers) as response:
        return response.status, await response.read()


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}
