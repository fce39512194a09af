"""The metrics-server provider with a small API server over a real socket: samples, findings and errors."""

import asyncio
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.conftest import RunService
from tests.fakes.kube import NODE_METRICS, NODES, Asked, FakeKube
from tests.fakes.prometheus import FakePrometheus, responded
from tests.fetches import Fetches
from tests.waiting import eventually, wait_for
from tests.watcher.sources.prometheus.test_provider import OK, hang, trickle
from watcher.model import Finding, FindingKind
from watcher.platform.kube.credentials import KubeAccess
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.metrics_server.provider import MetricsServerProvider

CPU = "instance:node_cpu:ratio"
MEMORY = "instance:node_memory_utilisation:ratio"
NOW = 1_700_000_000.0


OPTIONS: dict[str, Any] = {"resolution": 0.02, "max_seconds": 900.0, "timeout": 5.0, "clock": lambda: NOW}


def at(seconds: float) -> str:
    """A time in the format of metrics-server."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def make(server: FakeKube | FakePrometheus, **options: Any) -> MetricsServerProvider:
    """A provider with a request every 20 ms."""
    token = server.token if isinstance(server, FakeKube) else "a-token"
    return MetricsServerProvider(lambda: KubeAccess(server.url, "a test", token=token), **{**OPTIONS, **options})


FETCHES = Fetches(make, since=NOW - 300, until=NOW)
run, fetch, failure = FETCHES.run, FETCHES.fetch, FETCHES.failure


def values(got: Fetch, metric: str) -> dict[str, list[float]]:
    """Values by node."""
    (batch,) = (batch for batch in got.batches if batch.metric.name == metric)
    return {name: batch.value[batch.series == k].tolist() for k, name in enumerate(batch.nodes)}


def found(got: Fetch, kind: FindingKind) -> list[Finding]:
    """The findings of a kind."""
    return [finding for finding in got.findings if finding.kind is kind]


def two_nodes(server: FakeKube) -> None:
    server.node("a", cpu="4", memory="8Gi")
    server.node("b", cpu="4000m", memory="8388608Ki")
    server.usage("a", time=at(NOW - 20), cpu="1234567890n", memory="2Gi")
    server.usage("b", time=at(NOW - 10), cpu="4k", memory="1e9")


# --- samples ---------------------------------------------------------------------------------------------------------


def test_usage_is_percent_of_capacity_at_its_own_time():
    """A single division of whole numbers, without smoothing; the first fetch waits for the first response."""
    with FakeKube() as server:
        two_nodes(server)
        got = fetch(server)

    assert {"a": [100 * 1234567890 / 4000000000], "b": [100000.0]} == values(got, CPU)
    assert {"a": [25.0], "b": [100 * 10**9 / 2**33]} == values(got, MEMORY)
    assert [[NOW - 20, NOW - 10]] * 2 == [batch.time.tolist() for batch in got.batches]
    assert {0.0} == {plan.smoothing_s for plan in got.plans.values()}
    assert "metrics.k8s.io/v1beta1 nodes usage.cpu" == got.plans[CPU].expression
    assert () == got.findings


def test_equal_times_are_one_sample():
    """For any number of requests; a new time is a new sample, and each series has ascending times."""
    with FakeKube() as server:
        two_nodes(server)

        async def check(provider: MetricsServerProvider) -> Fetch:
            await provider.fetch(NOW - 300, NOW)
            before = len(server.asked)
            await eventually(lambda: len(server.asked) > before + 3, what="more questions")
            server.usage("a", time=at(NOW - 5), cpu="2")
            server.usage("b", time=at(NOW - 30), cpu="3")  # a clock that is set back
            await eventually(lambda: _four_samples(provider), what="the new samples")
            return await provider.fetch(NOW - 300, NOW)

        got = run(server, check)

    assert {"a": [100 * 1234567890 / 4000000000, 50.0], "b": [75.0, 100000.0]} == values(got, CPU)


async def _four_samples(provider):
    got = await provider.fetch(NOW - 300, NOW, only={CPU})
    return sum(len(batch.value) for batch in got.batches) == 4


def test_only_the_requested_metrics_and_times_are_returned():
    """Times are inclusive."""
    with FakeKube() as server:
        two_nodes(server)

        async def check(provider: MetricsServerProvider) -> None:
            got = await provider.fetch(NOW - 20, NOW - 11, only={MEMORY})
            assert {"a": [25.0], "b": []} == values(got, MEMORY)
            assert [MEMORY] == [batch.metric.name for batch in got.batches] == list(got.plans)
            assert () == (await provider.fetch(NOW - 9, NOW)).batches

        run(server, check)


def test_a_changed_capacity_is_used_from_then_on():
    """Nodes are watched."""
    with FakeKube() as server:
        two_nodes(server)

        async def check(provider: MetricsServerProvider) -> None:
            await provider.fetch(NOW - 300, NOW)
            server.node("a", cpu="8", memory="8Gi")
            clock = iter(range(1000))

            async def half():
                server.usage("a", time=at(NOW - 500 + next(clock)), cpu="4")
                return 50.0 in values(await provider.fetch(NOW - 600, NOW), CPU)["a"]

            await eventually(half, what="the new capacity")

        run(server, check)


def test_at_most_the_longest_window_is_kept():
    """One reading for each slot."""
    with FakeKube() as server:
        server.node("a")

        async def check(provider: MetricsServerProvider) -> None:
            for number in range(12):
                server.usage("a", time=at(NOW - 100 + number))
                newest = NOW - 100 + number

                async def there(newest=newest):
                    return bool((await provider.fetch(newest, newest)).batches)

                await eventually(there, what="the sample")
            assert 6 >= len((await provider.fetch(NOW - 300, NOW)).batches[0].value)

        run(server, check, max_seconds=0.1)


def test_the_source_has_no_past():
    """It cannot return past samples, and has the name of the Go load-watcher."""
    provider = MetricsServerProvider(lambda: KubeAccess("http://x", ""), resolution=15, max_seconds=900)
    assert ("KubernetesMetricsServer", False) == (provider.source, provider.remembers)


# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capacity", "usage", "kind", "words"),
    [
        ({"cpu": "0", "memory": "8Gi"}, {}, FindingKind.OUT_OF_RANGE, "its capacity of cpu is 0"),
        ({"cpu": "many", "memory": "8Gi"}, {}, FindingKind.NON_FINITE, "'many' is not a Kubernetes quantity"),
        ({"memory": "8Gi"}, {}, FindingKind.MISSING, "its status.capacity has no cpu"),
        ({}, {"cpu": "1 core"}, FindingKind.NON_FINITE, "'1 core' is not a Kubernetes quantity"),
        ({}, {"cpu": None}, FindingKind.MISSING, "its usage has no cpu"),
    ],
    ids=["capacity 0", "odd capacity", "no capacity", "odd usage", "no usage"],
)
def test_an_invalid_number_affects_only_its_metric_and_node(
    capacity: dict[str, str], usage: dict[str, Any], kind: FindingKind, words: str
):
    used = {"cpu": "1", "memory": "2Gi"} | usage

    def fault(asked: Asked) -> web.Response | None:
        if asked.verb == "watch":
            return None
        metadata = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in ("good", "odd")]
        good = {"cpu": "4", "memory": "8Gi"}
        if asked.resource == NODES:
            items = [{**metadata[0], "status": {"capacity": good}}]
            items.append({**metadata[1], "status": {"capacity": capacity or good}})
            return web.json_response({"kind": "NodeList", "metadata": {"resourceVersion": "1000"}, "items": items})
        odd = {key: value for key, value in used.items() if value is not None}
        items = [{**metadata[0], "timestamp": at(NOW - 5), "usage": {"cpu": "1", "memory": "2Gi"}}]
        items.append({**metadata[1], "timestamp": at(NOW - 5), "usage": odd})
        return web.json_response({"kind": "NodeMetricsList", "metadata": {}, "items": items})

    with FakeKube(fault=fault) as server:
        got = fetch(server)

    assert {"good": [25.0], "odd": []} == values(got, CPU)
    assert {"good": [25.0], "odd": [25.0]} == values(got, MEMORY)
    (finding,) = got.findings
    assert (kind, "odd", CPU) == (finding.kind, finding.node, finding.metric)
    assert words in finding.reason


def test_nodes_and_metrics_that_do_not_match_are_findings():
    """Each by name; the matching ones are returned."""
    with FakeKube() as server:
        two_nodes(server)
        server.node("silent")
        server.usage("stranger", time=at(NOW - 5))
        server.node("timeless")
        server.usage("timeless", time="yesterday")
        got = fetch(server)

    assert {"a", "b"} == set(values(got, CPU))
    assert ["silent"] == [finding.node for finding in found(got, FindingKind.MISSING)]
    assert ["stranger"] == [finding.node for finding in found(got, FindingKind.UNKNOWN_NODE)]
    assert ["timeless"] == [finding.node for finding in found(got, FindingKind.NON_FINITE)]


def test_the_nodes_of_the_cluster_are_known_with_the_first_response():
    """With and without metrics."""
    with FakeKube() as server:
        two_nodes(server)
        server.node("unscraped")

        async def check(provider: MetricsServerProvider) -> None:
            await provider.fetch(NOW - 300, NOW)
            assert {"a", "b", "unscraped"} == set(provider.node_names() or ())

        run(server, check)


def test_a_long_averaging_window_is_a_finding():
    """From the window of NodeMetrics, a Go duration."""
    with FakeKube() as server:
        server.node("a")
        server.usage("a", time=at(NOW - 5), window="5m0.5s")
        (finding,) = found(fetch(server), FindingKind.SHORT_COVERAGE)

    assert "averages over 300 s" in finding.reason


def test_an_empty_list_is_valid():
    """metrics-server has just started: the source is up without samples, with a finding."""
    with FakeKube() as server:
        got = fetch(server)

    assert () == got.batches
    assert 1 == len(found(got, FindingKind.NO_SERIES))


def test_other_metrics_are_findings():
    """They were configured; they are not failures."""
    with FakeKube() as server:
        two_nodes(server)
        got = fetch(server, keys=("CPU", "Storage"))

    assert [CPU] == [batch.metric.name for batch in got.batches]
    (finding,) = got.findings
    assert "metrics-server provides only CPU and memory" == finding.reason


def test_without_the_right_to_watch_nodes_they_are_listed_and_it_is_reported():
    """The ClusterRole of the Go load-watcher has no such right."""
    with FakeKube(forbidden={("watch", NODES)}) as server:
        two_nodes(server)

        async def check(provider: MetricsServerProvider) -> None:
            async def responded_so():
                return found(await provider.fetch(NOW - 300, NOW), FindingKind.SOURCE)

            await eventually(responded_so, what="the finding")
            (finding,) = found(await provider.fetch(NOW - 300, NOW), FindingKind.SOURCE)
            assert 'resources: ["nodes"], verbs: ["watch"]' in finding.reason
            assert {"a", "b"} == set(values(await provider.fetch(NOW - 300, NOW), CPU))

        run(server, check)


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", [NODES, NODE_METRICS])
def test_a_missing_right_is_named_with_verb_and_resource(resource: str):
    """And with the rule that grants it."""
    with FakeKube(forbidden={("list", resource)}) as server:
        two_nodes(server)
        error = failure(server)

    group = "metrics.k8s.io" if resource == NODE_METRICS else ""
    assert isinstance(error, ProviderRefused)
    assert "403" in str(error)
    assert f'{{apiGroups: ["{group}"], resources: ["nodes"], verbs: ["list"]}}' in error.hint
    assert "docs/tasks/metrics-server.md" in error.hint


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (responded("try later", status=503), ProviderUnreachable, "Check that metrics-server is running"),
        (responded("", status=502), ProviderUnreachable, "502"),
        (responded("", status=500), ProviderUnreachable, "500"),
        (responded("no", status=401), ProviderRefused, "rejected the credentials"),
        (responded("no", status=404), ProviderRefused, "Check that metrics-server is installed"),
        (responded("", status=302, headers={"Location": "https://login/?secret"}), ProviderRefused, "302"),
        (
            responded('{"kind": "NodeMetricsList", "items": [{"meta'),
            ProviderMalformed,
            "is not a list of nodes.metrics",
        ),
        (responded("<html>Log in</html>"), ProviderMalformed, "a web page"),
        (responded(""), ProviderMalformed, "returned an empty response"),
        (responded("null"), ProviderMalformed, "is not a list"),
        (responded('{"status": "success"}'), ProviderMalformed, "is not a list"),
        (responded('{"kind": "Status"}'), ProviderMalformed, "returned a Status"),
        (responded(b"\xff\xfe"), ProviderMalformed, "is not a list"),
        (responded("[" * 100_000), ProviderMalformed, "is not a list"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ProviderMalformed, "is not valid HTTP"),
        (responded("{}")[:-1], ProviderUnreachable, "the connection failed"),
        (b"", ProviderUnreachable, "the connection failed"),
    ],
    ids=[
        *("503", "502", "500", "401", "404", "redirect", "truncated", "html", "empty", "null"),
        *("prometheus", "status", "binary", "deep", "ssh", "short", "hangup"),
    ],
)
def test_invalid_responses_are_errors_in_plain_text(answer: bytes, kind: type[ProviderError], words: str):
    """With a remedy and without a secret."""

    def once(asked: Any) -> Any:
        def script(connection: Any) -> None:
            connection.sendall(answer)
            connection.shutdown(2)

        return script

    with FakePrometheus(once) as server:
        error = failure(server, timeout=20.0)

    assert type(error) is kind
    assert words in f"{error} {error.hint}"
    assert server.url in str(error)
    assert "a-token" not in f"{error} {error.hint}"
    assert "secret" not in f"{error} {error.hint}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(hang, id="silence"),
        pytest.param(trickle(OK + b"Content-Length: 1000000\r\n\r\n", b" "), id="body"),
        pytest.param(trickle(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"), id="chunks"),
        pytest.param(trickle(OK, b"X-More: y\r\n"), id="headers"),
        pytest.param(trickle(b"HTTP/1.1 500 No\r\nContent-Length: 1000000\r\n\r\n", b""), id="error"),
    ],
)
def test_no_response_takes_longer_than_the_timeout(answer: Any):
    """Without any byte, or with single bytes: the timeout is for the whole response."""
    with FakePrometheus(answer) as server:
        error = failure(server, timeout=0.3)
        wait_for(server.ended.is_set, what="the connection to be hung up")

    assert isinstance(error, ProviderUnreachable)
    assert "in time" in str(error)


def test_an_unreachable_server_is_an_error():
    """A refused connection."""
    with FakeKube() as server:
        pass
    assert isinstance(failure(server), ProviderUnreachable)


def test_one_missed_response_is_a_finding_and_all_missed_are_an_outage():
    """Samples from before the outage are returned after it."""
    with FakeKube() as server:
        two_nodes(server)

        async def check(provider: MetricsServerProvider) -> None:
            await provider.fetch(NOW - 300, NOW)
            await eventually(lambda: len(server.asked) > 6, what="an answer since the fetch")
            server.fault = lambda asked: web.Response(status=503) if asked.resource == NODE_METRICS else None
            before = len(server.asked)
            await eventually(lambda: len(server.asked) > before + 2, what="a failure")
            got = await provider.fetch(NOW - 300, NOW)
            assert "the last request failed" in found(got, FindingKind.QUERY_FAILED)[0].reason
            with pytest.raises(ProviderUnreachable, match="503"):
                await provider.fetch(NOW - 300, NOW)
            server.fault = lambda _: None

            async def back():
                try:
                    return {"a", "b"} == set(values(await provider.fetch(NOW - 300, NOW), CPU))
                except ProviderUnreachable:
                    return False

            await eventually(back, what="the end of it")

        run(server, check)


async def test_a_renewed_token_is_used_at_once(tmp_path: Path):
    """The file is read for each request; in a cluster, it changes every hour."""
    token = tmp_path / "token"
    token.write_text("old\n")

    async def check(server: FakeKube) -> None:
        access = partial(KubeAccess, server.url, "a test", token_file=token)
        provider = MetricsServerProvider(access, resolution=0.02, max_seconds=900.0, timeout=5.0)
        await provider.start()
        try:
            await provider.fetch(NOW - 300, NOW)
            server.token = "new"

            async def refused():
                try:
                    await provider.fetch(NOW - 300, NOW)
                except ProviderRefused as error:
                    return "401" in str(error)
                return False

            async def accepted():
                return not await refused()

            await eventually(refused, what="the old token to be refused")
            token.write_text("new")
            await eventually(accepted, what="the new token to be used")
        finally:
            await provider.close()

    with FakeKube(token="old") as server:
        two_nodes(server)
        await check(server)


def test_close_during_a_wait_is_fast():
    """No task remains, and a later fetch is an error."""
    with FakeKube(delay=30.0) as server:

        async def check(provider: MetricsServerProvider) -> None:
            await eventually(lambda: server.asked, what="a question on its way")
            async with asyncio.timeout(2):
                await provider.close()
            assert {asyncio.current_task()} == asyncio.all_tasks()
            with pytest.raises(ProviderUnreachable, match="not being polled"):
                await provider.fetch(NOW - 300, NOW)

        run(server, check)


# --- in a service ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_service_with_a_kubeconfig(run_service: RunService, tmp_path: Path):
    """KUBE_CONFIG and the name of the provider are sufficient; without the right, the health names it."""
    with FakeKube() as server:
        two_nodes(server)
        for name in ("a", "b"):
            server.usage(name, time=at(time.time() - 5), cpu="1")
        environ = {"KUBE_CONFIG": str(server.kubeconfig(tmp_path / "config"))}
        service = run_service("--provider", "metrics-server", env=environ)
        wait_for(lambda: service.get("/watcher").status == 200, what="the first answer")
        document = service.get("/watcher").json()
        assert "KubernetesMetricsServer" == document["source"]
        metrics = document["data"]["NodeMetricsMap"]["a"]["metrics"]
        assert {(CPU, "CPU", "Latest"), (MEMORY, "Memory", "Latest")} == {
            (metric["name"], metric["type"], metric["operator"]) for metric in metrics
        }
        assert {25.0} == {metric["value"] for metric in metrics}

        server.forbidden.add(("list", NODE_METRICS))
        refused = run_service("--provider", "KubernetesMetricsServer", env=environ)
        wait_for(lambda: "403" in refused.get("/watcher/health").text, what="the refusal")
        assert 503 == refused.get("/watcher/health").status
