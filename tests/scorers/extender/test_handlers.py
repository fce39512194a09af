"""The extender over a real socket: kube-scheduler's types, defined responses to unusual requests, and reservations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scorers.cluster.table import ClusterTable
from scorers.extender.handlers import MOST_EXPLAINED, Extender
from scorers.extender.reservations import RESERVED_S
from scorers.plugin_api.exemptions import DAEMON_EXEMPT
from scorers.plugin_api.wire import ExtenderBindingArgs
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.fakes.service import Answer, Live, Protection
from tests.scorers.simulated_cluster import NOW, load, node, pod, table
from watcher.core.kubernetes.objects import Pod


class Clock:
    now = NOW

    def __call__(self) -> float:
        return self.now


PLUGINS = (
    PluginSettings("TargetLoadPacking", 3, {"targetUtilization": 50}, ("score",)),
    PluginSettings("LoadVariationRiskBalancing", 1, {}, ("score",)),
    PluginSettings("HighLoadFilter", 1, {"usageThresholds": {"cpu": 90}}, ("filter",)),
)


def a_profile(cluster: ClusterTable, plugins: tuple[PluginSettings, ...] = PLUGINS, **settings: Any) -> ProfileRunner:
    return ProfileRunner(ProfileSettings("p", plugins, **settings), cluster)


class Served:
    """An extender, its table, and the server that it runs in."""

    def __init__(
        self, cluster: ClusterTable, *, binder: Any = None, protection: Protection | None = None, **profile: Any
    ) -> None:
        self.table = cluster
        self.clock = Clock()
        extender = Extender(cluster, {"p": a_profile(cluster, **profile)}, now=self.clock, bind=binder)
        self.telemetry = extender.telemetry
        self.live = Live(routes=extender.routes(), protection=protection)

    def post(self, verb: str, body: object, *, profile: str = "p", **headers: str) -> Answer:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.live.ask(f"/scheduler/{profile}/{verb}", method="POST", body=data, headers=headers)


def a_cluster() -> ClusterTable:
    nodes = [node(name, {"cpu": "4", "memory": "8Gi"}) for name in ("cold", "warm", "hot")]
    loads = {"cold": (5.0, 10.0), "warm": (45.0, 10.0), "hot": (95.0, 50.0)}
    return table(nodes, loads=load({n: {("CPU", "AVG"): c, ("Memory", "AVG"): m} for n, (c, m) in loads.items()}))


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(a_cluster())
    with made.live:
        yield made


def as_json(of: Any) -> Any:
    return json.loads(msgspec.json.encode(of))


def asking(*names: str, name: str = "web", milli: int = 100) -> dict[str, Any]:
    requests = {"cpu": f"{milli}m"}
    wanted = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
    }
    return {"Pod": wanted, "Nodes": None, "NodeNames": list(names)}


def scores(answer: Answer) -> dict[str, int]:
    assert answer.status == 200, answer.body
    return {each["Host"]: each["Score"] for each in answer.json()}


# --- kube-scheduler's protocol ---------------------------------------------------------------------------------------


def test_prioritize_returns_every_name_in_the_order_of_the_request(served: Served) -> None:
    """Scores are 0 to 10; a node that the table does not know scores 0."""
    answer = served.post("prioritize", asking("hot", "cold", "nobody", "warm"))
    assert [each["Host"] for each in answer.json()] == ["hot", "cold", "nobody", "warm"]
    assert scores(answer) == {"hot": 1, "cold": 7, "nobody": 0, "warm": 9}


def test_precise_scores_are_0_to_100() -> None:
    """For a configuration with the weight of the extender reduced accordingly."""
    made = Served(a_cluster(), precise_scores=True)
    with made.live:
        found = scores(made.post("prioritize", asking("hot", "cold", "warm")))
    assert found == {"hot": 14, "cold": 68, "warm": 93}


def test_filter_returns_nodes_in_the_form_of_the_request(served: Served) -> None:
    """Names for names; whole nodes for whole nodes, with the same bytes."""
    by_name = served.post("filter", asking("hot", "cold", "nobody")).json()
    reason = "node(s) had cpu load above the threshold with the pod"
    assert by_name["NodeNames"] == ["cold", "nobody"]
    assert by_name["Nodes"] is None
    assert by_name["FailedNodes"] == {"hot": reason}
    assert by_name["FailedAndUnresolvableNodes"] == {}
    assert by_name["Error"] == ""
    items = [
        {"metadata": {"name": name, "managedFields": [1.5, {"x": None}]}, "kind": "Node"} for name in ("hot", "cold")
    ]
    whole = served.post("filter", {**asking(), "NodeNames": None, "Nodes": {"items": items}}).json()
    assert whole["Nodes"]["items"] == [items[1]]
    assert whole["NodeNames"] is None
    assert whole["FailedNodes"] == {"hot": reason}


def test_preemption_is_not_offered_on_a_node_that_is_too_small() -> None:
    """As in kube-scheduler: rejections that preemption cannot resolve are separate."""
    cluster = a_cluster()
    cluster.set_node("small", node("small", {"cpu": "1", "memory": "8Gi"}))
    cluster.set_pod(None, pod("db", node="warm", containers=[{"limits": {"cpu": "3"}}]), now=NOW)
    plugins = (PluginSettings("NodeResourceLimits", 1, {"filter": True}, ("filter",)), PLUGINS[2])
    asked = asking("cold", "warm", "hot", "small")
    asked["Pod"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    with (served := Served(cluster, plugins=plugins)).live:
        answer = served.post("filter", asked).json()
    assert answer["NodeNames"] == ["cold"]
    hot = "node(s) had cpu load above the threshold with the pod"
    assert answer["FailedNodes"] == {"warm": "Insufficient cpu limit", "hot": hot}
    assert answer["FailedAndUnresolvableNodes"] == {"small": "Insufficient cpu limit"}


def test_keys_in_any_case_are_read_as_go_reads_them(served: Served) -> None:
    """Hand-written requests have any case."""
    body = {key.lower(): value for key, value in asking("cold", "warm").items()}
    assert scores(served.post("prioritize", body)) == {"cold": 7, "warm": 9}
    body["pod"]["kind"] = "Pod"
    assert scores(served.post("prioritize", body)) == {"cold": 7, "warm": 9}
    mixed = {"Pod": body["pod"], "nodenames": ["cold"]}
    assert scores(served.post("prioritize", mixed)) == {"cold": 7}


def test_null_is_read_as_empty_as_go_does(served: Served) -> None:
    """Go programs write null for empty values."""
    container = {"name": "c", "resources": {"requests": {"cpu": "100m"}, "limits": None}}
    pod = asking()["Pod"] | {"spec": {"containers": [container, {"resources": None}], "initContainers": None}}
    body = {"Pod": {**pod, "status": None}, "Nodes": None, "NodeNames": ["cold", "warm"]}
    assert served.post("filter", body).json()["NodeNames"] == ["cold", "warm"]
    assert set(scores(served.post("prioritize", body))) == {"cold", "warm"}
    nothing = {"Pod": {"metadata": None, "spec": {"containers": None}}, "NodeNames": ["cold"]}
    assert set(scores(served.post("prioritize", nothing))) == {"cold"}


def test_an_empty_list_of_nodes_is_answered_with_an_empty_list(served: Served) -> None:
    """It is not an error."""
    assert served.post("prioritize", asking()).json() == []
    assert served.post("prioritize", {**asking(), "NodeNames": None}).json() == []
    assert served.post("filter", asking()).json()["NodeNames"] == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"Pod": 1}',
        b'{"Pod": null, "NodeNames": []}',
        b'{"Pod": {}, "NodeNames": [1]}',
        b"\xff",
        b'{"Pod": {}, "Nodes": {"items": [{"metadata": 7}]}}',
        b'{"Pod": {"x": ' + 20_000 * b"[" + 20_000 * b"]" + b"}}",
    ],
)
@pytest.mark.parametrize("verb", ["filter", "prioritize", "explain"])
def test_an_invalid_body_is_an_error_that_names_the_problem(served: Served, verb: str, body: bytes) -> None:
    """Status 400 in the format of the watcher's errors; the extender continues."""
    answer = served.post(verb, body)
    assert answer.status == 400
    assert "invalid ExtenderArgs" in answer.error["message"]
    assert scores(served.post("prioritize", asking("cold")))


def test_invalid_resources_of_a_pod_are_named(served: Served) -> None:
    """To filter as Error, which kube-scheduler shows as an event of the pod."""
    body = asking("cold")
    body["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "much"
    assert "cpu: 'much' is not a Kubernetes quantity" in served.post("filter", body).json()["Error"]
    assert served.post("prioritize", body).status == 400
    body["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "-1"
    assert "cpu: must not be negative (given: '-1')" in served.post("filter", body).json()["Error"]
    assert served.post("prioritize", body).status == 400


def test_an_unknown_profile_lists_the_known_ones(served: Served) -> None:
    answer = served.post("prioritize", asking("cold"), profile="q")
    assert answer.status == 404
    assert answer.error["hint"] == "profiles are: p"


# --- reservations ----------------------------------------------------------------------------------------------------


def test_two_pods_in_quick_succession_do_not_both_see_the_empty_node() -> None:
    """The first is counted on its best node, so the second gets another one."""
    cluster = table([node(name, {"cpu": "4"}) for name in "ab"], loads=load({n: {("CPU", "AVG"): 0.0} for n in "ab"}))
    made = Served(cluster)
    with made.live:
        first = scores(made.post("prioritize", asking("a", "b", name="one", milli=2000)))
        assert cluster.reserved == {"one": "a"}
        second = scores(made.post("prioritize", asking("a", "b", name="two", milli=2000)))
        assert first["a"] == first["b"]
        assert second["a"] < second["b"]
        assert cluster.reserved == {"one": "a", "two": "b"}
        again = scores(made.post("prioritize", asking("a", "b", name="one", milli=2000)))
        assert again["a"] > again["b"]  # its own reservation has expired, that of the other pod has not
        made.clock.now = NOW + RESERVED_S
        assert scores(made.post("prioritize", asking("a", "b", name="three", milli=2000))) == first
        assert cluster.reserved == {"three": "a"}


def test_of_equal_scores_the_node_that_kube_scheduler_would_select_is_reserved() -> None:
    """Its own plug-ins decide among equal scores by requests: the least allocated node, although another node scores
    higher before rounding and comes first by name."""
    nodes = [node(name, {"cpu": "4", "memory": "8Gi"}) for name in "abc"]
    old = pod("old", node="a", containers=[{"requests": {"cpu": "3"}}], scheduled=NOW - 900)
    cluster = table(nodes, [old], load({"a": {("CPU", "AVG"): 46.0}, "b": {("CPU", "AVG"): 45.0}, "c": {}}))
    made = Served(cluster)
    with made.live:
        assert scores(made.post("prioritize", asking("a", "b", "c"))) == {"a": 9, "b": 9, "c": 0}
        assert cluster.reserved == {"web": "b"}
        cluster.set_pod(old, None, now=NOW)
        made.post("prioritize", asking("b", "a"))
        assert cluster.reserved == {"web": "a"}


def test_if_few_nodes_are_known_all_score_0() -> None:
    """Otherwise those few would get all pods. The API has not reported the nodes yet, or it is another cluster."""
    made = Served(a_cluster())
    with made.live:
        assert scores(made.post("prioritize", asking("warm", "x", "y"))) == {"warm": 0, "x": 0, "y": 0}
        assert made.table.reserved == {}
        assert scores(made.post("prioritize", asking("warm", "x"))) == {"warm": 9, "x": 0}


@pytest.mark.parametrize("reserve", ["bind", "off"])
def test_reservations_can_be_disabled(reserve: str) -> None:
    made = Served(a_cluster(), reserve=reserve)
    with made.live:
        made.post("prioritize", asking("cold", "warm"))
    assert made.table.reserved == {}


def test_filter_reserves_the_pod_if_a_single_node_passes() -> None:
    """kube-scheduler then requests no scores: for a nominated node, and if the filters leave one node."""
    made = Served(a_cluster())
    with made.live:
        made.post("filter", asking("cold", "warm", name="two"))
        assert made.table.reserved == {}
        made.post("filter", asking("warm", name="nominated"))
        made.post("filter", asking("hot", "cold", name="one", milli=500))
        assert made.table.reserved == {"nominated": "warm", "one": "cold"}
        # another extender rejected the nominated node: all nodes follow, and prioritize decides
        made.post("filter", asking("cold", "warm", name="nominated"))
        assert made.table.reserved == {"one": "cold"}
        made.post("prioritize", asking("cold", "warm", name="nominated"))
        assert made.table.reserved == {"nominated": "warm", "one": "cold"}
        # scheduled again: replaced, not counted twice
        made.post("filter", asking("warm", name="one", milli=500))
        assert made.table.reserved == {"nominated": "warm", "one": "warm"}
        assert made.table.requested.of(made.table.row["cold"]) == {}
        # never bound: it expires
        made.clock.now += RESERVED_S
        made.post("filter", asking("hot", name="rejected"))
        assert made.table.reserved == {}


def test_filter_reserves_nothing_on_an_unknown_node(served: Served) -> None:
    served.post("filter", asking("nobody"))
    served.post("filter", asking("hot"))
    assert served.table.reserved == {}


@pytest.mark.parametrize("reserve", ["bind", "off"])
def test_filter_reserves_only_if_prioritize_does(reserve: str) -> None:
    made = Served(a_cluster(), reserve=reserve)
    with made.live:
        made.post("filter", asking("cold"))
    assert made.table.reserved == {}


def test_a_bound_pod_is_not_reserved_by_filter(served: Served) -> None:
    """A late request must not move a pod that the watch has already reported."""
    served.table.set_pod(None, pod("web", node="warm", containers=[{"requests": {"cpu": "1"}}]), now=NOW)
    served.post("filter", asking("cold"))
    assert served.table.reserved == {}
    assert served.table.requested.of(served.table.row["warm"]) == {"cpu": 1000}


def test_the_ranking_ends_with_nodes_that_kube_scheduler_would_reject(served: Served) -> None:
    """With the reason. Responses to kube-scheduler, which rejects these nodes itself, do not change."""
    full = pod("db", node="warm", containers=[{"requests": {"cpu": "3950m"}}], scheduled=NOW - 900)
    served.table.set_pod(None, full, now=NOW)
    wanted = asking("cold", "warm", "hot", milli=100)
    reported = served.post("explain", {**wanted, "NodeNames": None}).json()
    assert [(each["name"], each["passes"]) for each in reported["nodes"]] == [
        ("cold", True),
        ("warm", False),
        ("hot", False),
    ]
    own = [plugin for plugin in reported["nodes"][1]["plugins"] if "of" in plugin]
    assert [(each["name"], each["of"], each["reason"]) for each in own] == [
        ("NodeResourcesFit", "kube-scheduler", "no room: cpu")
    ]
    assert reported["nodes"][1]["score"] > reported["nodes"][0]["score"]
    assert not any("of" in plugin for plugin in reported["nodes"][0]["plugins"])
    assert scores(served.post("prioritize", wanted))["warm"] > 0
    assert served.post("filter", wanted).json()["NodeNames"] == ["cold", "warm"]


def test_the_explained_pod_does_not_count_on_its_own_node(served: Served) -> None:
    """Neither if it is reserved nor if it is bound."""
    wanted = asking("cold", milli=2500)
    served.post("prioritize", wanted)
    assert [each["passes"] for each in served.post("explain", wanted).json()["nodes"]] == [True]
    bound = pod("web", node="cold", containers=[{"requests": {"cpu": "2500m"}}])
    served.table.set_pod(None, bound, now=NOW)
    assert [each["passes"] for each in served.post("explain", wanted).json()["nodes"]] == [True]
    assert served.table.requested.of(served.table.row["cold"]) == {"cpu": 2500}


def test_explain_reserves_nothing(served: Served) -> None:
    served.post("explain", asking("cold", "warm"))
    assert served.table.reserved == {}


def test_explain_ignores_the_reservation_of_the_pod_itself() -> None:
    """The scores equal those of prioritize a moment ago, the reasons do not count the pod, and the reservation
    remains."""
    counting = (*PLUGINS, PluginSettings("LoadAwareScheduling", 2, {}, ("score", "filter")))
    made = Served(a_cluster(), plugins=counting, precise_scores=True)
    with made.live:
        made.post("prioritize", asking("cold", "warm", "hot", name="before", milli=900))
        given = scores(made.post("prioritize", asking("cold", "warm", "hot", milli=900)))
        assert {"before": "cold", "web": "cold"} == made.table.reserved
        for _ in range(2):
            reported = made.post("explain", asking("cold", "warm", "hot", milli=900)).json()["nodes"]
            assert given == {each["name"]: int(each["score"] + 0.5) for each in reported}
        assert {"before": "cold", "web": "cold"} == made.table.reserved
    reasons = {each["name"]: each["plugins"][-1]["reason"] for each in reported}
    assert "1 pod counted by its estimate: default/before: " in reasons["cold"]


def test_explain_does_not_extend_a_reservation(served: Served) -> None:
    """It has the time that it was given."""
    served.post("prioritize", asking("cold", "warm"))
    served.clock.now += RESERVED_S - 0.5
    served.post("explain", asking("cold", "warm"))
    assert ("web",) == served.table.expire(served.clock.now + 0.5)


# --- bind ------------------------------------------------------------------------------------------------------------


BINDING = {"PodName": "web", "PodNamespace": "default", "PodUID": "u", "Node": "cold"}


def test_bind_is_off_by_default(served: Served) -> None:
    assert "bind is off" in served.post("bind", BINDING).json()["Error"]


def test_bind_binds_or_returns_the_reason() -> None:
    """From loopback, where no certificate is required."""
    asked: list[ExtenderBindingArgs] = []

    async def bind(args: ExtenderBindingArgs) -> None:
        asked.append(args)
        if args.node == "full":
            raise RuntimeError("the pod is bound already")

    made = Served(a_cluster(), binder=bind, bind=True)
    with made.live:
        assert made.post("bind", BINDING).json() == {"Error": ""}
        assert asked == [ExtenderBindingArgs("web", "default", "u", "cold")]
        assert made.post("bind", {**BINDING, "Node": "full"}).json() == {"Error": "the pod is bound already"}
        assert "invalid ExtenderBindingArgs" in made.post("bind", {}).json()["Error"]
        lower = {key.lower(): value for key, value in {**BINDING, "PodName": "Pod"}.items()}
        assert made.post("bind", lower).json() == {"Error": ""}
        assert asked[-1] == ExtenderBindingArgs("Pod", "default", "u", "cold")


@pytest.mark.parametrize(("reserve", "counted"), [("prioritize", True), ("bind", True), ("off", False)])
def test_a_bound_pod_counts_at_once_or_when_the_watch_reports_it(reserve: str, counted: bool) -> None:
    bound = pod("web", uid="u", containers=[{"requests": {"cpu": "1"}}])

    async def bind(args: ExtenderBindingArgs) -> Pod:
        return bound

    made = Served(a_cluster(), binder=bind, bind=True, reserve=reserve)
    with made.live:
        assert made.post("bind", BINDING).json() == {"Error": ""}
    assert made.table.reserved == ({"u": "cold"} if counted else {})


# --- explain, nodes, plug-ins ----------------------------------------------------------------------------------------


def test_explain_returns_every_number_and_a_reason(served: Served) -> None:
    """The score equals that of prioritize; the best node is first, rejected nodes are last; no number is NaN."""
    answer = served.post("explain", asking("hot", "cold", "nobody", "warm"))
    reported = answer.json()
    assert [(each["name"], each["passes"]) for each in reported["nodes"]] == [
        ("warm", True),
        ("cold", True),
        ("hot", False),
    ]
    assert reported["unknown"] == ["nobody"]
    assert reported["load"]["source"] == "Test"
    best = reported["nodes"][0]
    packing = next(each for each in best["plugins"] if each["name"] == "TargetLoadPacking")
    assert packing["inputs"]["podDemand"] == {"cpu": 150}
    assert packing["steps"]["cpu load %"] == 45.0
    assert packing["steps"]["cpu predicted %"] == 48.75
    assert packing["reason"] == "cpu would be at 48.8 %, 1.2 below the target: 99"
    assert best["score"] == pytest.approx((3 * 99 + 76) / 4)
    rejected = next(each for each in reported["nodes"][2]["plugins"] if each["point"] == "filter")
    assert rejected["reason"] == "node(s) had cpu load above the threshold with the pod, cpu 97.5 %, above 90 %"


FILTERS = (
    PluginSettings("HighLoadFilter", 1, {"usageThresholds": {"cpu": 1}}, ("filter",)),
    PluginSettings("LoadAwareScheduling", 1, {"usageThresholds": {"cpu": 1}}, ("filter",)),
    PluginSettings("NodeResourceLimits", 1, {"filter": True}, ("filter",)),
)
DAEMON: dict[str, Any] = {
    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cni", "controller": True}]
}
STATIC: dict[str, Any] = {
    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "hot", "controller": True}],
    "annotations": {"kubernetes.io/config.mirror": "7c2f", "kubernetes.io/config.source": "file"},
}


@pytest.mark.parametrize("plugin", FILTERS, ids=lambda each: each.name)
@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (DAEMON, DAEMON_EXEMPT),
        (STATIC, "static pods are not filtered"),
        ({"annotations": STATIC["annotations"]}, ""),
        ({"ownerReferences": STATIC["ownerReferences"]}, ""),
        ({"ownerReferences": [{"kind": "ReplicaSet", "name": "web", "controller": True}]}, ""),
        ({"ownerReferences": [{**DAEMON["ownerReferences"][0], "controller": False}]}, DAEMON_EXEMPT),
        (
            {"ownerReferences": [{**DAEMON["ownerReferences"][0], "apiVersion": "apps.kruise.io/v1alpha1"}]},
            DAEMON_EXEMPT,
        ),
        ({**STATIC, "ownerReferences": [{**STATIC["ownerReferences"][0], "name": "cold"}]}, ""),
    ],
    ids=["DaemonSet", "static", "annotation", "Node", "ReplicaSet", "no controller", "other group", "other node"],
)
def test_pods_of_a_node_itself_pass_every_filter(plugin: PluginSettings, metadata: Any, why: str) -> None:
    """They have no other node to go to; explain states the reason."""
    asked = asking("hot")
    asked["Pod"]["metadata"] |= metadata
    asked["Pod"]["spec"]["nodeName"] = "hot"
    asked["Pod"]["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "64"}, "requests": {"cpu": "64"}}
    with (served := Served(a_cluster(), plugins=(plugin,))).live:
        passed = served.post("filter", asked).json()["NodeNames"]
        (node,) = served.post("explain", asked).json()["nodes"]
    assert passed == (["hot"] if why else [])
    (found,) = (each for each in node["plugins"] if each["name"] == plugin.name)
    assert found["inputs"].get("exempt", "") == why
    assert not why or found["reason"] == f"passes, {why}"


def test_explain_without_nodes_explains_all(served: Served) -> None:
    reported = served.post("explain", {"Pod": asking()["Pod"]}).json()
    assert {each["name"] for each in reported["nodes"]} == {"cold", "warm", "hot"}


def test_the_state_of_a_node_is_returned(served: Served) -> None:
    """Windows, capacity, sums, recent pods and reservations."""
    served.table.set_pod(
        None,
        pod("db", node="cold", containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}], scheduled=NOW - 5),
        now=NOW,
    )
    served.post("prioritize", asking("cold"))
    found = served.live.ask("/scheduler/p/nodes/cold").json()["nodes"]["cold"]
    assert found["load"]["instance:node_cpu:ratio"] == {"AVG": 5.0}
    assert found["capacity"] == {"cpu": 4000, "memory": 8 << 30}
    assert found["requested"] == {"cpu": 1100}
    assert found["limits"] == {"cpu": 2100}
    assert found["pods"] == 2
    assert [each["pod"] for each in found["recent"]] == ["db", "web"]
    assert found["reserved"] == ["web"]
    assert found["estimates"] == {}
    assert set(served.live.ask("/scheduler/p/nodes").json()["nodes"]) == {"cold", "warm", "hot"}
    assert served.live.ask("/scheduler/p/nodes/nobody").status == 404
    assert served.live.ask("/scheduler/p/nodes/nobody?missing=empty").json() == {"nodes": {}}


def test_every_load_has_its_age_and_its_window(served: Served) -> None:
    """In the state of a node, and in its explanation."""
    served.clock.now = NOW + 7
    of_node = served.live.ask("/scheduler/p/nodes/cold").json()["nodes"]["cold"]
    (explained,) = served.post("explain", asking("cold")).json()["nodes"]
    for reported in (of_node, explained):
        assert reported["load"]["instance:node_memory_utilisation:ratio"] == {"AVG": 10.0}
        windows = reported["windows"]["instance:node_memory_utilisation:ratio"]
        assert windows == {"age_s": 7.0, "covers_s": {"AVG": 900.0}}


def test_the_state_of_a_node_has_the_estimates_of_its_pods() -> None:
    """Those of pods that the measurement does not contain, as in Koordinator's debug endpoint."""
    plugins = (PluginSettings("LoadAwareScheduling", 1, {}, ("filter", "score")),)
    with (served := Served(a_cluster(), plugins=plugins)).live:
        assert served.post("prioritize", asking("cold", milli=1000)).status == 200
        reported = served.live.ask("/scheduler/p/nodes").json()["nodes"]
    of_pod = {"cpu": 850, "memory": 200 << 20}
    assert reported["cold"]["estimates"] == {
        "LoadAwareScheduling": {
            "nodeDelta": of_pod,
            "nodeDeltaPods": ["default/web"],
            "prodUsage": {"cpu": 0, "memory": 0},
            "prodUsagePods": [],
            "prodDelta": of_pod,
            "prodDeltaPods": ["default/web"],
            "nodeEstimated": of_pod,
            "nodeEstimatedPods": ["default/web"],
        }
    }
    assert reported["warm"]["estimates"]["LoadAwareScheduling"]["nodeDeltaPods"] == []


def test_the_plug_ins_are_described(served: Served) -> None:
    """With the schema of their arguments and the defaults."""
    reported = served.live.ask("/scheduler/plugins").json()
    assert {"on": False, "hint": ""} == reported["shadow"]
    assert reported["profiles"] == ["p"]
    packing = next(each for each in reported["plugins"] if each["name"] == "TargetLoadPacking")
    assert packing["extensionPoints"] == ["score"]
    assert packing["defaults"]["targetUtilization"] == 40.0
    assert "targetUtilization" in json.dumps(packing["arguments"])
    assert "  " not in packing["arguments"]["$defs"]["TargetLoadPackingArgs"]["description"]


PACKAGE = """
import numpy as np
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Scores

class Odd:
    name = "Odd"
    arguments = Arguments

    def __init__(self, arguments, table, *, profile):
        pass

    def score(self, pod, table, rows, *, now):
        return Scores(np.array([np.nan, np.inf, -1e9])[: len(rows)])
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a plug-in that returns any scores, and one that cannot be imported."""
    (tmp_path / "odd_scorers.py").write_text(PACKAGE)
    information = tmp_path / "odd_scorers-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-scorers\nVersion: 1.0\n")
    points = "[load_watcher.scorers]\nOdd = odd_scorers:Odd\nBroken = odd_scorers_of_old:Broken\n"
    (information / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("package")
def test_scores_of_an_external_plug_in_are_limited_to_its_weight() -> None:
    """NaN counts as 0, and scores outside 0 to 100 are clipped; kube-scheduler refuses other scores."""
    cluster = a_cluster()
    for weight, expected in ((0, {"cold": 0, "warm": 10, "hot": 0}), (1, {"cold": 3, "warm": 10, "hot": 0})):
        plugins = [PluginSettings("Odd", 1, {}, ("score",))]
        plugins += [PluginSettings("TargetLoadPacking", 1, {"targetUtilization": 50}, ("score",))][:weight]
        settings = ProfileSettings("p", tuple(plugins))
        extender = Extender(cluster, {"p": ProfileRunner(settings, cluster)}, now=Clock())
        with Live(routes=extender.routes()) as live:
            body = json.dumps(asking("cold", "warm", "hot")).encode()
            assert scores(live.ask("/scheduler/p/prioritize", method="POST", body=body)) == expected
            reported = live.ask("/scheduler/p/explain", method="POST", body=body).json()
            assert reported["nodes"][0]["name"] == "warm"


@pytest.mark.usefixtures("package")
def test_a_plug_in_that_cannot_be_imported_does_not_hide_the_others(served: Served) -> None:
    reported = {each["name"]: each for each in served.live.ask("/scheduler/plugins").json()["plugins"]}
    assert "ModuleNotFoundError" in reported["Broken"]["error"]
    assert reported["TargetLoadPacking"]["extensionPoints"] == ["score"]


def test_explanations_require_the_token() -> None:
    """kube-scheduler, which cannot send a token, is still answered."""
    made = Served(a_cluster(), protection=Protection(token="s3cret"))
    with made.live:
        assert made.post("prioritize", asking("cold")).status == 200
        assert made.post("explain", asking("cold")).status == 401
        assert made.live.ask("/scheduler/p/nodes").status == 401
        assert made.post("explain", asking("cold"), Authorization="Bearer s3cret").status == 200


def test_repeated_names_are_explained_once(served: Served) -> None:
    """Otherwise 0.8 MB of names would become 170 MB of explanations."""
    reported = served.post("explain", asking(*["cold"] * 30_000, "hot", "nobody", "nobody")).json()
    assert (2, ["nobody"]) == (reported["of"], reported["unknown"])
    assert {"cold", "hot"} == {node["name"] for node in reported["nodes"]}
    assert 2 == len(served.post("score?node=cold&node=cold&node=hot", MANIFEST.encode()).json()["nodes"])


@pytest.mark.slow
def test_an_explanation_has_at_most_5000_nodes() -> None:
    """The best ones; `of` is the number of all."""
    many = [f"n-{number}" for number in range(MOST_EXPLAINED + 3)]
    made = Served(table([node(name, {"cpu": "4"}) for name in many]))
    with made.live:
        reported = made.post("explain", {"Pod": asking()["Pod"]}).json()
    assert (MOST_EXPLAINED, len(many)) == (len(reported["nodes"]), reported["of"])


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"Pod":{"metadata":{},"x":[%s1]},"NodeNames":[]}' % (b"1," * 60_000), 413, "more than 50000 values"),
        (b'{"Pod":{"x":"%s"},"NodeNames":[]}' % (b"x" * (2 << 20)), 413, "the Pod is larger than 2 MiB"),
        (b'{"Pod":{},"NodeNames":[%s"a"]}' % (b'"a",' * 100_001), 413, "more than 100000 nodes"),
        (b'{"Pod":{},"NodeNames":[%s"a"]}' % (b'"a",' * 500_000), 413, "more than 100000 nodes"),
        (b'{"Pod":{},"Nodes":{"items":[%s{}]}}' % (b"{}," * 100_001), 413, "more than 100000 nodes"),
        (b'{"Pod":{},"Nodes":{"items":[%s{}]}}' % (b"{}," * 1_000_001), 413, "more than 1000000 JSON objects"),
        (b'{"Pod":{},"Nodes":{"items":[%s1]}}' % (b"1," * 900_000), 400, "Expected `object`, got `int`"),
        (b'{"pod":{},"nodenames":[%s"a"]}' % (b'"a",' * 500_000), 400, "the case of keys matters"),
        (b'{"Pod":{},"Nodes":{"items":%s' % (b"[" * 2_000_000), 400, "invalid ExtenderArgs"),
        (b'{"Pod":' + b"[" * 2_000_000, 400, "invalid ExtenderArgs"),
    ],
    ids=range(10),
)
def test_bodies_that_would_take_much_memory_are_refused(served: Served, body: bytes, status: int, says: str) -> None:
    """Before they are decoded."""
    for verb in ("filter", "prioritize", "explain"):
        answer = served.post(verb, body)
        assert status == answer.status
        assert says in answer.error["message"]
        assert answer.error["hint"]


def test_large_and_small_bodies_are_read_equally(served: Served) -> None:
    """Large ones in a thread, from encoded members."""
    padding = {"metadata": {"annotations": {"padding": "x" * 1_100_000}}}
    nodes = [{"metadata": {"name": name}, "status": {}} for name in ("cold", "hot", "cold")]
    for extra in ({"NodeNames": ["cold", "hot"], "Nodes": None}, {"Nodes": {"items": nodes}, "NodeNames": None}):
        small = {**asking("cold"), **extra}
        large = {**small, "Pod": {**small["Pod"], "metadata": {**small["Pod"]["metadata"], **padding["metadata"]}}}
        for verb in ("filter", "prioritize"):
            assert served.post(verb, small).json() == served.post(verb, large).json()


def test_binding_from_loopback_needs_a_local_host() -> None:
    """A page of another site in a browser on this machine sends requests from loopback, too."""
    bound: list[str] = []

    async def bind(args: ExtenderBindingArgs) -> None:
        bound.append(args.name)

    made = Served(a_cluster(), binder=bind, bind=True)
    with made.live:
        assert "client certificate" in made.post("bind", BINDING, Host="rebound.evil.test").json()["Error"]
        assert 403 == made.post("bind", BINDING, Origin="http://evil.test").status
        assert 413 == made.post("bind", {**BINDING, "x": "x" * 20_000}).status
        assert [] == bound
        assert "" == made.post("bind", BINDING, Host="localhost:2020").json()["Error"]
        assert 1 == len(bound)


# --- score: a hand-written manifest ----------------------------------------------------------------------------------

MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    spec:
      containers:
      - name: web
        resources: {requests: {cpu: 100m}}
"""


def test_a_manifest_is_ranked_as_its_pod(served: Served) -> None:
    """With the numbers of explain."""
    reported = served.post("score", MANIFEST.encode()).json()
    expected = served.post("explain", {"Pod": asking()["Pod"], "NodeNames": ["cold", "warm", "hot"]}).json()

    assert {"cpu": 100} == reported["pod"]["requests"]
    assert [(node["name"], node["score"]) for node in expected["nodes"]] == [
        (node["name"], node["score"]) for node in reported["nodes"]
    ]
    assert 3 == reported["of"]


def test_a_ranking_has_only_the_best_nodes(served: Served) -> None:
    """And only requested nodes."""
    whole = [node["name"] for node in served.post("score", MANIFEST.encode()).json()["nodes"]]
    some = served.post("score?limit=2", MANIFEST.encode()).json()
    one = served.post("score?node=warm&node=nobody", MANIFEST.encode()).json()

    assert (whole[:2], 3) == ([node["name"] for node in some["nodes"]], some["of"])
    assert (["warm"], ["nobody"]) == ([node["name"] for node in one["nodes"]], one["unknown"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "the document is empty"),
        (b"kind: ConfigMap", "no pod found, only: ConfigMap"),
        (b"hello", "no pod found, only: 'hello'; supported kinds: Pod"),
        (b"kind: Pod", "the Pod has no spec"),
        (b"kind: Pod\nspec: [", "invalid YAML"),
        (b"\xff", "invalid YAML"),
        (b"[" * 3000, "the document is nested more than 100 levels deep"),
        (b"[" * 30_000 + b"]" * 30_000, "the document is nested more than 100 levels deep"),
        (b"a\n---" + b"[" * 30_000 + b"]" * 30_000, "no pod found, only: 'a ---[[["),
        (b"a\n--- " + b"[" * 30_000 + b"]" * 30_000, "the document is nested more than 100 levels deep"),
        (30_000 * b"- ", "the document is nested more than 100 levels deep"),
        (b"kind: Pod\nspec: {containers: 7}", "containers"),
        (b"kind: Pod\nspec: {containers: [{resources: {requests: {cpu: lots}}}]}", "lots"),
        (b"a: &a [1]\nb: *a\nkind: Pod", "aliases"),
    ],
)
def test_a_body_that_is_not_a_pod_is_named(served: Served, text: bytes, says: str) -> None:
    """With status 400 and an example; deep nesting does not end the process."""
    answer = served.post("score", text)
    assert (400, "bad_request") == (answer.status, answer.error["code"])
    assert says in answer.error["message"]
    assert "Deployment" in answer.error["hint"]


def test_the_limits_of_a_manifest_are_checked(served: Served) -> None:
    """Of its size, of the nodes in the response, and of known profiles."""
    assert 413 == served.post("score", b"#" * (64 << 10) + MANIFEST.encode()).status
    limits = ("0", "x", "9" * 30, "000000001" + "1" * 5000)
    assert [400] * 4 == [served.post(f"score?limit={text}", MANIFEST.encode()).status for text in limits]
    missing = served.post("score", MANIFEST.encode(), profile="nope")
    assert (404, "profiles are: p") == (missing.status, missing.error["hint"])


def test_a_node_of_which_only_the_load_is_known_is_filtered_by_it() -> None:
    """An extender without access to the API, or before the first list: 95 % is above 90 %. The share of the pod is
    unknown there; pods of DaemonSets pass, as on known nodes."""
    loads = {"cold": (5.0, 10.0), "near": (89.0, 10.0), "hot": (95.0, 50.0)}
    made = Served(table([], loads=load({n: {("CPU", "AVG"): c, ("Memory", "AVG"): m} for n, (c, m) in loads.items()})))
    with made.live:
        found = made.post("filter", asking("hot", "cold", "nobody", "near", milli=4000)).json()
        assert found["NodeNames"] == ["cold", "nobody", "near"]
        assert found["FailedNodes"] == {"hot": "node(s) had cpu load above the threshold with the pod"}
        daemon = asking("hot")
        daemon["Pod"]["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
        ]
        assert made.post("filter", daemon).json()["NodeNames"] == ["hot"]
        made.table.set_node("cold", node("cold", {"cpu": "4", "memory": "8Gi"}))
        again = made.post("filter", asking("hot", "cold", milli=3600)).json()
        assert set(again["FailedNodes"]) == {"hot", "cold"}
