"""Evictions of pods: each response has its own outcome, waits are those of the server, and all attempts end."""

from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.kube import BUDGETS, PODS, Asked, FakeKube
from tests.fakes.kube_rules import status_object
from tests.watcher.platform.kube.asking import asked
from watcher.platform.kube.eviction import EvictionOutcome, EvictionResult, Evictor

BUDGET = {"reason": "DisruptionBudget", "message": "The disruption budget b needs 3 healthy pods and has 3 currently"}


class VirtualTime:
    """A clock that only sleeping advances; `meanwhile` is called after each sleep with the number of sleeps."""

    def __init__(self, meanwhile: Callable[[int], Any] = lambda _: None) -> None:
        self.now, self.slept, self._meanwhile = 100.0, list[float](), meanwhile

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self._meanwhile(len(self.slept))


def evicted(
    server: FakeKube, *pods: str, within: float = 60.0, time: VirtualTime | None = None, **options: Any
) -> list[EvictionResult]:
    """The outcomes of these pods, evicted one after the other."""
    clock = time or VirtualTime()

    async def inside(client: Any) -> list[EvictionResult]:
        evictor = Evictor(client, clock=lambda: clock.now, sleep=clock.sleep)
        return [await evictor.evict(pod, within=within, **options) for pod in pods]

    return asked(server, inside)


def versions(server: FakeKube) -> list[str]:
    """The API versions of the sent Evictions."""
    return [each.body["apiVersion"] for each in server.asked if each.resource == "v1/pods/eviction"]


def refusing(
    code: int, message: str = "no", *, headers: dict[str, str] | None = None, **details: Any
) -> Callable[..., Any]:
    """A server with this response to each request."""
    body = status_object(code, message, **details)
    return lambda _: web.json_response(body, status=code, headers=headers)


def test_an_evicted_pod_terminates():
    """With its own grace period, or with the requested one."""
    with FakeKube() as server:
        server.pod("shop/a", node="n")
        server.pod("shop/b", node="n")
        assert [EvictionResult(EvictionOutcome.EVICTED)] == evicted(server, "shop/a")
        assert [EvictionResult(EvictionOutcome.EVICTED)] == evicted(server, "shop/b", grace_seconds=7)
        a, b = (server.content(PODS, key)["metadata"] for key in ("shop/a", "shop/b"))
        assert (30, 7) == (a["deletionGracePeriodSeconds"], b["deletionGracePeriodSeconds"])
    assert ["policy/v1"] * 2 == versions(server)


@pytest.mark.parametrize("code", [400, 404])
def test_an_older_server_gets_its_own_version(code: int):
    """It is detected once."""

    def old(request: Asked) -> web.Response | None:
        if request.resource != "v1/pods/eviction" or request.body["apiVersion"] != "policy/v1" or code == 400:
            return None  # the fake sends 400 for unknown versions
        return web.json_response(status_object(404, "the server could not find the requested resource"), status=404)

    with FakeKube(evictions=("policy/v1beta1",), fault=old) as server:
        server.pod("shop/a", node="n")
        server.pod("shop/b", node="n")
        assert [EvictionOutcome.EVICTED] * 2 == [each.outcome for each in evicted(server, "shop/a", "shop/b")]
    assert ["policy/v1", "policy/v1beta1", "policy/v1beta1"] == versions(server)


def test_the_version_is_detected_again_after_an_upgrade():
    """Kubernetes 1.25 removed policy/v1beta1."""
    with FakeKube(evictions=("policy/v1beta1",)) as server:
        server.pod("a", node="n")
        server.pod("b", node="n")

        def upgrade(_: int) -> None:
            server.evictions, server.fault = ("policy/v1",), lambda _: None

        async def inside(client: Any) -> list[EvictionOutcome]:
            time = VirtualTime(upgrade)
            evictor = Evictor(client, clock=lambda: time.now, sleep=time.sleep)
            first = await evictor.evict("default/a", within=60)
            server.fault = refusing(503)
            return [first.outcome, (await evictor.evict("default/b", within=60)).outcome]

        assert [EvictionOutcome.EVICTED] * 2 == asked(server, inside)


def test_a_deleted_pod_is_not_a_missing_version():
    """One request and one response."""
    with FakeKube() as server:
        (gone,) = evicted(server, "shop/a")
    assert (EvictionOutcome.GONE, 1) == (gone.outcome, gone.tries)
    assert 'pods "a" not found' in gone.message
    assert ["policy/v1"] == versions(server)


def test_a_server_without_evictions_is_an_error():
    """It names the required version."""
    with FakeKube(evictions=()) as server:
        server.pod("a", node="n")
        (refused,) = evicted(server, "default/a")
    assert (EvictionOutcome.REFUSED, 1) == (refused.outcome, refused.tries)
    assert '"policy/v1"' in refused.message


def test_another_pod_with_the_same_name_is_not_evicted():
    """A StatefulSet may create a pod with the same name meanwhile."""
    with FakeKube() as server:
        server.pod("shop/db-0", node="n", metadata={"uid": "new"})
        assert [EvictionOutcome.GONE] == [each.outcome for each in evicted(server, "shop/db-0", uid="old")]
        assert "deletionTimestamp" not in server.content(PODS, "shop/db-0")["metadata"]
        assert [EvictionOutcome.EVICTED] == [each.outcome for each in evicted(server, "shop/db-0", uid="new")]


def test_the_wait_for_a_budget_doubles():
    """Five seconds, ten, twenty; then the budget allows the eviction."""
    with FakeKube() as server:
        server.pod("shop/a", node="n", metadata={"labels": {"app": "web"}})
        budget = {"spec": {"selector": {"matchLabels": {"app": "web"}}}}
        server.put(BUDGETS, "shop/b", **budget, status={"disruptionsAllowed": 0})

        def heal(sleeps: int) -> None:
            if sleeps == 3:
                server.put(BUDGETS, "shop/b", **budget, status={"disruptionsAllowed": 1})

        time = VirtualTime(heal)
        assert [EvictionResult(EvictionOutcome.EVICTED, tries=4)] == evicted(server, "shop/a", time=time)
        assert 0 == server.content(BUDGETS, "shop/b")["status"]["disruptionsAllowed"]
    assert [5.0, 10.0, 20.0] == time.slept


def test_a_budget_without_room_ends_at_the_deadline():
    """The outcome has the message of the server; a wait beyond the deadline does not begin."""
    time = VirtualTime()
    with FakeKube(fault=refusing(429, "Cannot evict pod", causes=[BUDGET])) as server:
        (protected,) = evicted(server, "shop/a", within=30.0, time=time)
    assert (EvictionOutcome.PROTECTED, 3) == (protected.outcome, protected.tries)
    assert "Cannot evict pod" in protected.message
    assert [5.0, 10.0] == time.slept


def test_the_wait_of_the_server_takes_precedence():
    """In the header; a busy server is not a budget."""
    time = VirtualTime()
    with FakeKube(fault=refusing(429, "too many requests", headers={"Retry-After": "2"})) as server:
        (busy,) = evicted(server, "shop/a", within=7.0, time=time)
    assert (EvictionOutcome.UNANSWERED, 4) == (busy.outcome, busy.tries)
    assert [2.0, 2.0, 2.0] == time.slept


def test_without_time_there_is_one_attempt():
    """An agent that evicts several pods requests each in turn."""
    time = VirtualTime()
    with FakeKube(fault=refusing(503)) as server:
        assert [1] == [each.tries for each in evicted(server, "shop/a", within=0.0, time=time)]
    assert [] == time.slept


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (refusing(500, "etcd is away"), EvictionOutcome.UNANSWERED),
        (
            refusing(409, "Operation cannot be fulfilled on pods: the object has been modified"),
            EvictionOutcome.UNANSWERED,
        ),
        (refusing(409, "the UID in the precondition (a) does not match the UID in record (b)."), EvictionOutcome.GONE),
        (refusing(409, "Precondition failed: UID in precondition: a, UID in object meta: b"), EvictionOutcome.GONE),
        (refusing(403, "it is being terminated", causes=[{"reason": "NamespaceTerminating"}]), EvictionOutcome.GONE),
        (refusing(500, "This pod has more than one PodDisruptionBudget, which …"), EvictionOutcome.REFUSED),
        (refusing(422, "spec is invalid"), EvictionOutcome.REFUSED),
        (refusing(401), EvictionOutcome.FORBIDDEN),
        (lambda _: web.Response(text="<html>", status=302, headers={"Location": "/login"}), EvictionOutcome.REFUSED),
    ],
    ids=["500", "conflict", "uid", "newer uid", "namespace", "two budgets", "invalid", "401", "redirect"],
)
def test_each_response_has_its_own_outcome(answer: Callable[..., Any], outcome: EvictionOutcome):
    """Transient failures are retried until the deadline, others are not."""
    with FakeKube(fault=answer) as server:
        (reported,) = evicted(server, "shop/a", within=6.0)
    passes = outcome is EvictionOutcome.UNANSWERED
    assert (outcome, 2 if passes else 1) == (reported.outcome, reported.tries)


def test_a_missing_right_is_named():
    """As the rule of a Role."""
    with FakeKube(forbidden={("create", "v1/pods/eviction")}) as server:
        server.pod("shop/a", node="n")
        (forbidden,) = evicted(server, "shop/a")
    assert EvictionOutcome.FORBIDDEN is forbidden.outcome
    assert '{apiGroups: [""], resources: ["pods/eviction"], verbs: ["create"]}' in forbidden.hint


def test_a_lost_response_is_requested_again():
    """The second time, the pod is already deleted, which is the wanted result."""
    with FakeKube(kubelet=True) as server:
        server.pod("shop/a", node="n")

        def lose(request: Asked) -> web.Response | None:
            server.fault = lambda _: None
            server.delete(PODS, "shop/a")
            server.drop_connections()
            return web.Response(status=503)

        server.fault = lose
        (reported,) = evicted(server, "shop/a")
    assert (EvictionOutcome.GONE, 2) == (reported.outcome, reported.tries)


def test_an_invalid_name_of_a_pod_is_an_error():
    """No request is sent."""
    with FakeKube() as server:
        assert [EvictionOutcome.REFUSED] == [each.outcome for each in evicted(server, "shop/../a")]
    assert [] == server.asked
