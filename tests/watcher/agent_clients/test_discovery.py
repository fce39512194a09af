"""Agents found by the labels of their pods: the running ones of the Kubernetes API, requested only at their addresses;
and the reports of agents that cannot be found."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.kube import PODS, Asked, FakeKube
from tests.fakes.kube_rules import status_object
from tests.fakes.service import Live
from tests.waiting import eventually, wait_for
from tests.watcher.agent_clients.test_pages import PLAN, an_agent, page, showing
from watcher.agent_clients.discovery import (
    AgentDiscovery,
    DiscoveryResult,
    EndpointSource,
    NamedEndpoints,
    PodEndpoints,
)
from watcher.agent_clients.pages import EndpointKind
from watcher.core.pods.selector import PodSelection
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

pytestmark = pytest.mark.slow

SELECTOR = "app=agent,tier in (node)"
LABELS = {"app": "agent", "tier": "node"}
READY = [{"type": "Ready", "status": "True"}]
LOOPBACK = "127.0.0.1"


def put(
    kube: FakeKube,
    name: str,
    address: str,
    *,
    node: str = "n1",
    ready: bool = True,
    namespace: str = "agents",
    **more: Any,
) -> None:
    """A running pod as the API server stores it."""
    conditions = READY if ready else [{"type": "Ready", "status": "False"}]
    metadata = {"labels": LABELS, **more.pop("metadata", {})}
    status = {"podIP": address, "conditions": conditions, **more.pop("status", {})}
    kube.pod(f"{namespace}/{name}", node=node, metadata=metadata, status=status, **more)


def client_of(kube: FakeKube) -> KubeClient:
    return KubeClient(lambda: KubeAccess(kube.url, "a test", token=kube.token))


def selected(kube: FakeKube, *, port: int = 2023, namespace: str = "agents", **more: Any) -> PodEndpoints:
    selection = PodSelection(SELECTOR, port, namespace, **more)
    return PodEndpoints(selection, client_of(kube), key="agents.pods")


@contextmanager
def a_dashboard(kube: FakeKube, *, port: int = 2023) -> Iterator[Live]:
    """A service that shows the agents among the pods."""
    with showing({EndpointKind.AGENT: selected(kube, port=port)}) as live:
        yield live


def listed(live: Live) -> dict[str, str]:
    """Names and nodes of the listed agents."""
    return {each["name"]: each["node"] for each in live.ask("/api/v1/agents").json()["agents"]}


def troubles(live: Live) -> list[dict[str, str]]:
    found: list[dict[str, str]] = live.ask("/api/v1/agents").json()["troubles"]
    return found


def the_trouble(live: Live, *words: str) -> dict[str, str]:
    """The only problem, once it contains these words."""

    def said() -> dict[str, str]:
        found = troubles(live)
        return found[0] if len(found) == 1 and all(word in found[0]["message"] for word in words) else {}

    return wait_for(said, what=f"the trouble {words}")


def found_by(*sources: EndpointSource) -> DiscoveryResult:
    """The agents that the sources find first."""

    async def run() -> DiscoveryResult:
        places = AgentDiscovery(*sources)

        async def reported():
            found = await places.find()
            return [] if any("has not returned the list" in each.message for each in found.troubles) else [found]

        try:
            found: list[DiscoveryResult] = await eventually(reported, what="an answer of the API")
            return found[0]
        finally:
            await places.close()

    return asyncio.run(run())


def test_pods_that_appear_end_and_change_are_followed() -> None:
    """By node; without pods that are not ready, terminating, finished, or without an address."""
    with FakeKube() as kube, a_dashboard(kube) as live:
        put(kube, "b", "10.0.0.2", node="n2")
        put(kube, "a", "10.0.0.9", node="n1")
        both = [("10.0.0.9:2023", "n1"), ("10.0.0.2:2023", "n2")]
        wait_for(lambda: both == list(listed(live).items()), what="both")
        assert [] == troubles(live)

        put(kube, "a", "10.0.0.7", node="n1")  # created again
        wait_for(lambda: {"10.0.0.7:2023": "n1", "10.0.0.2:2023": "n2"} == listed(live), what="the new address")
        put(kube, "b", "10.0.0.2", node="n2", ready=False)
        wait_for(lambda: {"10.0.0.7:2023": "n1"} == listed(live), what="the one that is ready")
        assert "1 of 2 are unavailable: b on n2 is not ready" == the_trouble(live)["message"]
        put(kube, "b", "10.0.0.2", node="n2", metadata={"deletionTimestamp": "2026-01-02T03:04:05Z"})
        the_trouble(live, "b on n2 is terminating")
        put(kube, "b", "", node="", phase="Pending", ready=False)
        the_trouble(live, "b is Pending")
        put(kube, "b", "no address", node="n2")
        the_trouble(live, "b on n2 has no address")
        for odd in ("169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "0.0.0.0", "ff02::1"):
            put(kube, "b", odd, node="n2")
            the_trouble(live, f"b on n2 has {odd}, which is not a valid pod address")
        kube.delete(PODS, "agents/b")
        wait_for(lambda: [] == troubles(live), what="no trouble")
        put(kube, "c", "fd00::3", node="n3")
        wait_for(lambda: {"10.0.0.7:2023": "n1", "[fd00::3]:2023": "n3"} == listed(live), what="another one")


def test_pages_are_requested_only_from_current_matching_pods() -> None:
    """Not from pods with other labels, in other namespaces, or deleted ones."""
    with FakeKube() as kube, an_agent() as agent, a_dashboard(kube, port=agent.port) as live:
        put(kube, "other", LOOPBACK, metadata={"labels": {"app": "agent"}})
        put(kube, "stranger", LOOPBACK, namespace="default")
        assert {} == listed(live)
        assert 404 == page(live, agent.port).status
        put(kube, "a", LOOPBACK)
        wait_for(lambda: listed(live), what="the agent")
        assert (200, PLAN) == ((answer := page(live, agent.port)).status, answer.json())
        kube.delete(PODS, "agents/a")
        wait_for(lambda: not listed(live), what="the agent to be gone")
        gone = page(live, agent.port)
        assert (404, "a recreated pod has a different address") == (gone.status, gone.error["hint"].split("; ")[1])
        wanted = ("v1/pods", "agents", SELECTOR)
        asked = {(each.resource, each.namespace, each.parameters["labelSelector"]) for each in kube.asked}
        assert {wanted} == asked


def test_pods_are_listed_only_when_the_page_of_agents_is_opened() -> None:
    """Most users never open it: until then there are no requests to the API."""
    with FakeKube() as kube, a_dashboard(kube) as live:
        assert live.ask("/api/v1/overview").json()["agents"]
        assert [] == kube.asked
        listed(live)
        assert {"list"} <= {each.verb for each in kube.asked}


def test_a_selector_without_pods_is_reported() -> None:
    """With the command that lists them."""
    with FakeKube() as kube, a_dashboard(kube) as live:
        trouble = the_trouble(live, "no pods found")
        assert ("agent", f"pods with {SELECTOR} in agents") == (trouble["kind"], trouble["of"])
        listing = f"kubectl -n agents get pods -l '{SELECTOR}'"
        assert f"{listing} must list the pods; check agents.pods" in trouble["hint"]


def test_a_missing_right_is_reported_and_checked_again() -> None:
    """With a Role of the namespace. If the right is withdrawn, the known agents are removed."""
    with FakeKube(forbidden={("list", PODS)}) as kube, a_dashboard(kube) as live:
        put(kube, "a", "10.0.0.1")
        trouble = the_trouble(live, "cannot list pods (403 Forbidden)")
        rule = '{apiGroups: [""], resources: ["pods"], verbs: ["list"]}'
        assert (
            f"lacks the verb list on pods in the namespace agents: grant it a Role there with the rule {rule}"
            in (trouble["hint"])
        )
        kube.forbidden = set()
        wait_for(lambda: {"10.0.0.1:2023": "n1"} == listed(live), what="the right to be noticed")
        kube.forbidden = {("list", PODS), ("watch", PODS)}
        kube.drop_connections()
        the_trouble(live, "cannot ", " pods (403 Forbidden)")  # watch, and then list
        assert {} == listed(live)


def test_while_the_api_is_unavailable_the_last_list_stays() -> None:
    """The outage is reported; afterwards, changes made meanwhile are applied."""
    with FakeKube() as kube, a_dashboard(kube) as live:
        put(kube, "a", "10.0.0.1")
        wait_for(lambda: {"10.0.0.1:2023": "n1"} == listed(live), what="the agent")

        def away(_asked: Asked) -> web.Response:
            return web.json_response(status_object(503, "no leader"), status=503)

        kube.fault = away
        kube.drop_connections()
        trouble = the_trouble(live, "the list of pods may be out of date: ", "503")
        assert trouble["hint"]
        assert {"10.0.0.1:2023": "n1"} == listed(live)
        put(kube, "a", "10.0.0.2")
        kube.compact()
        kube.fault = lambda _asked: None
        wait_for(lambda: {"10.0.0.2:2023": "n1"} == listed(live), what="the address that it has now")
        wait_for(lambda: [] == troubles(live), what="no trouble")


def test_an_unreachable_api_is_reported_at_once_with_its_address() -> None:
    with FakeKube() as kube:
        client = KubeClient(lambda: KubeAccess("http://127.0.0.1:1", "a test"))
        selection = PodSelection(SELECTOR, 2023, "agents")
        found = found_by(PodEndpoints(selection, client, key="agents.pods"))
        assert [] == kube.asked
    (trouble,) = found.troubles
    assert () == found.places
    assert "http://127.0.0.1:1: the connection failed" in trouble.message
    assert (False, True) == (trouble.refused, bool(trouble.hint))


def test_the_default_namespace_is_that_of_the_service() -> None:
    """The namespace of its pod; without a pod, it must be configured."""
    with FakeKube() as kube:
        put(kube, "a", "10.0.0.1", namespace="ours")
        selection = PodSelection(SELECTOR, 2023)
        ours = PodEndpoints(selection, client_of(kube), key="agents.pods", namespace="ours")
        assert ["10.0.0.1:2023"] == [place.name for place in found_by(ours).places]
        nobodys = PodEndpoints(selection, client_of(kube), key="agents.pods")
        (trouble,) = found_by(nobodys).troubles
    assert "Set agents.pods to a table with selector and namespace." == trouble.hint
    assert trouble.refused


def test_with_a_server_name_agents_are_requested_over_https() -> None:
    """At their addresses, with the host name of their certificates."""
    with FakeKube() as kube:
        put(kube, "a", "10.0.0.1")
        (place,) = found_by(selected(kube, port=8443, tls_server_name="agent.example")).places
    assert ("https://10.0.0.1:8443", "https://agent.example:8443") == (str(place.url), str(place.server_name))


def test_an_agent_that_is_found_twice_is_listed_once() -> None:
    """By a name and by a label: with the node from the label."""
    with FakeKube() as kube:
        put(kube, "a", "10.0.0.1")
        put(kube, "b", "10.0.0.2", node="n2")
        names = NamedEndpoints(["http://10.0.0.2:2023", "http://10.0.0.3:2023"], key="agents.urls")
        found = found_by(names, selected(kube))
    assert [("10.0.0.2:2023", "n2"), ("10.0.0.3:2023", ""), ("10.0.0.1:2023", "n1")] == [
        (place.name, place.node) for place in found.places
    ]


def test_an_invalid_pod_does_not_affect_others() -> None:
    """The error is reported."""
    with FakeKube() as kube:
        put(kube, "a", "10.0.0.1")
        put(kube, "odd", "10.0.0.2", status={"phase": 7})
        found = found_by(selected(kube))
    assert ["10.0.0.1:2023"] == [place.name for place in found.places]
    assert ["cannot read agents/odd"] == [trouble.message.partition(":")[0] for trouble in found.troubles]


def test_of_many_unavailable_pods_the_first_are_named() -> None:
    """With their reasons, in the order of their names."""
    with FakeKube() as kube:
        for number in range(4):
            put(kube, f"p{number}", "10.0.0.1", ready=False)
        (trouble,) = found_by(selected(kube)).troubles
    some = "; ".join(f"p{number} on n1 is not ready" for number in range(3))
    assert f"4 of 4 are unavailable: {some}; …" == trouble.message
