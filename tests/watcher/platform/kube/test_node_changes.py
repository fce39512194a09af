"""Taints, conditions and bindings: those of others stay, also with concurrent writes."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.kube import NODES, PODS, Asked, FakeKube
from tests.watcher.platform.kube.asking import asked
from watcher.core.kubernetes.errors import KubeConflict, KubeForbidden, KubeNotFound
from watcher.core.kubernetes.objects import Taint
from watcher.platform.kube.node_changes import add_taint, bind, remove_taint, set_condition

OURS = Taint("interference.crane.io", "PreferNoSchedule")
THEIRS = {"key": "gpu", "effect": "NoSchedule", "value": "yes", "timeAdded": "2026-11-21T08:00:00Z"}
NOW = 1_795_250_000.75


def taints(server: FakeKube) -> list[dict[str, Any]]:
    """The taints of the node n."""
    found: list[dict[str, Any]] = server.content(NODES, "n")["spec"]["taints"]
    return found


def interfering(server: FakeKube, *, times: int) -> None:
    """Another client changes the node before each of the next patches."""
    left = [times]

    def write_first(request: Asked) -> web.Response | None:
        if request.verb == "patch" and left[0]:
            left[0] -= 1
            node = server.content(NODES, "n")
            server.put(NODES, "n", **{**node, "metadata": {"labels": {"written": str(left[0])}}})
        return None

    server.fault = write_first


def test_a_taint_is_added_and_removed_and_others_stay():
    """Unchanged; adding it twice is the same as once."""
    with FakeKube() as server:
        server.node("n", spec={"taints": [THEIRS]})
        assert asked(server, lambda client: add_taint(client, "n", OURS))
        assert [THEIRS, {"key": "interference.crane.io", "effect": "PreferNoSchedule"}] == taints(server)
        assert not asked(server, lambda client: add_taint(client, "n", OURS))
        assert asked(server, lambda client: remove_taint(client, "n", key=OURS.key, effect=OURS.effect))
        assert [THEIRS] == taints(server)
        assert not asked(server, lambda client: remove_taint(client, "n", key=OURS.key, effect="NoSchedule"))
    assert 2 == sum(each.verb == "patch" for each in server.asked)


def test_a_taint_replaces_one_of_its_kind():
    """Key and effect identify it; the value may differ."""
    with FakeKube() as server:
        server.node("n", spec={"taints": [THEIRS]})
        assert asked(server, lambda client: add_taint(client, "n", Taint("gpu", "NoSchedule", "no")))
        assert asked(server, lambda client: add_taint(client, "n", Taint("gpu", "NoExecute")))
        assert ["no", None] == [each.get("value") for each in taints(server)]


def test_after_a_conflict_the_change_is_applied_to_the_current_object():
    """No change of others is lost."""
    with FakeKube() as server:
        server.node("n", spec={"taints": [THEIRS]})
        interfering(server, times=2)
        assert asked(server, lambda client: add_taint(client, "n", OURS))
        assert ["gpu", "interference.crane.io"] == [each["key"] for each in taints(server)]
        assert {"written": "0"} == server.content(NODES, "n")["metadata"]["labels"]


@pytest.mark.slow
def test_a_node_with_endless_conflicts_is_an_error():
    """After six attempts, with the message of the server."""
    with FakeKube() as server:
        server.node("n")
        interfering(server, times=99)
        with pytest.raises(KubeConflict, match="the object has been modified"):
            asked(server, lambda client: add_taint(client, "n", OURS))
    assert 6 == sum(each.verb == "patch" for each in server.asked)


def test_a_missing_node_is_an_error_without_a_retry():
    with FakeKube() as server, pytest.raises(KubeNotFound, match='nodes "n" not found'):
        asked(server, lambda client: remove_taint(client, "n", key="a", effect="NoSchedule"))


# --- conditions ------------------------------------------------------------------------------------------------------

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": "2026-11-21T08:00:00Z"}


def condition(server: FakeKube, kind: str) -> dict[str, Any]:
    """The condition of the node n; that of the kubelet is unchanged."""
    ready, *rest = server.content(NODES, "n")["status"]["conditions"]
    assert ready == READY
    return {each["type"]: each for each in rest}[kind]


def test_a_condition_has_the_time_of_its_last_transition():
    """The time changes only with the status, and nothing is written without a change."""

    def say(status: bool, now: float, message: str = "") -> bool:
        done: bool = asked(
            server, lambda client: set_condition(client, "n", "Hot", status=status, now=now, message=message)
        )
        return done

    with FakeKube() as server:
        server.node("n", status={"conditions": [READY]})
        assert say(True, NOW)
        assert condition(server, "Hot") == {
            "type": "Hot",
            "status": "True",
            "reason": "",
            "message": "",
            "lastTransitionTime": "2026-11-21T08:33:20Z",
            "lastHeartbeatTime": "2026-11-21T08:33:20Z",
        }
        assert not say(True, NOW + 60)
        assert say(True, NOW + 120, "still")
        reported = condition(server, "Hot")
        assert ("2026-11-21T08:33:20Z", "2026-11-21T08:35:20Z") == (
            reported["lastTransitionTime"],
            reported["lastHeartbeatTime"],
        )
        assert say(False, NOW + 180)
        assert ("False", "2026-11-21T08:36:20Z") == (
            condition(server, "Hot")["status"],
            condition(server, "Hot")["lastTransitionTime"],
        )


def test_a_conflicting_condition_is_written_again():
    """The server reports a conflict if others write faster than it can merge."""
    conflicts = [409, 409]

    def conflict(request: Asked) -> web.Response | None:
        return web.json_response({"kind": "Status"}, status=conflicts.pop()) if request.body and conflicts else None

    with FakeKube(fault=conflict) as server:
        server.node("n", status={"conditions": [READY]})
        assert asked(server, lambda client: set_condition(client, "n", "Hot", status=True, now=NOW))
        assert "True" == condition(server, "Hot")["status"]


def test_a_condition_needs_the_right_to_the_status():
    """The error names it."""
    with FakeKube(forbidden={("patch", "v1/nodes/status")}) as server:
        server.node("n")
        with pytest.raises(KubeForbidden) as caught:
            asked(server, lambda client: set_condition(client, "n", "Hot", status=True, now=NOW))
    assert "nodes/status" in caught.value.hint


# --- binding ---------------------------------------------------------------------------------------------------------


def test_a_pod_is_bound_once():
    """The second binding gets an error with the node of the first."""
    with FakeKube() as server:
        server.pod("shop/web", phase="Pending")
        asked(server, lambda client: bind(client, "shop/web", node="node-1", uid="u"))
        assert "node-1" == server.content(PODS, "shop/web")["spec"]["nodeName"]
        with pytest.raises(KubeConflict, match="already assigned"):
            asked(server, lambda client: bind(client, "shop/web", node="node-2"))
        with pytest.raises(KubeNotFound):
            asked(server, lambda client: bind(client, "shop/api", node="node-2"))
    assert "u" == server.asked[0].body["metadata"]["uid"]


def test_of_two_concurrent_bindings_one_succeeds():
    """The other one gets an error."""
    with FakeKube() as server:
        server.pod("shop/web", phase="Pending")

        async def both(client: Any) -> list[Any]:
            tries = (bind(client, "shop/web", node=node) for node in ("node-1", "node-2"))
            return await asyncio.gather(*tries, return_exceptions=True)

        outcomes = asked(server, both)
    assert ["KubeConflict", "NoneType"] == sorted(type(each).__name__ for each in outcomes)
