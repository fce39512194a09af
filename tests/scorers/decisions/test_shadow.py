"""Shadow mode over HTTP: the choices of other profiles for bound pods, and their confidence intervals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from click.testing import CliRunner

from load_watcher.main import main
from scorers.cluster.table import ClusterTable
from scorers.decisions import shadow_report
from scorers.decisions.pages import DecisionPages
from scorers.decisions.recorder import DecisionRecorder
from scorers.decisions.records import (
    GRACE_S,
    LATER_S,
    LEFT_OUT,
    Choice,
    Load,
    ShadowBinding,
    decode_binding,
)
from scorers.decisions.shadow import MAX_BINDING_AGE_S, MAX_REQUESTS, MOST_WAITING, ShadowMode, settings_of
from scorers.extender.handlers import Extender
from scorers.extender.telemetry import ShadowTelemetry
from scorers.plugin_api.framework import Scores
from scorers.profiles.profiles import PluginSettings, ProfileSettings, read_profiles
from scorers.profiles.ranking import ProfileRunner
from tests.fakes.decisions import DecisionList
from tests.fakes.service import Answer, Live, Protection
from tests.scorers.extender.test_handlers import Clock, asking
from tests.scorers.simulated_cluster import NOW, load, node, pod, table
from tests.waiting import wait_for
from tests.watcher.api.test_telemetry import samples_of
from watcher.api.telemetry import Telemetry
from watcher.core.kubernetes.objects import Node, Pod

NAMES = ("n0", "n1", "n2", "n3")
CPU = {"n0": 70.0, "n1": 45.0, "n2": 20.0, "n3": 5.0}
PROFILES = {
    "packing": PluginSettings("TargetLoadPacking", 1, {"targetUtilization": 60}, ("score",)),
    "spreading": PluginSettings("LoadVariationRiskBalancing", 1, {}, ("score",)),
}


def loads(cpu: Mapping[str, float]) -> Any:
    return load({name: {("CPU", "AVG"): value, ("Memory", "AVG"): (100.0 - value) / 4} for name, value in cpu.items()})


class Served:
    """An extender with shadow mode, in a cluster whose events the test reports."""

    def __init__(
        self,
        *names: str,
        profiles: Mapping[str, PluginSettings] = PROFILES,
        store: DecisionList | None = None,
        clock: Clock | None = None,
        protection: Protection | None = None,
        runs: bool = True,
    ) -> None:
        self.clock, self.store = clock or Clock(), store or DecisionList()
        self.table: ClusterTable = table(
            [node(each, {"cpu": "4", "memory": "8Gi"}) for each in NAMES], loads=loads(CPU)
        )
        self.profiles = {
            name: ProfileRunner(ProfileSettings(name, (plugin,)), self.table) for name, plugin in profiles.items()
        }
        recorder = DecisionRecorder(self.store)
        self.mode = ShadowMode(self.table, self.profiles, names or tuple(PROFILES), recorder, now=self.clock)
        self.pods: dict[str, Pod] = {}
        extender = Extender(self.table, self.profiles, now=self.clock, shadow=self.mode, find_pod=self._find_pod)
        answers = DecisionPages(recorder, self.mode, now=self.clock, pod=lambda _: None, window=lambda: "15m")
        routes = [*extender.routes(), *answers.routes()]
        self.live = Live(routes=routes, lives=[self._life] if runs else [], protection=protection)

    def _find_pod(self, asked: Pod) -> Pod | None:
        """The pod as the API has it; a pod that the test does not report exists, unless its name marks it as late or
        forged."""
        name = asked.metadata.name
        return self.pods.get(name, None if name.startswith(("late", "forged")) else asked)

    @asynccontextmanager
    async def _life(self, _app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(self.mode.run())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def do(self, what: Callable[[], object]) -> None:
        """Call a function in the event loop of the server."""

        async def doing() -> None:
            what()

        self.live.run(doing())

    def event(self, new: Pod | None, *, name: str = "web") -> None:
        """Report a pod event of the watch."""

        def tell() -> None:
            old = self.pods.pop(name, None)
            self.mode.pod_changed(old, new)
            self.table.set_pod(old, new, now=self.clock.now)
            if new is not None:
                self.pods[name] = new

        self.do(tell)

    def bind(self, name: str = "web", *, to: str, milli: int = 1000, **more: Any) -> None:
        """Add a pod, and bind it a moment later."""
        containers = [{"requests": {"cpu": f"{milli}m"}}]
        self.event(pod(name, containers=containers, phase="Pending", **more), name=name)
        self.event(pod(name, node=to, containers=containers, scheduled=self.clock.now, **more), name=name)

    def node_changed(self, name: str, new: Node) -> None:
        def tell() -> None:
            self.mode.node_changed(name, new)
            self.table.set_node(name, new)

        self.do(tell)

    def measured(self, cpu: Mapping[str, float]) -> None:
        self.do(lambda: self.table.set_load(loads(cpu), now=self.clock.now))

    def after(self, seconds: float) -> None:
        """Advance the clock, and read the load again."""

        def look() -> None:
            self.clock.now += seconds
            self.mode.read_later_loads()

        self.do(look)

    def ask(self, query: str = "") -> Answer:
        return self.live.ask(f"/scheduler/shadow{query}")

    def report(self, *, seen: int = 1, query: str = "") -> dict[str, Any]:
        """Return the report after this number of bindings was evaluated."""

        def there() -> dict[str, Any] | None:
            answer = self.ask(query)
            assert answer.status == 200, answer.body
            found: dict[str, Any] = answer.json()
            done = found["bindings"] + sum(each["count"] for each in found["left_out"])
            return found if done >= seen else None

        found = wait_for(there, what=f"{seen} bindings in the report")
        assert found is not None
        return found

    def left_out(self, *, seen: int = 1) -> dict[str, int]:
        return {each["reason"]: each["count"] for each in self.report(seen=seen)["left_out"]}

    def explained(self, profile: str, *names: str) -> dict[str, float]:
        body = json.dumps(asking(*names, milli=1000)).encode()
        answer = self.live.ask(f"/scheduler/{profile}/explain", method="POST", body=body).json()
        return {each["name"]: each["score"] for each in answer["nodes"]}


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with made.live:
        yield made


def of(report: dict[str, Any], profile: str) -> dict[str, Any]:
    (found,) = (each for each in report["profiles"] if each["profile"] == profile)
    return dict(found)


def kinds(report: dict[str, Any], profile: str) -> dict[str, int]:
    return {kind: of(report, profile)[kind] for kind in ("same", "tied", "other", "none")}


def counters(mode: ShadowMode) -> dict[tuple[str, ...], float]:
    """The samples of a metric on /metrics, by the values of its labels."""
    telemetry, beginning = Telemetry(version="1"), "load_watcher_scheduler_shadow_"
    telemetry.add(ShadowTelemetry(mode))
    return {
        (name.removeprefix(beginning).removesuffix("_total"), *(value for _, value in sorted(labels))): number
        for (name, labels), number in samples_of(telemetry.exposition()).items()
        if name.startswith(beginning)
    }


# --- one binding -----------------------------------------------------------------------------------------------------


def test_a_bound_pod_is_compared_with_the_choice_of_each_profile(served: Served) -> None:
    """The choice is that of explain before the binding; the report has the load of both nodes then and 15 minutes
    later."""
    best = {name: max(NAMES, key=served.explained(name, *NAMES).__getitem__) for name in PROFILES}
    assert {"packing": "n2", "spreading": "n3"} == best
    served.bind(to="n2")
    found = served.report()
    assert (1, {"asked": 0, "estimated": 1}, []) == (found["bindings"], found["candidates"], found["left_out"])
    assert {"same": 1, "tied": 0, "other": 0, "none": 0} == kinds(found, "packing")
    assert {"same": 0, "tied": 0, "other": 1, "none": 0} == kinds(found, "spreading")
    counted = counters(served.mode)
    for name in PROFILES:
        assert kinds(found, name) == {kind: counted["bindings", kind, name] for kind in kinds(found, name)}
    spreading = of(found, "spreading")
    now, later = spreading["difference"]["CPU"]["now"], spreading["difference"]["CPU"]["later"]
    assert (1, CPU["n3"] - CPU["n2"], None, 25.0) == (now["count"], now["mean"], now["low"], spreading["pod_cpu"])
    assert (CPU["n2"] - CPU["n3"]) / 4 == spreading["difference"]["Memory"]["now"]["mean"]
    assert (0, None, 1, 0) == tuple(later[key] for key in ("count", "mean", "pending", "unknown"))
    served.measured({**CPU, "n2": 50.0, "n3": 8.0})
    served.after(LATER_S - 1)
    assert 1 == of(served.report(), "spreading")["difference"]["CPU"]["later"]["pending"]
    served.after(2)
    later = of(served.report(), "spreading")["difference"]["CPU"]["later"]
    assert (1, -42.0, 0, 0) == tuple(later[key] for key in ("count", "mean", "pending", "unknown"))


def test_the_scores_do_not_count_the_pod_itself(served: Served) -> None:
    """With the pod's core, n2 would score less; without it, TargetLoadPacking chooses n2."""
    served.bind(to="n2", milli=1000)
    assert 1 == kinds(served.report(), "packing")["same"]
    assert "n2" != max(NAMES, key=served.explained("packing", *NAMES).__getitem__)  # of the next pod
    assert 1 == served.table.pods[served.table.row["n2"]]


def test_an_equal_score_as_sent_is_not_another_choice(served: Served) -> None:
    served.measured(dict.fromkeys(NAMES, 30.0))
    served.bind(to="n3")
    assert {"same": 0, "tied": 1, "other": 0, "none": 0} == kinds(served.report(), "packing")


def test_a_profile_whose_filters_reject_all_nodes_chooses_none() -> None:
    picky = PluginSettings("HighLoadFilter", 1, {"usageThresholds": {"cpu": 1}}, ("filter",))
    made = Served("picky", profiles={"picky": picky})
    with made.live:
        made.bind(to="n0")
        assert {"same": 0, "tied": 0, "other": 0, "none": 1} == kinds(made.report(), "picky")


# --- candidates ------------------------------------------------------------------------------------------------------


def test_the_nodes_of_a_request_are_the_candidates(served: Served) -> None:
    """Those before the extender's own filters; n3 was not in the request."""
    for verb, names in (("filter", ("n0", "n1", "n2")), ("prioritize", ("n0", "n1"))):
        body = json.dumps(asking(*names)).encode()
        assert 200 == served.live.ask(f"/scheduler/packing/{verb}", method="POST", body=body).status
    served.bind(to="n0")
    found = served.report()
    assert {"asked": 1, "estimated": 0} == found["candidates"]
    difference = of(found, "spreading")["difference"]["CPU"]["now"]["mean"]
    assert CPU["n2"] - CPU["n0"] == difference


@pytest.mark.parametrize("reported", [1, 2], ids=["between the requests", "after both"])
def test_the_nodes_of_a_pod_that_the_api_reports_later_are_kept(served: Served, reported: int) -> None:
    """Those of filter, although many forged requests follow."""
    asked = (("filter", ("n0", "n1", "n2")), ("prioritize", ("n0", "n1")))
    waiting = pod("late", uid="late", containers=[{"requests": {"cpu": "100m"}}], phase="Pending")
    for number, (verb, names) in enumerate(asked, start=1):
        body = json.dumps(asking(*names, name="late")).encode()
        assert 200 == served.live.ask(f"/scheduler/packing/{verb}", method="POST", body=body).status
        if number == reported:
            served.event(waiting, name="late")
    for number in range(MAX_REQUESTS if reported == 1 else 0):
        body = json.dumps(asking("n3", name=f"forged-{number}")).encode()
        served.live.ask("/scheduler/packing/filter", method="POST", body=body)
    served.bind("late", uid="late", to="n0")
    found = served.report()
    assert {"asked": 1, "estimated": 0} == found["candidates"]
    difference = of(found, "spreading")["difference"]["CPU"]["now"]["mean"]
    assert CPU["n2"] - CPU["n0"] == difference


def unfit(served: Served, how: str) -> dict[str, Any]:
    """Make n3 unfit for a pod that is on n1; return the fields of the pod for that."""
    if how == "selector":
        for name in ("n1", "n2"):
            served.node_changed(name, node(name, {"cpu": "4", "memory": "8Gi"}, labels={"disk": "ssd"}))
        return {"nodeSelector": {"disk": "ssd"}}
    if how == "full":
        most = [{"requests": {"cpu": "3500m"}}]
        served.event(pod("big", node="n3", containers=most, scheduled=NOW - 1e4), name="big")
        return {}
    if how == "pods":
        served.event(pod("small", node="n3", scheduled=NOW - 1e4), name="small")
        for name in NAMES:
            served.node_changed(name, node(name, {"cpu": "4", "memory": "8Gi", "pods": "1" if name == "n3" else "9"}))
        return {}
    served.node_changed("n3", kept_off("n3", {"unschedulable": True} if how == "cordoned" else TAINTED))
    return {}


TAINTED = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}


def kept_off(name: str, spec: dict[str, Any]) -> Node:
    plain = msgspec.to_builtins(node(name, {"cpu": "4", "memory": "8Gi"}))
    return msgspec.convert({**plain, "spec": spec}, Node)


@pytest.mark.parametrize("how", ["selector", "full", "pods", "cordoned", "tainted"])
def test_without_a_request_unfit_nodes_are_not_candidates(served: Served, how: str) -> None:
    served.bind(to="n1", **unfit(served, how))
    assert CPU["n2"] - CPU["n1"] == of(served.report(), "spreading")["difference"]["CPU"]["now"]["mean"]


def test_a_taint_of_the_actual_node_is_tolerated(served: Served) -> None:
    for name in ("n1", "n3"):
        served.node_changed(name, kept_off(name, TAINTED))
    served.bind(to="n1")
    assert CPU["n3"] - CPU["n1"] == of(served.report(), "spreading")["difference"]["CPU"]["now"]["mean"]


REQUIRED: dict[str, Any] = {
    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
}
PREFERRED: dict[str, Any] = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"affinity": REQUIRED}, "constraints"),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, "constraints"),
        ({"affinity": PREFERRED}, ""),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, ""),
        ({"nodeSelector": {"disk": "none has it"}}, "no_choice"),
    ],
)
def test_a_pod_with_rules_that_are_not_evaluated_is_left_out(served: Served, spec: dict[str, Any], reason: str) -> None:
    served.bind(to="n1", **spec)
    assert ({reason: 1} if reason else {}) == served.left_out()


# --- bindings that are left out --------------------------------------------------------------------------------------


def test_bindings_that_are_left_out_are_counted_by_reason(served: Served) -> None:
    served.bind("a", to="nobody-knows")
    served.event(pod("c", phase="Pending"), name="c")
    served.clock.now += MAX_BINDING_AGE_S + 100
    served.event(pod("c", node="n0", scheduled=served.clock.now - MAX_BINDING_AGE_S - 1), name="c")
    assert {"node_unknown": 1, "seen_late": 1} == served.left_out(seen=2)
    served.measured({"n1": 30.0, "n2": 30.0, "n3": 30.0})
    served.bind("d", to="n0")
    served.measured({"n0": 30.0})
    served.bind("e", to="n0")
    assert {"no_load": 2, "node_unknown": 1, "seen_late": 1} == served.left_out(seen=4)
    counted = {reason: number for (name, reason, *_), number in counters(served.mode).items() if name == "left_out"}
    assert {**dict.fromkeys(LEFT_OUT, 0), "no_load": 2, "node_unknown": 1, "seen_late": 1} == counted


@pytest.mark.parametrize("how", ["before us", "mirror", "ended", "again"])
def test_other_events_are_not_counted_as_bindings(served: Served, how: str) -> None:
    if how == "before us":
        served.event(pod("old", node="n0", scheduled=NOW - 5), name="old")
    elif how == "mirror":
        owner = {"apiVersion": "v1", "kind": "Node", "name": "n0", "controller": True}
        metadata = {"ownerReferences": [owner], "annotations": {"kubernetes.io/config.mirror": "7c2f"}}
        served.event(pod("proxy", node="n0", scheduled=NOW + 5, metadata=metadata), name="proxy")
    elif how == "ended":
        served.event(pod("job", node="n0", scheduled=NOW + 5, phase="Succeeded"), name="job")
    else:
        served.bind(to="n0")
        served.event(pod("web", node="n0", scheduled=NOW, metadata={"labels": {"a": "b"}}))
        assert 1 == served.report()["bindings"]
        return
    served.bind("other", to="n0")
    found = served.report()
    assert (1, []) == (found["bindings"], found["left_out"])


def test_a_pod_that_is_listed_as_bound_after_the_start_counts(served: Served) -> None:
    """The watch broke, and the list has the pod."""
    served.clock.now += 60
    served.event(pod("web", node="n0", scheduled=served.clock.now - 2))
    assert 1 == served.report()["bindings"]


def test_too_many_bindings_are_counted_in_one_record() -> None:
    """Shadow mode does not evaluate any here."""
    made = Served(runs=False)
    with made.live:

        def flood() -> None:
            for i in range(MOST_WAITING + 25):
                made.mode.pod_changed(pod(f"p{i}"), pod(f"p{i}", node="n0", scheduled=NOW))

        made.do(flood)
        assert {"too_many": 25} == made.left_out(seen=25)
        assert 25 == counters(made.mode)["left_out", "too_many"]


class Broken:
    name = "broken"

    def score(self, *_: object, **__: object) -> Scores:
        raise RuntimeError("no score today")


def test_a_plug_in_that_fails_loses_the_binding_and_is_logged_once(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    profile = served.profiles["packing"]
    profile.scoring = ((profile.scoring[0][0], Broken()),)
    for name in ("a", "b"):
        served.bind(name, to="n0")
    assert {"failed": 2} == served.left_out(seen=2)
    assert ["shadow mode failed for pod default/a (further failures are only counted): no score today"] == [
        record.message for record in caplog.records if record.name == "scorers.decisions.shadow"
    ]


# --- restarts and other settings -------------------------------------------------------------------------------------


def test_after_a_restart_the_later_load_is_read(served: Served) -> None:
    served.bind(to="n0")
    served.report()
    clock = Clock()
    clock.now = NOW + 60
    again = Served(store=served.store, clock=clock)
    with again.live:
        again.measured({**CPU, "n0": 60.0})
        again.after(LATER_S)

        def later() -> Any:
            found = of(again.report(), "spreading")["difference"]["CPU"]["later"]
            return found if found["count"] else None

        assert 5.0 - 60.0 == wait_for(later, what="the later load")["mean"]


def test_a_later_load_that_was_not_read_in_time_is_unknown(served: Served) -> None:
    served.bind(to="n0")
    served.report()
    served.after(LATER_S + GRACE_S + 1)
    later = of(served.report(), "spreading")["difference"]["CPU"]["later"]
    assert (0, 0, 1) == (later["count"], later["pending"], later["unknown"])


def test_choices_with_other_settings_are_excluded(served: Served) -> None:
    served.bind(to="n0")
    served.report()
    other = PluginSettings("TargetLoadPacking", 1, {"targetUtilization": 70}, ("score",))
    served.do(lambda: served.profiles.update(packing=ProfileRunner(ProfileSettings("packing", (other,)), served.table)))
    found = served.report()
    assert (0, 1) == tuple(of(found, "packing")[key] for key in ("bindings", "with_other_settings"))
    assert 1 == of(found, "spreading")["bindings"]


def test_the_report_covers_the_requested_range(served: Served) -> None:
    served.bind("a", to="n0")
    served.report()
    served.clock.now += 3600
    served.bind("b", to="n1")
    assert 2 == served.report(seen=2)["bindings"]
    assert 1 == served.report(query="?from=-30m")["bindings"]
    assert 0 == served.report(seen=0, query="?from=-50m&to=-40m")["bindings"]


def test_invalid_requests_and_an_unreadable_store_are_errors(served: Served) -> None:
    assert "from='soon' is not a time" == served.ask("?from=soon").error["message"]
    assert "bad_request" == served.ask("?from=now&to=-1h").error["code"]
    served.store.away = "the disk hangs"
    assert (503, "decisions_unavailable") == ((answer := served.ask()).status, answer.error["code"])
    served.mode.names = ()
    assert (404, "shadow mode is off") == ((answer := served.ask()).status, answer.error["message"])
    protected = Served(protection=Protection(token="secret"))
    with protected.live:
        assert 401 == protected.ask().status


def test_shadow_mode_is_off_without_stored_decisions(served: Served) -> None:
    made = Served(store=DecisionList(kept=0.0))
    with made.live:
        made.bind(to="n0")
        assert 'set store.decisions = "24h"' in made.ask().error["hint"]


@pytest.mark.parametrize(
    ("shadow", "message"),
    [
        (["default", "packng"], "unknown profile 'packng'"),
        (["default", "default"], "default is listed twice"),
        ("default", "'default' is not a list of profile names"),
        ([1], "[1] is not a list of profile names"),
    ],
)
def test_unknown_profiles_in_the_settings_are_refused(shadow: object, message: str, tmp_path: Path) -> None:
    plugins = {"plugins": [{"name": "TargetLoadPacking"}]}
    _, problems, _ = read_profiles({"default": plugins, "packing": plugins, "shadow": shadow}, cwd=tmp_path)
    assert [("scheduler.shadow", message)] == [(each.key, each.message) for each in problems]


def test_a_profile_may_have_the_name_shadow(tmp_path: Path) -> None:
    profiles, problems, _ = read_profiles({"shadow": {"plugins": [{"name": "TargetLoadPacking"}]}}, cwd=tmp_path)
    assert (["shadow"], ()) == ([each.name for each in profiles], problems)


# --- the report ------------------------------------------------------------------------------------------------------


def binding(at: float, *, other: bool, cpu: float = 0.0, uid: str = "") -> ShadowBinding:
    choice = Choice("s", "other", "b") if other else Choice("s", "same", "a")
    values: dict[str, Load] = {"a": (50.0, 50.0), "b": (50.0 + cpu, None)}
    return ShadowBinding(at, uid=uid or f"u{at}", node="a", choices={"p": choice}, load=values, later=values)


def reported(bindings: Sequence[ShadowBinding]) -> dict[str, Any]:
    return of(shadow_report.report(bindings, {"p": "s"}, now=1e9), "p")


def test_wilsons_interval_equals_published_values() -> None:
    """Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for hits, number, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = shadow_report.wilson(hits / number, number)
        assert (low, high) == tuple(round(end, 4) for end in found)


def test_the_bootstrap_interval_covers_the_mean_as_often_as_stated() -> None:
    """About 95 % of 200 samples of 40 blocks, each with an effect of its own, contain 0."""
    chance = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        counts = chance.integers(1, 20, 40).astype(float)
        sums = chance.normal(counts * chance.normal(0.0, 3.0, 40), np.sqrt(counts))
        low, high = shadow_report.bootstrap(sums, counts)
        held += low <= 0.0 <= high
    assert 178 <= held <= 198


def test_the_report_is_deterministic_and_has_no_interval_of_few_blocks() -> None:
    chance = np.random.default_rng(1)
    many = [binding(i * 90.0, other=i % 3 == 0, cpu=float(chance.normal(-8, 4))) for i in range(300)]
    found = reported(many)
    assert found == reported(many[::-1])
    cpu = found["difference"]["CPU"]
    assert (100, 30) == (cpu["now"]["count"], cpu["now"]["blocks"])
    assert cpu["now"]["low"] < cpu["now"]["mean"] < cpu["now"]["high"] < -6.0
    memory = found["difference"]["Memory"]["now"]
    assert (0, None, None, 100) == tuple(memory[key] for key in ("count", "mean", "low", "unknown"))
    few = reported(many[:40])["difference"]["CPU"]["now"]
    assert (None, True) == (few["low"], few["mean"] is not None)
    none = reported([])
    assert (0, None) == (none["bindings"], none["other_share"]["value"])


def test_bindings_of_one_block_count_as_one() -> None:
    """Ten blocks, in half of which all pods have another node, are as certain as ten bindings, not as three hundred."""
    together = [binding(block * 900.0 + i, other=block % 2 == 0) for block in range(10) for i in range(30)]
    apart = [binding(block * 900.0 + i, other=i % 2 == 0) for block in range(10) for i in range(30)]
    wide, narrow = (reported(each)["other_share"] for each in (together, apart))
    assert (0.5, 0.5) == (wide["value"], narrow["value"])
    few = (1.96 / 2.262) ** 2  # ten quarter hours do not show their differences well
    assert (9.0 * few, 300.0 * few) == pytest.approx((wide["effective"], narrow["effective"]), rel=1e-3)
    assert wide["high"] - wide["low"] > 4 * (narrow["high"] - narrow["low"])
    alike = [each for each in together if each.choices["p"].kind == "same"]
    assert 5.0 == reported(alike)["other_share"]["effective"]  # nothing else was observed in five quarter hours


def test_a_binding_that_two_replicas_recorded_counts_once() -> None:
    """The more complete record counts."""
    seen = binding(10.0, other=True, uid="u")
    blind = ShadowBinding(9.0, uid="u", node="a", left_out="seen_late")
    found = shadow_report.report([blind, seen, seen], {"p": "s"}, now=1e9)
    assert (1, []) == (found["bindings"], found["left_out"])


def test_a_decoded_binding_is_equal_and_invalid_bytes_are_ignored() -> None:
    made = binding(10.0, other=True)
    assert made == decode_binding(made.encode())
    assert decode_binding(b"\x00") is None
    one = ProfileSettings("p", (PluginSettings("A", 1, {"x": 1, "y": 2}, ("score",)),))
    same = ProfileSettings("q", (PluginSettings("A", 1, {"y": 2, "x": 1}, ("score",)),))
    assert settings_of(one) == settings_of(same) != settings_of(ProfileSettings("p", (), True))


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_and_json(served: Served) -> None:
    served.bind(to="n2")
    served.bind("db", to="nowhere")
    served.report(seen=2)
    url = f"http://127.0.0.1:{served.live.port}"
    reported = CliRunner().invoke(main, ["shadow", "--url", url, "--since", "1h"])
    assert 0 == reported.exit_code, reported.output
    for text in (
        "1 pods bound",
        "load from Test",
        "spreading",
        "-15.0 (?)",
        "100% (21% to 100%)",
        "1: the node is unknown to the extender",
        "notice: spreading: LoadVariationRiskBalancing with these arguments overloads more nodes",
        "the pods of this cluster request ",
    ):
        assert text in " ".join(reported.output.split())
    as_json = CliRunner().invoke(main, ["shadow", "--url", url, "-o", "json"])
    assert 1 == json.loads(as_json.stdout)["bindings"]
    served.mode.names = ()
    off = CliRunner().invoke(main, ["shadow", "--url", url])
    assert (2, True) == (off.exit_code, 'shadow = ["default"' in off.stderr)
