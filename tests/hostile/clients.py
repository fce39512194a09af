"""Runs one outbound client against a server: `python -m tests.hostile.clients NAME URL DIRECTORY`.

Each line of standard input is one exchange; the answer on standard output is one line of JSON with the error. An
exception that a caller of the client does not expect ends the program.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agent.state.kubelet import KubeletError, KubeletPods, kubelet_access
from agent.state.remote import PrometheusQueryClient
from tests.hostile import TOKEN
from watcher.agent_clients import usage as agents_usage
from watcher.agent_clients.pages import AgentError, AgentProxy, EndpointKind, clients_by_kind
from watcher.client import WatcherClient, WatcherError
from watcher.client.node import NodeClient
from watcher.core.config.settings import Settings
from watcher.core.config.values import Secret
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.objects import NODES, PODS
from watcher.model import Operator
from watcher.platform.interpreter import limit_malloc_arenas
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.service.settings.loading import load
from watcher.sources.base import PodProvider
from watcher.sources.config import ConnectionSettings
from watcher.sources.errors import ProviderError
from watcher.sources.registry import build

Exchange = Callable[[], Awaitable[str]]
TIMEOUT_S = 1.0
"""Long enough to read an answer of the maximum size, short enough for a test."""


def settings(directory: Path, **flags: Any) -> Settings:
    (directory / "token").write_text(TOKEN)
    return load(flags={key.replace("__", "."): value for key, value in flags.items()}, environ={}, cwd=directory)


def provider(name: str, **more: Any) -> Callable[[str, Path], Exchange]:
    """Fetches as the service does."""

    def make(url: str, directory: Path) -> Exchange:
        token = {} if name == "metrics-server" else {"provider__token_file": str(directory / "token")}
        address = (
            {"provider__kubeconfig": str(kubeconfig(url, directory))}
            if name == "metrics-server"
            else {"provider__address": url}
        )
        given = settings(directory, provider__name=name, provider__timeout="1s", **address, **token, **more)
        source = build(given)
        started = False

        async def exchange() -> str:
            nonlocal started
            if not started:
                await source.start()
                started = True
            now = time.time()
            said = []
            try:
                async with asyncio.timeout(20.0):  # a busy machine may take seconds until the first request
                    fetched = await source.fetch(now - 300, now)
                    said = [finding.reason for finding in fetched.findings]
            except (ProviderError, TimeoutError) as error:
                said = [str(error)]
            if isinstance(source, PodProvider):
                try:
                    async with asyncio.timeout(4.0):
                        await source.fetch_pods(now)
                except (ProviderError, TimeoutError) as error:
                    said.append(str(error))
            return " | ".join(said)

        return exchange

    return make


def kubeconfig(url: str, directory: Path) -> Path:
    path = directory / "kubeconfig"
    entry: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    }
    entry |= {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    path.write_text(json.dumps(entry))
    return path


def api(url: str, directory: Path) -> Exchange:
    """Lists in both ways, an object, and a watch."""
    (directory / "token").write_text(TOKEN)
    client = KubeClient(lambda: KubeAccess(url, "the test", token_file=directory / "token"), timeout=TIMEOUT_S)

    async def watch() -> None:
        async for _ in client.watch(PODS, since="1", seconds=1):
            pass

    async def exchange() -> str:
        said = []
        calls: tuple[Callable[[], Awaitable[Any]], ...] = (
            lambda: client.list(NODES),
            lambda: client.list(PODS, at_least="0"),
            lambda: client.get(NODES, "n"),
        )
        for call in calls:
            try:
                async with asyncio.timeout(4.0):
                    await call()
            except (KubeError, TimeoutError) as error:
                said.append(str(error))
        try:
            async with asyncio.timeout(3.0):
                await watch()
        except (KubeError, TimeoutError) as error:
            said.append(str(error))
        return " | ".join(said)

    return exchange


def watcher(url: str, directory: Path) -> Exchange:
    client = WatcherClient(url, pods=True, token=TOKEN, timeout=TIMEOUT_S, retries=0)

    async def exchange() -> str:
        said = []
        for call in (client.refresh, client.refresh_pods):
            try:
                await call()
            except WatcherError as error:
                said.append(str(error))
        return " | ".join(said)

    return exchange


def node(url: str, directory: Path) -> Exchange:
    client = NodeClient(url, "n", windows=("5m",), operators=(Operator.AVG,), token=TOKEN, timeout=TIMEOUT_S, retries=0)

    async def exchange() -> str:
        try:
            await client.refresh()
        except WatcherError as error:
            return str(error)
        return ""

    return exchange


def kubelet(url: str, directory: Path) -> Exchange:
    (directory / "token").write_text(TOKEN)
    client = KubeletPods(kubelet_access(url, token_file=directory / "token"), timeout=TIMEOUT_S)

    async def exchange() -> str:
        try:
            await client.request()
        except KubeletError as error:
            return str(error)
        return ""

    return exchange


def agent_query(url: str, directory: Path) -> Exchange:
    client = PrometheusQueryClient(ConnectionSettings(address=url, token=Secret(TOKEN), timeout=TIMEOUT_S, backoff=()))

    async def exchange() -> str:
        try:
            await client.ask("up")
        except ProviderError as error:
            return str(error)
        return ""

    return exchange


def agent_pages(url: str, directory: Path) -> Exchange:
    (directory / "token").write_text(TOKEN)
    client = AgentProxy(
        clients_by_kind(settings(directory, agents__urls=[url], agents__token_file=str(directory / "token")))
    )

    async def exchange() -> str:
        async with client.life(None):  # type: ignore[arg-type]  # not used
            known = await client.known()
            (place,) = known[EndpointKind.AGENT].places
            try:
                async with asyncio.timeout(2.0):
                    await client.page(place.name, "plan")
            except (AgentError, TimeoutError) as error:
                return str(error)
        return ""

    return exchange


def agent_usage(url: str, directory: Path) -> Exchange:
    given = settings(
        directory, agents__urls=[url], agents__timeout=TIMEOUT_S, agents__token_file=str(directory / "token")
    )
    client = agents_usage.AgentPods(clients_by_kind(given)[EndpointKind.AGENT])

    async def exchange() -> str:
        try:
            await client.fetch(time.time())
        except ProviderError as error:
            return str(error)
        return ""

    return exchange


def command(*arguments: str) -> Callable[[str, Path], Exchange]:
    """A command line, with URL and FILE replaced."""

    def make(url: str, directory: Path) -> Exchange:
        # Here, because the commands need much more memory than the clients of the service.
        from click.testing import CliRunner

        from load_watcher.main import main

        (directory / "token").write_text(TOKEN)
        (directory / "pod.yaml").write_text("kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
        names = {"URL": url, "FILE": str(directory / "trace.csv"), "POD": str(directory / "pod.yaml")}
        token = directory / "token"
        of_source = "--provider" in arguments  # and not of a service
        line = [names.get(each, each) for each in arguments]
        line += ["--set", f"provider.token_file={token}"] if of_source else ["--token-file", str(token)]

        async def exchange() -> str:
            result = await asyncio.to_thread(CliRunner().invoke, main, line)
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            assert result.exit_code in (0, 1, 2), result.output
            assert "Traceback" not in result.output
            return result.output

        return exchange

    return make


def recorder(url: str, directory: Path) -> Exchange:
    from lab.record.file import RecordingFile
    from lab.record.recorder import RecordError, Recording, record

    async def exchange() -> str:
        stop = asyncio.Event()
        stop.set()  # after one poll
        path = directory / "trace.csv"
        try:
            with RecordingFile(path) as file:
                return (await record(Recording(url, token=TOKEN), file, stop=stop)).trouble
        except RecordError as error:
            return f"{error} {error.hint}"
        finally:
            path.unlink(missing_ok=True)

    return exchange


CLIENTS: dict[str, Callable[[str, Path], Exchange]] = {
    "prometheus": provider("prometheus"),
    "influxql": provider("influxdb", provider__dialect="influxql", provider__database="telegraf"),
    "flux": provider("influxdb", provider__dialect="flux", provider__bucket="b", provider__org="o"),
    "influxdb": provider("influxdb", provider__database="telegraf"),
    "metrics-server": provider("metrics-server"),
    "kubernetes": api,
    "watcher": watcher,
    "node": node,
    "kubelet": kubelet,
    "agent query": agent_query,
    "agent pages": agent_pages,
    "agent usage": agent_usage,
    "compare": command("compare", "--with", "URL", "--url", "URL"),
    "score": command("score", "POD", "--url", "URL"),
    "why": command("why", "default/p", "--url", "URL"),
    "shadow": command("shadow", "--url", "URL"),
    "record": recorder,
    "doctor": command(
        "doctor", "--provider", "prometheus", "--address", "URL", "--set", "provider.timeout=1s", "--only", "source"
    ),
}


async def run(name: str, url: str, directory: Path) -> None:
    exchange = CLIENTS[name](url, directory)
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await exchange()), flush=True)
        print(line.strip(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    limit_malloc_arenas()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(run(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
