"""The decision log over HTTP: decisions are recorded with their outcomes, and a failure of the log fails no request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

from scorers.cluster.table import ClusterTable
from scorers.decisions.log import DECISION_SPAN_S, HELD_S, DecisionLog, RankedResponse
from scorers.decisions.pages import DecisionPages
from scorers.decisions.recorder import MOST_NEW, DecisionRecorder
from scorers.decisions.shadow import ShadowMode
from scorers.extender.handlers import Extender
from scorers.plugin_api.framework import Scores
from scorers.plugin_api.wire import ExtenderBindingArgs
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner, RankResult
from tests.fakes.decisions import DecisionList
from tests.fakes.service import Answer, Live, Protection
from tests.scorers.extender.test_handlers import BINDING, Clock, asking
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows, table
from watcher.core.kubernetes.objects import Pod

NAMES = [f"n{i:02d}" for i in range(15)]
PLUGINS = (
    PluginSettings("TargetLoadPacking", 3, {"targetUtilization": 50}, ("score",)),
    PluginSettings("LoadVariationRiskBalancing", 1, {}, ("score",)),
    PluginSettings("HighLoadFilter", 1, {"usageThresholds": {"cpu": 90}}, ("filter",)),
)


def a_cluster() -> ClusterTable:
    """n00 has 95 % CPU load, n01 86 %, and each further node 6 percentage points less than the node before."""
    loads = {
        name: {("CPU", "AVG"): 92.0 - 6 * i if i else 95.0, ("Memory", "AVG"): 40.0} for i, name in enumerate(NAMES)
    }
    return table([node(name, {"cpu": "4", "memory": "8Gi"}) for name in NAMES], loads=load(loads, sampled=NOW - 12))


class Served:
    """An extender with a decision log, and the pods of its cluster."""

    def __init__(
        self,
        *,
        protection: Protection | None = None,
        store: DecisionList | None = None,
        most_held: int = 1 << 20,
        plugins: tuple[PluginSettings, ...] = PLUGINS,
        reported_late: bool = False,
    ) -> None:
        """`reported_late`: the API has only the pods of `event`."""
        self.table, self.clock, self.store = a_cluster(), Clock(), store or DecisionList()
        self.pods: dict[str, Pod] = {}
        settings = ProfileSettings("p", plugins, bind=True)
        recorder = DecisionRecorder(self.store)
        self.log = DecisionLog(
            recorder,
            self.table,
            now=self.clock,
            window=lambda: "15m",
            most_held=most_held,
            is_known=lambda decision: not reported_late or f"{decision.namespace}/{decision.name}" in self.pods,
        )
        profiles = {name: ProfileRunner(replace(settings, name=name), self.table) for name in ("p", "q")}
        extender = Extender(self.table, profiles, now=self.clock, bind=self._bind, decisions=self.log)
        shadow = ShadowMode(self.table, profiles, (), recorder, now=self.clock)
        pages = DecisionPages(recorder, shadow, now=self.clock, pod=self.pods.get, window=lambda: "15m")
        self.live = Live(routes=[*extender.routes(), *pages.routes()], protection=protection)

    async def _bind(self, args: ExtenderBindingArgs) -> None:
        self.table.reserve(pod(args.name, uid=args.uid), args.node, now=self.clock.now, until=NOW + 1e6)

    def post(self, verb: str, body: object, *, profile: str = "p") -> Any:
        answer = self.live.ask(f"/scheduler/{profile}/{verb}", method="POST", body=json.dumps(body).encode())
        assert answer.status == 200, answer.body
        return answer.json()

    def place(self, *names: str, pod: str = "web", after: float = 0.0) -> None:
        """The two requests of kube-scheduler in one attempt: filter, then prioritize for the nodes that passed."""
        self.clock.now += after
        left = self.post("filter", asking(*names, name=pod))["NodeNames"]
        self.clock.now += 0.01
        self.post("prioritize", asking(*left, name=pod))

    def event(self, name: str = "web", *, node: str | None = "", uid: str | None = None, after: float = 0.5) -> None:
        """Report a pod event of the watch: the pod is on a node, on none (""), or deleted (None)."""
        self.settle()
        self.clock.now += after
        key = f"default/{name}"
        old = self.pods.pop(key, None)
        if node is not None:
            self.pods[key] = pod(name, node=node, uid=uid)
        self.log.pod_changed(old, self.pods.get(key))
        self.table.set_pod(old, self.pods.get(key), now=self.clock.now)

    def settle(self) -> None:
        """Wait until the callbacks of the last response have run: another request is answered after them. Then the test
        may access objects of the event loop."""
        assert self.live.ask("/healthz").status == 200

    def ask(self, **query: str) -> Answer:
        return self.live.ask(f"/scheduler/decisions?{urlencode(query)}")

    def why(self, name: str = "web", **query: str) -> dict[str, Any]:
        answer = self.ask(pod=name, **query)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json()
        return found

    def outcome(self, name: str = "web", **query: str) -> dict[str, Any]:
        found: dict[str, Any] = self.why(name, **query)["decision"]["outcome"]
        return found


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with made.live:
        yield made


def by_name(nodes: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in nodes}


# --- records ---------------------------------------------------------------------------------------------------------


def test_filter_and_prioritize_are_one_decision_with_all_inputs(served: Served) -> None:
    """It has the time, the pod, the load, the rejected nodes, and of the best nodes what explain returns."""
    explained = by_name(served.post("explain", asking(*NAMES))["nodes"])
    served.place(*NAMES, "nobody")
    served.clock.now = NOW + 60
    document = served.why()
    found = document["decision"]
    assert ("default/web", [], 1) == (document["pod"], document["others"], document["log"]["count"])
    assert (NOW, 60.0, "p") == (found["time"], found["ago_s"], found["profile"])
    expected = {"namespace": "default", "name": "web", "uid": "web", "requests": {"cpu": 100}, "limits": {}}
    assert expected == found["pod"]
    assert {"source": "Test", "window_end": NOW - 12, "age_s": 12.0, "window": "15m"} == found["load"]
    (rejecting,) = found["filter"].pop("plugins")
    assert {"asked": 16, "unknown": 1, "passed": 15, "reserved": None} == found["filter"]
    assert ("HighLoadFilter", 90.0) == (rejecting["name"], rejecting["inputs"]["usageThresholds"]["cpu"])
    reason = "node(s) had cpu load above the threshold with the pod"
    rejected = {"reason": reason, "count": 1, "nodes": ["n00"], "details": {"n00": "cpu 97.5 %, above 90 %"}}
    assert [rejected] == rejecting["rejected"]
    ranking = found["ranking"]
    assert (15, 1, 14, 10) == tuple(ranking[key] for key in ("asked", "unknown", "of", "most"))
    assert [("TargetLoadPacking", 3), ("LoadVariationRiskBalancing", 1)] == [
        (each["name"], each["weight"]) for each in ranking["plugins"]
    ]
    assert 10 == len(ranking["nodes"])
    assert list(range(1, 11)) == [each["rank"] for each in ranking["nodes"]]
    for each in ranking["nodes"]:
        then = explained[each["name"]]
        assert (then["score"], then["sampled"], 12.0) == (each["score"], each["sampled"], round(each["age_s"], 6))
        of_plugins = {one["name"]: one for one in then["plugins"] if one["point"] == "score"}
        for plugin, common in zip(each["plugins"], ranking["plugins"], strict=True):
            reported = of_plugins[plugin["name"]]
            assert all(reported[key] == plugin[key] for key in ("score", "steps", "reason"))
            assert reported["inputs"] == common["inputs"]
    assert [each["name"] for each in ranking["nodes"] if each["reserved"]] == [ranking["reserved"]]


def test_recording_does_not_change_the_reservation(served: Served) -> None:
    """The reservation is ignored only while the decision is recorded."""
    served.place(*NAMES)
    served.why()
    assert ["web"] == list(served.table.reserved)


def test_the_explanation_of_a_node_does_not_count_the_pod_itself() -> None:
    """Neither while the pod is reserved there, nor when it is bound there: the score was computed without it."""
    made = Served(plugins=(PluginSettings("LoadAwareScheduling", 1, {}, ("score",)),))
    with made.live:
        explained = by_name(made.post("explain", asking(*NAMES))["nodes"])
        far = min(explained, key=lambda name: (explained[name]["score"], name))
        made.place(*NAMES)
        made.post("bind", {**BINDING, "PodUID": "web", "Node": far})
        nodes = made.why()["decision"]["ranking"]["nodes"]
        again = by_name(made.post("explain", asking(*NAMES, name="db"))["nodes"])
    assert (11, far) == (len(nodes), nodes[-1]["name"])
    for each in nodes:
        assert explained[each["name"]]["plugins"][0]["reason"] == each["plugins"][0]["reason"]
    assert "1 pod counted by its estimate" in again[far]["plugins"][0]["reason"]


def test_a_filter_that_rejects_all_nodes_is_recorded(served: Served) -> None:
    """kube-scheduler then requests no scores, and tries again later."""
    assert [] == served.post("filter", asking("n00"))["NodeNames"]
    served.event(node="")
    found = served.why()["decision"]
    assert (None, 0) == (found["ranking"], found["filter"]["passed"])
    assert "not bound yet: no node passed the extender's filters" == found["outcome"]["sentence"]


def test_a_late_request_for_a_bound_pod_reserves_nothing(served: Served) -> None:
    """The decision does not name a node either."""
    served.event(node="n02")
    served.place("n01", after=1.0)
    found = served.why()["decision"]
    assert (None, None) == (found["filter"]["reserved"], found["ranking"]["reserved"])
    assert served.table.reserved == {}


def test_a_single_passing_node_is_recorded_without_scores(served: Served) -> None:
    """kube-scheduler selects it without scores."""
    served.post("filter", asking("n00", "n01"))
    assert "n01" == served.why()["decision"]["filter"]["reserved"]
    served.event(node="n01")
    reported = "bound to n01 0.5 s later: kube-scheduler requested no scores, because only one node passed the filters"
    assert reported == served.outcome()["sentence"]


@pytest.mark.parametrize(
    ("profile", "after"), [("q", 0.0), ("p", DECISION_SPAN_S + 1)], ids=["another profile", "much later"]
)
def test_requests_of_other_profiles_or_times_are_two_decisions(served: Served, profile: str, after: float) -> None:
    served.post("filter", asking(*NAMES))
    served.clock.now += after
    served.post("prioritize", asking(*NAMES), profile=profile)
    document = served.why()
    assert (None, profile) == (document["decision"]["filter"], document["decision"]["profile"])
    assert ["asked_again"] == [each["outcome"] for each in document["others"]]


def test_a_second_prioritize_is_another_attempt(served: Served) -> None:
    """As if kube-scheduler were configured not to call filter."""
    for _ in range(2):
        served.post("prioritize", asking(*NAMES))
    assert ["asked_again"] == [each["outcome"] for each in served.why()["others"]]


def test_without_load_the_decision_names_the_fallback(served: Served) -> None:
    served.table.set_load(None, now=NOW)
    served.place(*NAMES)
    found = served.why()["decision"]
    assert (None, "allocation") == (found["load"], found["fallbacks"]["TargetLoadPacking"])
    assert {None} == {each["age_s"] for each in found["ranking"]["nodes"]}


def test_explain_and_invalid_requests_are_not_recorded(served: Served) -> None:
    """Nor is what cannot be read."""
    served.post("explain", asking(*NAMES))
    nonsense = asking(*NAMES)
    nonsense["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "much"
    assert served.post("filter", nonsense)["Error"]
    assert 404 == served.ask(pod="web").status
    assert "the log is empty" in served.ask(pod="web").error["hint"]


# --- outcomes --------------------------------------------------------------------------------------------------------


def test_the_watch_reports_the_node_of_the_pod(served: Served) -> None:
    """The best node, or another recorded one."""
    served.place(*NAMES)
    best = served.why()["decision"]["ranking"]["nodes"]
    served.event(node=best[0]["name"])
    outcome = served.outcome()
    assert ("bound", best[0]["name"], 1, best[0]["score"]) == tuple(
        outcome[key] for key in ("kind", "node", "rank", "score")
    )
    assert (served.clock.now, True) == (outcome["time"], "ranked 1st of 14 nodes" in outcome["sentence"])
    served.place(*NAMES, pod="db")
    best = served.why("db")["decision"]["ranking"]["nodes"]
    served.event("db", node=best[6]["name"])
    assert 7 == served.outcome("db")["rank"]
    chosen = [each["name"] for each in served.why("db")["decision"]["ranking"]["nodes"] if each["chosen"]]
    assert [best[6]["name"]] == chosen
    reported = f"bound to {best[6]['name']} 0.5 s later: ranked 7th of 14 nodes (score"
    assert served.outcome("db")["sentence"].startswith(reported)


def test_the_bound_node_is_recorded_at_any_rank(served: Served) -> None:
    """With all steps of its score at the time of the decision."""
    explained = by_name(served.post("explain", asking(*NAMES[1:]))["nodes"])
    served.place(*NAMES)
    ranked = sorted(explained, key=lambda name: (-explained[name]["score"], name))
    served.event(node=ranked[12])
    found = served.why()["decision"]
    assert (13, explained[ranked[12]]["score"]) == (found["outcome"]["rank"], found["outcome"]["score"])
    last = found["ranking"]["nodes"][-1]
    assert (11, ranked[12], True) == (len(found["ranking"]["nodes"]), last["name"], last["chosen"])
    then = [each for each in explained[ranked[12]]["plugins"] if each["point"] == "score"]
    assert [(each["score"], each["steps"], each["reason"]) for each in then] == [
        (each["score"], each["steps"], each["reason"]) for each in last["plugins"]
    ]


@pytest.mark.parametrize(
    ("at", "after", "said"),
    [
        (2, DECISION_SPAN_S, "ranked 3rd of 14 nodes (score"),
        (2, 10 * HELD_S, "ranked 3rd of 14 nodes"),
        (12, HELD_S, "ranked 13th of 14 nodes (score"),
        (12, 10 * HELD_S, "rank not recorded"),
    ],
)
def test_a_pod_that_waits_has_an_outcome(served: Served, at: int, after: float, said: str) -> None:
    """Memory has less and less of its decision; the stored record is complete."""
    explained = by_name(served.post("explain", asking(*NAMES[1:]))["nodes"])
    served.place(*NAMES)
    served.settle()
    before = served.why()["decision"]["ranking"]
    served.clock.now += after - 0.01
    served.log.release_old()
    served.event(node=sorted(explained, key=lambda name: (-explained[name]["score"], name))[at], after=0.0)
    found = served.why()["decision"]
    assert said in found["outcome"]["sentence"]
    assert before["nodes"][0]["plugins"] == found["ranking"]["nodes"][0]["plugins"]


def test_rankings_in_memory_are_bounded() -> None:
    """Without its ranking, the outcome has the node and not its rank."""
    made = Served(most_held=10_000)
    with made.live:
        for number in range(8):
            made.place(*NAMES, pod=f"web-{number}")
        for number in range(8):
            made.event(f"web-{number}", node="n01")
        sentences = [made.outcome(f"web-{number}")["sentence"] for number in range(8)]
    assert "rank not recorded" in sentences[0]
    assert "ranked 14th of 14 nodes" in sentences[-1]


def test_a_new_ranking_of_a_pod_replaces_only_its_own() -> None:
    """Other pods keep their rankings."""
    made = Served(most_held=10_000)
    with made.live:
        for pod in ("db", *["web"] * 8):
            made.place(*NAMES, pod=pod)
        made.event("db", node="n01")
        assert "ranked 14th of 14 nodes" in made.outcome("db")["sentence"]


def test_unreported_pods_displace_no_ranking_of_a_pod_reported_late() -> None:
    made = Served(most_held=10_000, reported_late=True)
    with made.live:
        made.place(*NAMES)
        made.event()
        for number in range(8):
            made.place(*NAMES, pod=f"forged-{number}")
        made.event(node="n01")
        assert "ranked 14th of 14 nodes" in made.outcome()["sentence"]


def test_the_outcome_of_a_node_that_was_not_in_the_request(served: Served) -> None:
    """kube-scheduler's own filters may differ per pod, or it did not call the extender."""
    served.place(*NAMES[:3])
    served.event(node="n09")
    assert served.outcome()["sentence"].endswith(
        "the extender did not rank this node: it was not in the request, or it is unknown"
    )


def test_a_binding_through_the_extender_is_recorded_at_once(served: Served) -> None:
    """The watch reports it later, which changes nothing."""
    served.place(*NAMES)
    served.post("bind", {**BINDING, "PodUID": "web", "Node": "n07"})
    assert ("bound", "n07") == (served.outcome()["kind"], served.outcome()["node"])
    at = served.clock.now
    served.event(node="n07", after=3.0)
    assert at == served.outcome()["time"]


def test_a_pod_may_wait_be_retried_and_be_deleted(served: Served) -> None:
    """Each attempt is a decision; the last one has the outcome."""
    served.event(node="")
    served.place(*NAMES, after=1.0)
    assert ("pending", None) == (served.outcome()["kind"], served.outcome()["node"])
    served.place(*NAMES, after=30.0)
    served.event(node=None)
    document = served.why(at=str(int(NOW) + 5))
    assert (NOW + 1.5, "asked_again") == (document["decision"]["time"], document["decision"]["outcome"]["kind"])
    assert "again 30.0 s later" in document["decision"]["outcome"]["sentence"]
    assert [(NOW + 31.51, "deleted")] == [(each["time"], each["outcome"]) for each in document["others"]]
    assert "before it was bound to any node" in served.outcome()["sentence"]


def test_a_pod_with_the_name_of_an_earlier_pod_is_another_pod(served: Served) -> None:
    """The earlier pod was deleted, reported by the watch or not."""
    served.place(*NAMES)
    served.event(node="", uid="another")
    assert "unknown" == served.outcome()["kind"]
    served.event("db", node="", uid="db")
    served.place(*NAMES, pod="db")
    served.event("db", node="n03", uid="db-2")
    assert "deleted" == served.outcome("db")["kind"]


def test_after_a_restart_the_outcome_is_that_of_the_current_pod() -> None:
    """For pods that were bound meanwhile; the rank is known for recorded nodes."""
    store = DecisionList()
    before = Served(store=store)
    with before.live:
        for name in ("web", "db", "gone"):
            before.place(*NAMES, pod=name)
        best = before.why()["decision"]["ranking"]["nodes"][1]["name"]
        before.why("gone")
    after = Served(store=store)
    with after.live:
        after.clock.now = NOW + 60
        after.pods |= {"default/web": pod("web", node=best, scheduled=NOW + 2), "default/db": pod("db", node="n01")}
        outcome = after.outcome()
        assert ("bound", best, 2, NOW + 2) == tuple(outcome[key] for key in ("kind", "node", "rank", "time"))
        assert "rank not recorded" in after.outcome("db")["sentence"]
        assert "unknown" == after.outcome("gone")["kind"]


# --- requests --------------------------------------------------------------------------------------------------------


def test_the_decision_before_a_time_is_found_and_the_others_are_listed(served: Served) -> None:
    """A time in whole seconds includes that second; a duration counts from now."""
    for number in range(5):
        served.place(*NAMES, after=9.99 if number else 0.25)
    served.clock.now = NOW + 100
    times = [round(each["time"] - NOW, 2) for each in served.why(limit="9")["others"]]
    assert [30.25, 20.25, 10.25, 0.25] == times
    for at, expected in ((str(int(NOW) + 20), 20.25), ("-75", 20.25), ("-60s", 40.25), ("now", 40.25)):
        assert NOW + expected == served.why(at=at)["decision"]["time"]
    assert NOW + 10.25 == served.why(at="2023-11-14T22:13:30Z")["decision"]["time"]
    document = served.why(at="-75", limit="2")
    assert [40.25, 30.25] == [round(each["time"] - NOW, 2) for each in document["others"]]
    assert {"kept_s": 86400.0, "count": 5, "from": NOW + 0.25, "to": NOW + 40.25} == document["log"]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({}, 400, "parameter 'pod' is missing"),
        ({"pod": "a/b/c"}, 400, "'a/b/c' is not a pod name"),
        ({"pod": "default/"}, 400, "'default/' is not a pod name"),
        ({"pod": "web", "at": "yesterday"}, 400, "at='yesterday' is not a time"),
        ({"pod": "web", "limit": "101"}, 400, "limit='101' is not a valid limit"),
        ({"pod": "web", "limit": "-1"}, 400, "limit='-1' is not a valid limit"),
        ({"pod": "web", "when": "now"}, 400, "unknown parameter 'when'"),
        ({"pod": "other/web"}, 404, "no decision about pod 'other/web' found"),
        ({"pod": "web", "at": str(int(NOW) - 60)}, 404, "'default/web' found at or before this time"),
    ],
)
def test_an_error_has_a_hint_and_the_contents_of_the_log(
    served: Served, query: Mapping[str, str], status: int, said: str
) -> None:
    """If the decision is missing, with the retention, and the number and times of the known decisions."""
    served.place(*NAMES)
    answer = served.ask(**query)
    assert (status, True) == (answer.status, said in answer.json()["error"]["message"])
    if status == 404:
        assert {"kept_s": 86400.0, "count": 1, "from": NOW, "to": NOW} == answer.json()["log"]
        hint = (
            "the log has 1 decisions of the last 24 h; another replica"
            if "other" in query["pod"]
            else "is from 2023-11-14T22:13:20Z"
        )
        assert hint in answer.json()["error"]["hint"]


@pytest.mark.parametrize("at", ["", str(int(NOW) - 60)])
def test_an_absent_decision_is_a_document_on_request(served: Served, at: str) -> None:
    """With the reason and the node of the pod, as in the error."""
    served.place(*NAMES)
    served.event(node="n03")
    query = {"pod": "web" if at else "other/web"} | ({"at": at} if at else {})
    error, answer = served.ask(**query), served.ask(**query, missing="empty")
    assert (404, 200) == (error.status, answer.status)
    document = answer.json()
    assert (None, []) == (document["decision"], document["others"])
    assert (document["reason"], document["hint"]) == (error.error["message"], error.error["hint"])
    assert (document["now"], document["log"]) == (error.json()["pod"], error.json()["log"])
    assert (document["now"] or {}).get("node") == ("n03" if at else None)
    assert 400 == served.ask(**query, missing="null").status


def test_invalid_names_of_pods_are_stored_in_a_valid_form(served: Served) -> None:
    """Clients may send any name."""
    odd = "we\0b" * 200
    served.place(*NAMES, pod=odd)
    assert odd == served.why(odd)["decision"]["pod"]["name"]
    (stored,) = served.store.placements.values()
    assert ("\0" in stored.pod, 253) == (False, len(stored.pod))


def test_with_store_decisions_0s_nothing_is_recorded() -> None:
    made = Served(store=DecisionList(kept=0.0))
    with made.live:
        made.place(*NAMES)
        made.event(node="n03")
        answer = made.ask(pod="web")
        empty = made.ask(pod="web", missing="empty").json()
    assert (404, 'the decision log is off: store.decisions is "0s"') == (answer.status, answer.error["message"])
    assert (None, answer.error["message"], "n03") == (empty["decision"], empty["reason"], empty["now"]["node"])


def test_an_unreadable_store_does_not_fail_requests_of_kube_scheduler(served: Served) -> None:
    served.place(*NAMES)
    served.store.away = "the disk is gone"
    served.place(*NAMES, after=5)
    answer = served.ask(pod="web")
    assert (503, "decisions_unavailable", "the disk is gone", "look at the disk") == (
        answer.status,
        *(answer.error[key] for key in ("code", "message", "hint")),
    )
    served.store.away = ""
    (time,) = list(served.store.placements)[-1:]
    served.store.keep_decisions([replace(served.store.placements[time], payload=b"damaged")])
    assert (503, True) == (
        served.ask(pod="web").status,
        "invalid stored decision" in served.ask(pod="web").error["message"],
    )


def test_decisions_require_the_token() -> None:
    """As explain; requests of kube-scheduler do not."""
    made = Served(protection=Protection(token="s3cret"))
    with made.live:
        made.place(*NAMES)
        assert 401 == made.ask(pod="web").status
        answer = made.live.ask("/scheduler/decisions?pod=web", headers={"Authorization": "Bearer s3cret"})
        assert 200 == answer.status


# --- records that are lost -------------------------------------------------------------------------------------------


def of_somebody_else(reason: Any = lambda _: "", inputs: Mapping[str, Any] = {}) -> RankResult:
    scores = Scores(np.zeros(len(NAMES)), inputs=dict(inputs), reason=reason)
    return RankResult(np.zeros(len(NAMES)), ((PluginSettings("Odd"), scores),))


def fail(_: int) -> str:
    raise RuntimeError("it does not know")


async def test_a_plug_in_that_fails_to_give_reasons_loses_only_its_decisions(caplog: pytest.LogCaptureFixture) -> None:
    """Each is counted, and the first is logged; inputs that are not JSON are lost, too."""
    cluster, store = a_cluster(), DecisionList()
    profile = ProfileRunner(ProfileSettings("p", PLUGINS[:1]), cluster)

    recorder = DecisionRecorder(store)
    log = DecisionLog(recorder, cluster, now=lambda: NOW)
    odd = [of_somebody_else(fail), of_somebody_else(fail), of_somebody_else(inputs={"x": object()})]
    for number, ranked in enumerate([*odd, of_somebody_else()]):
        answered = RankedResponse(NAMES, rows(cluster), ranked, asked=15, scores_sent=True, reserved="")
        log.ranked(profile, info(f"web-{number}"), answered)
    await asyncio.sleep(0)
    await recorder.flush()
    assert (3, ["web-3"]) == (store.lost, [each.pod for each in store.placements.values()])
    reported = "decision about pod default/web-0 not recorded (further failures are only counted): it does not know"
    assert [reported] == [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_of_too_many_decisions_the_oldest_are_lost_and_counted() -> None:
    """Between two flushes. No two decisions have the same time, although the clock stands still."""
    cluster, store = a_cluster(), DecisionList()
    profile = ProfileRunner(ProfileSettings("p", PLUGINS[:1]), cluster)
    ranked = of_somebody_else()

    recorder = DecisionRecorder(store)
    log = DecisionLog(recorder, cluster, now=lambda: NOW)
    for number in range(MOST_NEW + 5):
        answered = RankedResponse(NAMES, rows(cluster), ranked, asked=15, scores_sent=True, reserved="")
        log.ranked(profile, info(f"web-{number}"), answered)
    await asyncio.sleep(0)
    await recorder.flush()
    await recorder.flush()
    assert (5, MOST_NEW, "web-5") == (store.lost, len(store.placements), next(iter(store.placements.values())).pod)
