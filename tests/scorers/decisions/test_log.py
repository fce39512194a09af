"""The decision log through HTTP: what is decided is remembered, with what became of it, and cannot harm a request."""

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
    """n00 is the hottest, at 95 % of its CPU, and each of the others has 6 less than the one before."""
    loads = {
        name: {("CPU", "AVG"): 92.0 - 6 * i if i else 95.0, ("Memory", "AVG"): 40.0} for i, name in enumerate(NAMES)
    }
    return table([node(name, {"cpu": "4", "memory": "8Gi"}) for name in NAMES], loads=load(loads, sampled=NOW - 12))


class Served:
    """An extender that remembers, and the pods that the cluster is said to have."""

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
        """What kube-scheduler asks in one attempt: which may have it, and how good these are."""
        self.clock.now += after
        left = self.post("filter", asking(*names, name=pod))["NodeNames"]
        self.clock.now += 0.01
        self.post("prioritize", asking(*left, name=pod))

    def event(self, name: str = "web", *, node: str | None = "", uid: str | None = None, after: float = 0.5) -> None:
        """What the watch tells: the pod is on a node, on none (""), or gone (None)."""
        self.settle()
        self.clock.now += after
        key = f"default/{name}"
        old = self.pods.pop(key, None)
        if node is not None:
            self.pods[key] = pod(name, node=node, uid=uid)
        self.log.pod_changed(old, self.pods.get(key))
        self.table.set_pod(old, self.pods.get(key), now=self.clock.now)

    def settle(self) -> None:
        """Whatever was to be done after the last answer is done when another one comes; then the loop has nothing to
        do, and its things may be touched from here."""
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


# --- what is remembered ----------------------------------------------------------------------------------------------


def test_filter_and_prioritize_are_one_decision_with_all_that_led_to_it(served: Served) -> None:
    """When, about what, by which load; whom the filter rejected; and of the best nodes what explain tells of them."""
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
            told = of_plugins[plugin["name"]]
            assert all(told[key] == plugin[key] for key in ("score", "steps", "reason"))
            assert told["inputs"] == common["inputs"]
    assert [each["name"] for each in ranking["nodes"] if each["reserved"]] == [ranking["reserved"]]


def test_remembering_leaves_the_reservation_as_it_is(served: Served) -> None:
    """What is taken down is without it, for as long as that takes."""
    served.place(*NAMES)
    served.why()
    assert ["web"] == list(served.table.reserved)


def test_the_pod_itself_is_not_counted_where_its_node_is_explained() -> None:
    """Neither while it is reserved there, nor when it is bound there: the score came about without it."""
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


def test_a_filter_that_rejects_all_is_a_decision_too(served: Served) -> None:
    """kube-scheduler then asks for no scores, and comes again later."""
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


def test_one_node_that_is_left_is_not_scored(served: Served) -> None:
    """kube-scheduler takes it as it is."""
    served.post("filter", asking("n00", "n01"))
    assert "n01" == served.why()["decision"]["filter"]["reserved"]
    served.event(node="n01")
    told = "bound to n01 0.5 s later: kube-scheduler requested no scores, because only one node passed the filters"
    assert told == served.outcome()["sentence"]


@pytest.mark.parametrize(
    ("profile", "after"), [("q", 0.0), ("p", DECISION_SPAN_S + 1)], ids=["another profile", "much later"]
)
def test_what_does_not_belong_together_is_two_decisions(served: Served, profile: str, after: float) -> None:
    served.post("filter", asking(*NAMES))
    served.clock.now += after
    served.post("prioritize", asking(*NAMES), profile=profile)
    document = served.why()
    assert (None, profile) == (document["decision"]["filter"], document["decision"]["profile"])
    assert ["asked_again"] == [each["outcome"] for each in document["others"]]


def test_a_second_prioritize_is_another_attempt(served: Served) -> None:
    """Where kube-scheduler is not configured to ask for filter."""
    for _ in range(2):
        served.post("prioritize", asking(*NAMES))
    assert ["asked_again"] == [each["outcome"] for each in served.why()["others"]]


def test_where_no_node_has_load_the_fallback_is_told(served: Served) -> None:
    served.table.set_load(None, now=NOW)
    served.place(*NAMES)
    found = served.why()["decision"]
    assert (None, "allocation") == (found["load"], found["fallbacks"]["TargetLoadPacking"])
    assert {None} == {each["age_s"] for each in found["ranking"]["nodes"]}


def test_explaining_and_nonsense_are_no_decisions(served: Served) -> None:
    """Nor is what cannot be read."""
    served.post("explain", asking(*NAMES))
    nonsense = asking(*NAMES)
    nonsense["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "much"
    assert served.post("filter", nonsense)["Error"]
    assert 404 == served.ask(pod="web").status
    assert "the log is empty" in served.ask(pod="web").error["hint"]


# --- what became of it -----------------------------------------------------------------------------------------------


def test_the_watch_says_where_the_pod_went(served: Served) -> None:
    """Our best, or another among the best that are remembered."""
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
    told = f"bound to {best[6]['name']} 0.5 s later: ranked 7th of 14 nodes (score"
    assert served.outcome("db")["sentence"].startswith(told)


def test_a_node_far_down_is_remembered_when_the_pod_goes_there(served: Served) -> None:
    """With all that led to its score, as it was then."""
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
def test_a_pod_that_waits_is_placed_all_the_same(served: Served, at: int, after: float, said: str) -> None:
    """Though less and less of its decision is held; nothing is lost of what is stored."""
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


def test_arrays_are_held_within_bounds() -> None:
    """Beyond them the node is told, and not how it stood."""
    made = Served(most_held=10_000)
    with made.live:
        for number in range(8):
            made.place(*NAMES, pod=f"web-{number}")
        for number in range(8):
            made.event(f"web-{number}", node="n01")
        sentences = [made.outcome(f"web-{number}")["sentence"] for number in range(8)]
    assert "rank not recorded" in sentences[0]
    assert "ranked 14th of 14 nodes" in sentences[-1]


def test_arrays_of_a_pod_that_is_asked_about_again_give_way() -> None:
    """To its own, not to those of others."""
    made = Served(most_held=10_000)
    with made.live:
        for pod in ("db", *["web"] * 8):
            made.place(*NAMES, pod=pod)
        made.event("db", node="n01")
        assert "ranked 14th of 14 nodes" in made.outcome("db")["sentence"]


def test_pods_that_the_api_does_not_have_displace_no_array_of_a_pod_that_is_reported_late() -> None:
    made = Served(most_held=10_000, reported_late=True)
    with made.live:
        made.place(*NAMES)
        made.event()
        for number in range(8):
            made.place(*NAMES, pod=f"forged-{number}")
        made.event(node="n01")
        assert "ranked 14th of 14 nodes" in made.outcome()["sentence"]


def test_a_node_that_we_were_not_asked_about(served: Served) -> None:
    """kube-scheduler's own filters may differ from pod to pod, or the extender was passed over."""
    served.place(*NAMES[:3])
    served.event(node="n09")
    assert served.outcome()["sentence"].endswith(
        "the extender did not rank this node: it was not in the request, or it is unknown"
    )


def test_binding_through_us_is_known_at_once(served: Served) -> None:
    """The watch tells it later, and nothing new."""
    served.place(*NAMES)
    served.post("bind", {**BINDING, "PodUID": "web", "Node": "n07"})
    assert ("bound", "n07") == (served.outcome()["kind"], served.outcome()["node"])
    at = served.clock.now
    served.event(node="n07", after=3.0)
    assert at == served.outcome()["time"]


def test_a_pod_may_wait_be_asked_about_again_and_be_deleted(served: Served) -> None:
    """Each attempt is a decision; the last one has the end."""
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


def test_a_pod_of_the_same_name_is_another_pod(served: Served) -> None:
    """The one before is gone, seen or not."""
    served.place(*NAMES)
    served.event(node="", uid="another")
    assert "unknown" == served.outcome()["kind"]
    served.event("db", node="", uid="db")
    served.place(*NAMES, pod="db")
    served.event("db", node="n03", uid="db-2")
    assert "deleted" == served.outcome("db")["kind"]


def test_after_a_restart_the_pod_itself_says_where_it_is() -> None:
    """Whoever was bound meanwhile; how it stood is known of the best."""
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


# --- asking ----------------------------------------------------------------------------------------------------------


def test_the_decision_before_a_time_is_found_and_the_others_are_listed(served: Served) -> None:
    """A time in whole seconds is all of that second; ago counts from now."""
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
def test_what_cannot_be_answered_is_said(served: Served, query: Mapping[str, str], status: int, said: str) -> None:
    """With what would be, and what is known."""
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


def test_names_that_no_pod_has_are_remembered_all_the_same(served: Served) -> None:
    """As the database can have them; anybody may ask about anything."""
    odd = "we\0b" * 200
    served.place(*NAMES, pod=odd)
    assert odd == served.why(odd)["decision"]["pod"]["name"]
    (stored,) = served.store.placements.values()
    assert ("\0" in stored.pod, 253) == (False, len(stored.pod))


def test_where_decisions_are_not_wanted_none_is_kept() -> None:
    """store.decisions = "0s"."""
    made = Served(store=DecisionList(kept=0.0))
    with made.live:
        made.place(*NAMES)
        made.event(node="n03")
        answer = made.ask(pod="web")
        empty = made.ask(pod="web", missing="empty").json()
    assert (404, 'the decision log is off: store.decisions is "0s"') == (answer.status, answer.error["message"])
    assert (None, answer.error["message"], "n03") == (empty["decision"], empty["reason"], empty["now"]["node"])


def test_a_store_that_cannot_be_read_is_no_trouble_of_the_scheduler(served: Served) -> None:
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


def test_once_a_token_is_set_only_who_has_it_may_ask() -> None:
    """As with explain: kube-scheduler may go on."""
    made = Served(protection=Protection(token="s3cret"))
    with made.live:
        made.place(*NAMES)
        assert 401 == made.ask(pod="web").status
        answer = made.live.ask("/scheduler/decisions?pod=web", headers={"Authorization": "Bearer s3cret"})
        assert 200 == answer.status


# --- what cannot be remembered ---------------------------------------------------------------------------------------


def of_somebody_else(reason: Any = lambda _: "", inputs: Mapping[str, Any] = {}) -> RankResult:
    scores = Scores(np.zeros(len(NAMES)), inputs=dict(inputs), reason=reason)
    return RankResult(np.zeros(len(NAMES)), ((PluginSettings("Odd"), scores),))


def fail(_: int) -> str:
    raise RuntimeError("it does not know")


async def test_a_plug_in_that_cannot_say_why_loses_its_decisions_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Counted each, told once; one whose inputs are nothing that JSON has, too."""
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
    told = "decision about pod default/web-0 not recorded (further failures are only counted): it does not know"
    assert [told] == [record.message for record in caplog.records if record.levelname == "ERROR"]


async def test_of_too_many_at_once_the_oldest_are_lost_and_counted() -> None:
    """While the store is not given any; no two have the same time, though the clock stands still."""
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
