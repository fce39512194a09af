"""Evictions in policy/v1 on a real API server. No controller runs, so the tests write the status of
PodDisruptionBudgets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.control_plane.objects import MERGE, RUNNING, end_pod, make_pod, patch_status, read, run_pod
from tests.real.kube import ApiServer
from tests.real.test_kube_apiserver import asked
from watcher.platform.kube.eviction import EvictionOutcome, EvictionResult, Evictor

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

NAMESPACE = "evictions"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
NOT_READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
FINISHED = {"phase": "Succeeded"}


@pytest.fixture(scope="module")
def api(cluster: ApiServer) -> ApiServer:
    """The API server with a namespace for these tests."""
    cluster.make("/api/v1/namespaces", metadata={"name": NAMESPACE})
    return cluster


def guard(api: ApiServer, name: str, app: str, *, allowed: int | None) -> None:
    """Create a budget for the pods of an app; without `allowed`, its controller has not processed it yet."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    api.make(BUDGETS, metadata={"name": name}, spec=spec)
    if allowed is not None:
        counts = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1, "disruptionsAllowed": allowed}
        body = {"status": {"observedGeneration": 1, **counts}}
        assert api.ask("PATCH", f"{BUDGETS}/{name}/status", body, headers=MERGE).ok


def allowed_by(api: ApiServer, name: str) -> int:
    """Return the number of disruptions that a budget allows now."""
    found: int = api.ask("GET", f"{BUDGETS}/{name}").json()["status"]["disruptionsAllowed"]
    return found


def running(api: ApiServer, app: str) -> dict[str, Any]:
    """Create a running pod of an app, with the app's name."""
    return run_pod(api, f"{NAMESPACE}/{app}", node="evicting", labels={"app": app})


def evict(api: ApiServer, app: str, *, uid: str = "") -> EvictionResult:
    """Evict the pod of an app, with one attempt."""
    result: EvictionResult = asked(api, lambda client: Evictor(client).evict(f"{NAMESPACE}/{app}", within=0, uid=uid))
    return result


def test_a_budget_that_is_not_processed_yet_asks_for_ten_seconds(api: ApiServer) -> None:
    """In a Retry-After header, which an exhausted budget does not have."""
    running(api, "early")
    guard(api, "early", "early", allowed=None)
    result = evict(api, "early")
    assert (EvictionOutcome.PROTECTED, 10.0) == (result.outcome, result.retry_after)
    running(api, "late")
    guard(api, "late", "late", allowed=0)
    result = evict(api, "late")
    assert (EvictionOutcome.PROTECTED, None) == (result.outcome, result.retry_after)
    assert "would violate the pod's disruption budget" in result.message


def test_a_pod_under_two_budgets_cannot_be_evicted(api: ApiServer) -> None:
    """The server answers 500, and another attempt would not help, even if both budgets allow a disruption."""
    running(api, "twice")
    for name in ("one", "two"):
        guard(api, name, "twice", allowed=1)
    result = evict(api, "twice")
    assert (EvictionOutcome.REFUSED, 1) == (result.outcome, result.tries)
    assert "more than one PodDisruptionBudget" in result.message
    assert [1, 1] == [allowed_by(api, name) for name in ("one", "two")]


def test_a_budget_is_checked_before_the_uid(api: ApiServer) -> None:
    """Of a pod that was replaced, an exhausted budget hides it, and a budget that allows a disruption loses one."""
    running(api, "replaced")
    other = "0b5f3ae4-0000-4000-8000-000000000000"
    assert EvictionOutcome.GONE is evict(api, "replaced", uid=other).outcome
    guard(api, "replaced", "replaced", allowed=0)
    assert EvictionOutcome.PROTECTED is evict(api, "replaced", uid=other).outcome
    counts = {"observedGeneration": 1, "disruptionsAllowed": 1}
    assert api.ask("PATCH", f"{BUDGETS}/replaced/status", {"status": counts}, headers=MERGE).ok
    assert EvictionOutcome.GONE is evict(api, "replaced", uid=other).outcome
    assert 0 == allowed_by(api, "replaced")
    assert "deletionTimestamp" not in read(api, f"{NAMESPACE}/replaced")["metadata"]


@pytest.mark.parametrize(
    ("app", "status", "outcome"),
    [
        ("ready", RUNNING, EvictionOutcome.PROTECTED),
        ("not-ready", NOT_READY, EvictionOutcome.EVICTED),
        ("finished", FINISHED, EvictionOutcome.EVICTED),
    ],
)
def test_an_exhausted_budget_protects_ready_pods(
    api: ApiServer, app: str, status: dict[str, Any], outcome: EvictionOutcome
) -> None:
    """With as many healthy pods as the budget requires (the default policy IfHealthyBudget)."""
    running(api, app)
    guard(api, app, app, allowed=0)
    patch_status(api, f"{NAMESPACE}/{app}", status)
    assert outcome is evict(api, app).outcome


def test_an_evicted_pod_has_a_condition_until_its_kubelet_has_ended_it(api: ApiServer) -> None:
    """A further eviction changes nothing."""
    uid = running(api, "leaving")["metadata"]["uid"]
    assert EvictionOutcome.EVICTED is evict(api, "leaving", uid=uid).outcome
    found = read(api, f"{NAMESPACE}/leaving")
    conditions = {each["type"]: each["reason"] for each in found["status"]["conditions"] if "reason" in each}
    assert "EvictionByEvictionAPI" == conditions["DisruptionTarget"]
    assert EvictionOutcome.EVICTED is evict(api, "leaving", uid=uid).outcome
    again = read(api, f"{NAMESPACE}/leaving")["metadata"]
    assert found["metadata"]["deletionTimestamp"] == again["deletionTimestamp"]
    end_pod(api, f"{NAMESPACE}/leaving")
    assert EvictionOutcome.GONE is evict(api, "leaving", uid=uid).outcome


def test_a_pod_without_a_node_is_gone_at_once(api: ApiServer) -> None:
    """No kubelet has to end it."""
    make_pod(api, f"{NAMESPACE}/waiting", labels={"app": "waiting"})
    guard(api, "waiting", "waiting", allowed=0)
    assert EvictionOutcome.EVICTED is evict(api, "waiting").outcome
    assert EvictionOutcome.GONE is evict(api, "waiting").outcome
