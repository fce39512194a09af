"""The check of `load-watcher doctor` for the QoS Resource Manager: whether a manager that runs here sets allocations;
its rights in the Kubernetes API; and for qrm.mode nri, its registration, or the socket of the runtime; the settings of
the runtime; and whether a refusal works.

The check connects to the socket only if no manager responds, and registers no plug-in: the runtime would call it.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec

from agent.qrm.cluster.own_managers import objection
from agent.qrm.cluster.rights import required_rights
from agent.qrm.runtime.nri.runtime_config import (
    CRIO,
    TOLERATION,
    UPGRADE,
    VALIDATING,
    NriConfig,
    UnreadableConfig,
    may_deadlock,
    read_config,
    runtime_named,
    version_of,
)
from agent.qrm.settings import NRI, REFUSE, SERVER, QrmSettings, read_settings
from agent.service.dependencies import kube_client
from agent.service.node_server import CannotRun, read_token
from agent.service.own_pages import ANSWER_S, get_page, page_session, page_url
from watcher.core.config.settings import Settings
from watcher.decoding.json_text import decode_json
from watcher.platform.checks.examination import CheckContext, in_thread
from watcher.platform.checks.permissions import check_permissions
from watcher.platform.checks.results import CheckResult, count, fail, ok, skipped, warn

FAILING_REQUESTS = (0, 12, 5)
"""NRI that fails the request of a plug-in that does not answer it; v0.12.0 does not."""
TURN_ON = "turn NRI on in the settings of the runtime, and restart it: deploy/components/qrm-nri has the lines"
AS_ROOT = "run the doctor on the node, as root"
REQUIRED = "required-plugins.noderesource.dev"


class _RuntimeFacts(msgspec.Struct, frozen=True):
    name: str = ""
    version: str = ""
    nri: str = ""


class _NriState(msgspec.Struct, frozen=True):
    """The fields of `nri` in GET /qrm that the doctor reads."""

    plugin: str
    socket: str
    on_failure: str
    trouble: str
    runtime: _RuntimeFacts | None
    unpinned: int = 0
    findings: tuple[dict[str, object], ...] = ()


class _LastRound(msgspec.Struct, frozen=True):
    trouble: str = ""


class _Inadmissible(msgspec.Struct, frozen=True):
    pod: str
    message: str = ""


class _QrmState(msgspec.Struct, frozen=True):
    """The fields of GET /qrm that the doctor reads."""

    mode: str
    evicts: bool = False
    publishes: bool = False
    nri: _NriState | None = None
    last_reconcile: _LastRound = _LastRound()
    inadmissible: tuple[_Inadmissible, ...] = ()


async def check_qrm(examination: CheckContext) -> Sequence[CheckResult]:
    """Check the QoS Resource Manager if it runs, its rights, and the requirements of mode nri if it runs in this mode,
    or if it does not run and [qrm] has this mode. The settings of a running manager count, since manifests set some of
    them by arguments."""
    everything = examination.get(Settings)
    own, _ = await in_thread(lambda: read_settings(everything.parts.get("qrm", {}), cwd=examination.cwd))
    try:
        running, results = await _running(own)
    except CannotRun as error:
        return [fail(error.reason, "check qrm.token_file")]
    results += () if running is None else _rounds(running, page_url(own))
    return [*results, *await _rights(own, running, everything), *await _nri(own, running, found=bool(results))]


async def _rights(own: QrmSettings, running: _QrmState | None, everything: Settings) -> list[CheckResult]:
    """Check that the account has the rights that the manager needs."""
    if running is not None:
        own = replace(own, mode=running.mode, evict_inadmissible=running.evicts, publish_capacity=running.publishes)
    if own.mode == SERVER:
        return []
    client = kube_client(own.kubernetes, everything)
    if client is None:
        return [skipped("rights are not checked: no Kubernetes API is configured (kubernetes.kubeconfig)")]
    try:
        return await check_permissions(client, tuple(required_rights(own)))
    finally:
        await client.close()


async def _nri(own: QrmSettings, running: _QrmState | None, *, found: bool) -> list[CheckResult]:
    """Check the requirements of mode nri. `found`: whether there are results of a running manager."""
    state = None if running is None else running.nri
    results: list[CheckResult] = []
    if state is None and own.mode != NRI:
        mode = own.mode if running is None else running.mode
        return results if found else [skipped(f"the mode is {mode}: the requirements of nri are not checked")]
    facts = _RuntimeFacts() if state is None or state.runtime is None else state.runtime
    if state is not None:
        results += _reported(state, page_url(own))
        name = state.plugin.partition("-")[2]
        own = replace(own, nri_socket=Path(state.socket), nri_name=name, on_failure=state.on_failure)
    elif running is not None:
        message = f"the manager at {page_url(own)} runs in mode {running.mode}, not in mode nri of these settings"
        results.append(warn(message, "restart it with these settings"))
    elif not found:
        missing = f"no QoS Resource Manager responds at {page_url(own)}; checking the requirements of mode nri"
        results = [skipped(missing), await _socket(own), *await in_thread(lambda: list(_kubelet(own)))]
    try:
        config = await in_thread(lambda: read_config(own.runtime_config, runtime=runtime_named(facts.name)))
    except UnreadableConfig as error:
        results.append(skipped(f"the settings of the container runtime are not checked: {error}"))
        if own.on_failure == REFUSE:
            results.append(warn(f"unknown whether a refusal works while the manager does not run: {error}", error.hint))
        return results
    results += _configured(own, config)
    return [*results, *(_refusal(own, config, facts) if own.on_failure == REFUSE else ())]


# --- the manager and the socket --------------------------------------------------------------------------------------


async def _running(own: QrmSettings) -> tuple[_QrmState | None, list[CheckResult]]:
    """The state of the manager at the configured address; None without a result if none responds there. Raises
    CannotRun."""
    url, token = page_url(own), await in_thread(lambda: read_token(own.token_file))
    try:
        async with page_session() as session:
            status, body = await get_page(session, f"{url}/qrm", token=token)
    except (aiohttp.ClientError, OSError):
        return None, []
    if status == 401:
        return None, [fail(f"the manager at {url} requires its token", "set qrm.token_file to the file with its token")]
    try:
        return decode_json(body, type=_QrmState), []
    except msgspec.DecodeError:
        message = f"the program that responds at {url} is not a load-watcher qrm of this version ({status})"
        return None, [fail(message, "stop that program, set another qrm.port, or use the version of the manager")]


def _rounds(state: _QrmState, url: str) -> Iterator[CheckResult]:
    """Why a running manager sets nothing, and which pods it does not admit."""
    if why := state.last_reconcile.trouble:
        yield fail(f"allocations are not applied to containers: {why}", "remove the cause; the next round continues")
    if pods := state.inadmissible:
        text = f"{count(len(pods), 'pod')} cannot be admitted, such as {pods[0].pod}: {pods[0].message}"
        yield warn(text, f"see inadmissible of {url}/qrm; they are tried again when a pod has ended")


def _kubelet(own: QrmSettings) -> Iterator[CheckResult]:
    """Why the manager would refuse to start."""
    if (own.cpu_plugin or own.memory_plugin) and not own.force and (why := objection(own.kubelet_dir)):
        yield fail(f"the manager cannot start: {why}", "both would write the same files")


def _reported(state: _NriState, url: str) -> Iterator[CheckResult]:
    runtime = state.runtime or _RuntimeFacts()
    if state.trouble:
        yield fail(f"containers start without allocations: {state.trouble}", TURN_ON)
    else:
        name = f"{runtime.name or 'a runtime'} {runtime.version or 'of unknown version'}"
        yield ok(f"the plug-in {state.plugin} is registered with {name}, NRI {runtime.nri or 'unknown'}")
    if state.runtime is not None and may_deadlock(runtime.nri):
        with_nri = f"{runtime.name or 'the runtime'} {runtime.version} with NRI {runtime.nri or 'of unknown version'}"
        message = (
            f"{with_nri} can deadlock when a plug-in updates containers while the kubelet creates or updates some "
            "(containerd 13733)"
        )
        yield warn(message, "use containerd 2.4 or newer, or another runtime with NRI 0.12.1 or newer")
    if state.unpinned:
        last = next((f"; the last failure: {each.get('message')}" for each in state.findings), "")
        text = f"{count(state.unpinned, 'container')} started without allocations since the start of the manager"
        yield warn(f"{text}{last}", f"see nri.findings of {url}/qrm; the next round sets the allocations")


async def _socket(own: QrmSettings) -> CheckResult:
    """Connect to the socket of NRI and close the connection at once, which the runtime only logs."""
    path = own.nri_socket
    try:
        if not stat.S_ISSOCK((await in_thread(path.stat)).st_mode):
            return fail(f"{path} is not a socket", "set qrm.nri_socket to the socket of the runtime's NRI")
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_unix_connection(str(path))
        writer.close()
    except FileNotFoundError:
        return fail(f"there is no NRI socket at {path}: NRI is off, or qrm.nri_socket is wrong", TURN_ON)
    except PermissionError:
        return fail(f"this user may not connect to {path}", AS_ROOT)
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or f"no connection within {ANSWER_S:g} s"
        return fail(f"the container runtime does not listen at {path}: {why}", "check that it runs, and its log")
    return ok(f"the container runtime listens at {path}; its name and version are known once the manager runs")


# --- the settings of the runtime -------------------------------------------------------------------------------------


def _configured(own: QrmSettings, config: NriConfig) -> Iterator[CheckResult]:
    """What the settings of the runtime say about NRI."""
    crio = config.runtime == CRIO
    key = "enable_nri = true" if crio else "disable = false"
    restart = f"in {config.place}, and restart {config.runtime}"
    if config.on is False:
        yield fail(f"NRI is off in {config.place}", f"set {key} {restart}")
    elif not config.connections:
        key = "nri_disable_connections = false" if crio else "disable_connections = false"
        yield fail(f"{config.place} does not allow plug-ins to connect", f"set {key} {restart}")
    elif config.socket and not _same(config.socket, str(own.nri_socket)):
        message = f"the socket of NRI is {config.socket} in {config.place}, but qrm.nri_socket is {own.nri_socket}"
        yield warn(message, f'set qrm.nri_socket = "{config.socket}", unless the pod mounts it there')
    else:
        yield ok(f"{config.file} {'turns NRI on' if config.on else 'does not turn NRI off'}")


def _same(one: str, other: str) -> bool:
    """Whether two paths are equal, as /var/run is /run on nodes."""
    return one.removeprefix("/var") == other.removeprefix("/var")


def _refusal(own: QrmSettings, config: NriConfig, facts: _RuntimeFacts) -> Iterator[CheckResult]:
    """Whether containers are refused as qrm.on_failure says, also while the manager does not run."""
    lines = (
        f"set {config.lines(own.nri_name)} in {config.place}, give static pods this annotation, "
        f"and restart {config.runtime}"
    )
    version = version_of(facts.version) if runtime_named(facts.name) == config.runtime else ()
    while_away = "while the manager does not run, containers start without allocations"
    if version and version < VALIDATING[config.runtime]:
        cure = f"{UPGRADE[config.runtime]}, or remove qrm.on_failure"
        message = f"a refusal does not work: {config.runtime} {facts.version} has no default validator; {while_away}"
        yield fail(message, cure)
    elif not config.validator:
        yield fail(f"a refusal does not work: the default validator is off in {config.place}; {while_away}", lines)
    elif own.nri_name not in config.required:
        message = f"a refusal works only for pods with the annotation {REQUIRED}: [{own.nri_name}]; other containers"
        cure = f"{lines}; or leave it, if that is intended"
        yield warn(f"{message} start without allocations while the manager does not run", cure)
    else:
        yield ok(f"a refusal works: {config.runtime} requires the plug-in {own.nri_name} ({config.file}){_gap(facts)}")
        if config.toleration != TOLERATION:
            message = f"{config.file} requires the plug-in also for pods with the annotation {TOLERATION}"
            yield warn(f"{message}: after a restart of the node, the pod of the manager cannot start", lines)


def _gap(facts: _RuntimeFacts) -> str:
    """What a required plug-in does not prevent, with the NRI of this runtime."""
    version = version_of(facts.nri)
    if not version or version >= FAILING_REQUESTS:
        return ""
    return f"; NRI {facts.nri} starts one container when it drops a manager that does not answer"
