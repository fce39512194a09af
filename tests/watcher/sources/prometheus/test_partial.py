"""Partial responses of a Thanos, a Mimir or a VictoriaMetrics: which samples are used, and which decisions are not
made."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.prometheus import Asked, FakePrometheus, matrix, vector
from tests.fetches import QUICK, sections, use
from watcher.model import FindingKind, Remedy
from watcher.sources.base import Fetch, QueryFailure
from watcher.sources.errors import ProviderPartial
from watcher.sources.prometheus.metrics import SEARCH_EVERY_FETCHES
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.settings import QuerySettings

NOW = 1_700_000_000.0
CPU = "instance:node_cpu:ratio"
MEMORY = "instance:node_memory_utilisation:ratio"
STORAGE = "instance_device:node_disk_io_time_seconds:rate5m"
WARNING = "receive series from Addr: store-2:10901: rpc error: code = Unavailable"

Labels = Mapping[str, str]


@dataclass
class Thanos:
    """Series of two stores, of which the second may be `away`: then each response lacks its series, with a warning."""

    first: Mapping[str, Sequence[Labels]]
    second: Mapping[str, Sequence[Labels]] = field(default_factory=dict)
    away: bool = False
    says: Mapping[str, Any] = field(default_factory=lambda: {"warnings": [WARNING]})

    def answer(self, asked: Asked) -> bytes:
        more = self.says if self.away else {}
        stores = [self.first] if self.away else [self.first, self.second]
        rows = [row for store in stores for name, rows in store.items() if name in asked.query for row in rows]
        if 'exported_pod!=""' in asked.query:
            rows = [row for row in rows if row.get("exported_pod")]
        if asked.query.startswith(("count", "group", "topk", "sum by", "max by")):
            return vector(*rows, **more)
        return matrix(*((row, [(NOW - 30, "0.5"), (NOW - 15, "0.25"), (NOW, "0.25")]) for row in rows), **more)


def nodes(*names: str, **more: str) -> list[Labels]:
    return [{"node": name, "instance": f"{name}:9100", **more} for name in names]


Work = Callable[[PrometheusProvider, Thanos], Awaitable[Any]]


def play(thanos: Thanos, work: Work, **settings: Any) -> Any:
    """Run `work` with a provider of CPU only."""
    given = {**QUICK, "backoff": (), **settings}

    with FakePrometheus(thanos.answer) as server:
        return use(
            lambda: PrometheusProvider(*sections(address=server.url, **given)),
            lambda provider: work(provider, thanos),
        )


async def whole_then_partial(provider: PrometheusProvider, thanos: Thanos) -> Fetch:
    await provider.fetch(NOW - 60, NOW)
    thanos.away = True
    return await provider.fetch(NOW - 60, NOW)


async def partial_at_once(provider: PrometheusProvider, thanos: Thanos) -> Fetch:
    thanos.away = True
    return await provider.fetch(NOW - 60, NOW)


# --- warnings of partial responses -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("says", "shown"),
    [
        ({"warnings": [WARNING]}, WARNING),
        ({"warnings": ["PromQL warning: odd", WARNING, "more", "and more"]}, f"{WARNING} (and 2 more)"),
        ({"isPartial": True}, "the response is marked as partial (isPartial)"),
        ({"isPartial": True, "warnings": ["vmstorage-1 is away"]}, "vmstorage-1 is away"),
    ],
)
def test_the_warning_of_a_partial_response_is_passed_on(says: Mapping[str, Any], shown: str):
    """With the metric; the returned samples are true and used."""
    thanos = Thanos({CPU: nodes("a")}, {CPU: nodes("b")}, says=says)
    got: Fetch = play(thanos, whole_then_partial)

    assert {CPU: shown} == got.partial
    assert [("a",)] == [batch.nodes for batch in got.batches]
    assert () == got.failures


@pytest.mark.slow
@pytest.mark.parametrize(
    "says",
    [{}, {"isPartial": False}, {"warnings": []}, {"infos": ["x"]}, {"warnings": ["PromQL warning: odd"]}],
    ids=str,
)
def test_other_warnings_do_not_make_a_response_partial(says: Mapping[str, Any]):
    """A remark on the query is only a finding."""
    got: Fetch = play(Thanos({CPU: nodes("a", "b")}, says=says), whole_then_partial)

    assert {} == got.partial
    remarks = [(each.kind, each.remedy, each.metric, each.reason) for each in got.findings]
    expected = (FindingKind.QUERY_FAILED, Remedy.REPORTED, CPU, "warning of the source: PromQL warning: odd")
    assert remarks == ([expected] if "PromQL" in str(says) else [])


# --- withheld values -------------------------------------------------------------------------------------------------


def failure_of(got: Fetch, metric: str) -> ProviderPartial:
    (failure,) = (each for each in got.failures if each.metric == metric)
    assert isinstance(failure, QueryFailure)
    assert isinstance(failure.error, ProviderPartial)
    assert WARNING in str(failure.error)
    return failure.error


def test_values_that_are_computed_from_a_part_are_withheld():
    """An expression over the remaining CPUs of a node would give another, perhaps lower, number."""
    thanos = Thanos({CPU: nodes("a"), STORAGE: nodes("a")}, {CPU: nodes("b")})
    query = QuerySettings(f"avg by (node) ({CPU})", "ratio", guard=CPU)
    got: Fetch = play(thanos, whole_then_partial, metrics=("CPU", "Storage"), queries={"CPU": query})

    assert [STORAGE] == [batch.metric.name for batch in got.batches]
    assert "CPU is computed from several series" in str(failure_of(got, CPU))
    assert {CPU: WARNING, STORAGE: WARNING} == got.partial


@pytest.mark.slow
@pytest.mark.parametrize(
    ("disks", "work", "taken"),
    [
        pytest.param(("sda",), whole_then_partial, True, id="one disk"),
        pytest.param(("sda", "sdb"), whole_then_partial, False, id="two disks"),
        pytest.param(("sda",), partial_at_once, False, id="never seen whole"),
    ],
)
def test_a_metric_of_several_series_is_withheld(disks: Sequence[str], work: Work, taken: bool):
    """Of two disks the busier one counts, and it may be missing; only a complete response shows their number."""
    series = [row for disk in disks for row in nodes("a", device=disk)]
    thanos = Thanos({CPU: nodes("a"), STORAGE: series[:1]}, {STORAGE: series[1:]})
    got: Fetch = play(thanos, work, metrics=("CPU", "Storage"))

    assert taken == (STORAGE in {batch.metric.name for batch in got.batches})
    assert CPU in {batch.metric.name for batch in got.batches}
    if not taken:
        failure_of(got, STORAGE)


def test_if_all_values_are_withheld_the_fetch_has_no_samples():
    """Then the last windows stay, as in an outage."""
    query = QuerySettings(f"avg by (node) ({CPU})", "ratio")

    async def work(provider: PrometheusProvider, thanos: Thanos) -> None:
        with pytest.raises(ProviderPartial, match="store-2") as caught:
            await whole_then_partial(provider, thanos)
        assert "recording rule" in caught.value.hint

    play(Thanos({CPU: nodes("a")}), work, queries={"CPU": query})


# --- decisions that wait for a complete response ---------------------------------------------------------------------


def plan_of(got: Fetch) -> tuple[str, str]:
    return got.plans[CPU].expression, got.plans[CPU].node_label


def test_a_rule_that_is_missing_for_a_while_stays_the_expression():
    """The raw series would begin with an empty history; discovery is repeated once the response is complete."""
    raw = "node_cpu_seconds_total"

    async def work(provider: PrometheusProvider, thanos: Thanos) -> None:
        plans = []
        for number in range(3 * SEARCH_EVERY_FETCHES):
            thanos.away = number > 0
            got = await provider.fetch(NOW - 60, NOW)
            plans.append(plan_of(got))
            assert bool(got.partial) == thanos.away
        assert {(CPU, "node")} == set(plans)

    play(Thanos({raw: nodes("a")}, {CPU: nodes("a", "b")}), work)


def test_a_label_of_a_partial_response_is_not_final():
    """The first response lacks the series that only have an instance: the label is discovered again."""
    unnamed = [{"instance": "b:9100"}, {"instance": "c:9100"}]

    async def work(provider: PrometheusProvider, thanos: Thanos) -> None:
        thanos.away = True
        assert (CPU, "node") == plan_of(await provider.fetch(NOW - 60, NOW))
        thanos.away = False
        for _ in range(SEARCH_EVERY_FETCHES):
            got = await provider.fetch(NOW - 60, NOW)
        assert (CPU, "instance without its port") == plan_of(got)

    play(Thanos({CPU: nodes("a")}, {CPU: unnamed}), work)


def test_a_metric_that_a_partial_response_lacks_is_not_reported_as_absent():
    """It is a failure until the response is complete."""

    async def work(provider: PrometheusProvider, thanos: Thanos) -> None:
        got = await partial_at_once(provider, thanos)
        assert "it is unknown whether there are series for CPU" in str(failure_of(got, CPU))
        assert [] == [each for each in got.findings if each.kind is FindingKind.NO_SERIES]
        thanos.away = False
        got = await provider.fetch(NOW - 60, NOW)
        assert {CPU, MEMORY} == {batch.metric.name for batch in got.batches}

    play(Thanos({MEMORY: nodes("a")}, {CPU: nodes("a"), MEMORY: nodes("b")}), work, metrics=("CPU", "Memory"))


def test_names_of_nodes_are_kept_during_a_partial_response():
    """An address whose name is missing keeps its name; a new one is queried until the response is complete."""
    by_address = [{"instance": "1:9100"}, {"instance": "2:9100"}]
    names = [{"instance": "1:9100", "nodename": "a"}, {"instance": "2:9100", "nodename": "b"}]
    thanos = Thanos({CPU: by_address, "node_uname_info": names[:1]}, {"node_uname_info": names[1:]})

    async def work(provider: PrometheusProvider, thanos: Thanos) -> None:
        found = []
        for number in range(2 * SEARCH_EVERY_FETCHES):
            thanos.away = SEARCH_EVERY_FETCHES <= number < 2 * SEARCH_EVERY_FETCHES - 1
            got = await provider.fetch(NOW - 60, NOW)
            found.append(got.batches[0].nodes)
            assert () == got.findings
        assert [("a", "b")] * 2 * SEARCH_EVERY_FETCHES == found
        assert {} == got.partial

    play(thanos, work)


def test_a_metric_without_samples_in_a_partial_response_is_not_gone():
    """All of its nodes are in the missing store: the response without samples counts as partial."""
    got: Fetch = play(Thanos({}, {CPU: nodes("a")}), whole_then_partial)

    assert () == got.batches
    assert {CPU: WARNING} == got.partial
    assert (CPU, "node") == plan_of(got)


def test_pods_are_not_summed_from_a_partial_response():
    """A container of a pod may be missing."""
    pods = [{**row, "namespace": "n", "pod": "p", "container": "c"} for row in nodes("a")]

    async def work(provider: PrometheusProvider, thanos: Thanos) -> None:
        assert (("n", "p"),) == (await provider.fetch_pods(NOW)).usage.pods
        thanos.away = True
        with pytest.raises(ProviderPartial, match="store-2"):
            await provider.fetch_pods(NOW)

    play(Thanos({"container_cpu_usage_seconds_total": pods, "container_memory_rss": pods}), work)


def test_the_warning_of_the_source_shows_no_secrets():
    """Any client can read it."""
    secret = "s3cret-tenant"
    thanos = Thanos({CPU: nodes("a")}, says={"warnings": [f"no store of {secret}", f"PromQL warning: {secret}"]})
    got: Fetch = play(thanos, whole_then_partial, headers={"X-Scope-OrgID": secret})

    assert {CPU: "no store of ***"} == got.partial
    assert ["warning of the source: PromQL warning: ***"] == [each.reason for each in got.findings]
