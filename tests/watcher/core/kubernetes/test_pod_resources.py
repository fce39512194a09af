"""The effective requests and limits of a pod, computed as in Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.cluster.pods import pod_info
from tests.scorers.simulated_cluster import pod
from watcher.core.kubernetes.pod_resources import (
    amount,
    limits_of,
    limits_raised_to_requests,
    qos_class,
    requests_of,
)


@pytest.mark.parametrize(
    ("resource", "quantity", "expected"),
    [
        ("cpu", "250m", 250),
        ("cpu", 2, 2000),
        ("cpu", "1n", 1),
        ("cpu", "100u", 1),
        ("cpu", "1.0005", 1001),
        ("memory", "1Ki", 1024),
        ("memory", "1500m", 2),
        ("memory", "1e3", 1000),
        ("nvidia.com/gpu", "3", 3),
        ("memory", "9E", 2**53),
        ("cpu", "-1500u", -2),
    ],
)
def test_amounts_are_whole_and_rounded_up(resource: str, quantity: str | int, expected: int) -> None:
    """As MilliValue and Value do."""
    assert amount(resource, quantity) == expected


def cpu(milli: int, limit: int | None = None, **more: Any) -> dict[str, Any]:
    limits = {} if limit is None else {"limits": {"cpu": f"{limit}m"}}
    return {"requests": {"cpu": f"{milli}m"}, **limits, **more}


@pytest.mark.parametrize(
    ("spec", "requests", "limits"),
    [
        ({"containers": [cpu(100), cpu(200, 300)]}, 300, 300),
        ({"containers": [cpu(100)], "initContainers": [cpu(500), cpu(400)]}, 500, 0),
        # a sidecar keeps running: it counts with the containers, and with the init containers after it
        ({"containers": [cpu(100)], "initContainers": [cpu(50, restartPolicy="Always"), cpu(120)]}, 170, 0),
        ({"containers": [cpu(100)], "initContainers": [cpu(120), cpu(50, restartPolicy="Always")]}, 150, 0),
        ({"containers": [cpu(100)], "initContainers": [cpu(50, restartPolicy="Always")] * 2}, 200, 0),
        # overhead: on requests always, on limits where there is one
        ({"containers": [cpu(100)], "overhead": {"cpu": "10m"}}, 110, 0),
        ({"containers": [cpu(100, 200)], "overhead": {"cpu": "10m"}}, 110, 210),
        ({"containers": [cpu(100)], "initContainers": [cpu(0, 0)], "overhead": {"cpu": "10m"}}, 110, 0),
        # pod-level resources: in place of the containers; the overhead is added
        ({"containers": [cpu(100)], "resources": cpu(700, 900), "overhead": {"cpu": "10m"}}, 710, 910),
        ({"containers": [cpu(100)], "resources": {"requests": {"memory": "1Gi"}}}, 100, 0),
        ({"containers": []}, 0, 0),
    ],
)
def test_effective_requests_and_limits(spec: dict[str, Any], requests: int, limits: int) -> None:
    """component-helpers' PodRequests and PodLimits."""
    of = pod(**spec)
    assert (requests_of(of).get("cpu", 0), limits_of(of).get("cpu", 0)) == (requests, limits)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"requests": {"cpu": "-1"}}, cpu(5000)]},
        {"containers": [{"limits": {"cpu": "-1m"}}]},
        {"containers": [cpu(100)], "initContainers": [{"requests": {"cpu": "-1n"}}]},
        {"containers": [cpu(100)], "overhead": {"cpu": "-10m"}},
        {"containers": [cpu(100)], "resources": {"limits": {"cpu": "-5"}}},
    ],
)
def test_negative_requests_count_as_zero(spec: dict[str, Any]) -> None:
    """They would make room on the fullest node. The API server refuses such a pod, but here any client may send one."""
    with pytest.raises(ValueError, match=r"^cpu: must not be negative \(given: '-"):
        pod_info(pod(**spec))


def test_a_resize_counts_with_the_old_requests_until_the_status_has_the_new_ones() -> None:
    """The scoring of kube-scheduler adds its default only if neither names the resource."""
    main = {"name": "c0", "resources": {"requests": {"cpu": "3"}}, "allocatedResources": {"cpu": "3"}}
    of = pod(containers=[cpu(500, 800)], overhead={"cpu": "10m"}, status={"containerStatuses": [main]})
    info = pod_info(of)
    assert (info.requests, info.limits, info.raised_limits) == ({"cpu": 3010}, {"cpu": 810}, {"cpu": 3010})
    assert info.counted_requests == {"cpu": 3010, "memory": 200 << 20}
    done = pod(containers=[cpu(500, 800)], status={"containerStatuses": [{"name": "c0", "resources": cpu(500, 800)}]})
    assert requests_of(done) == {"cpu": 500}


def test_only_cpu_memory_and_hugepages_may_be_pod_level_resources() -> None:
    """Devices stay those of the containers."""
    resources = {"limits": {"nvidia.com/gpu": "9", "hugepages-2Mi": "4Mi", "memory": "1Ki"}}
    of = pod(containers=[{"limits": {"nvidia.com/gpu": "1"}}], resources=resources)
    assert limits_of(of) == {"nvidia.com/gpu": 1, "hugepages-2Mi": 4 << 20, "memory": 1024}


_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "x"]), st.integers(0, 1000).map(str))
_RESOURCES = st.fixed_dictionaries({"requests": _AMOUNTS, "limits": _AMOUNTS})


@given(st.lists(_RESOURCES, max_size=3), st.lists(_RESOURCES, max_size=3), _AMOUNTS)
def test_every_container_gets_its_request(containers: Any, inits: Any, overhead: Any) -> None:
    """At any time of the pod's life, the running containers fit into the counted amount."""
    of = pod(containers=containers, initContainers=inits, overhead=overhead)
    effective, limits = requests_of(of), limits_of(of)
    for name in ("cpu", "memory", "x"):
        of_containers = sum(amount(name, each["requests"].get(name, 0)) for each in containers)
        of_inits = max([amount(name, each["requests"].get(name, 0)) for each in inits], default=0)
        assert effective.get(name, 0) == max(of_containers, of_inits) + amount(name, overhead.get(name, 0))
        assert limits_raised_to_requests(limits, effective).get(name, 0) == max(
            limits.get(name, 0), effective.get(name, 0)
        )


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        ([], "BestEffort"),
        ([{}], "BestEffort"),
        ([{"requests": {"cpu": "0"}}], "BestEffort"),
        ([{"requests": {"nvidia.com/gpu": "1"}}], "BestEffort"),
        ([{"requests": {"cpu": "1"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m"}}], "Guaranteed"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}], "Burstable"),
        ([{"limits": {"cpu": "1", "memory": "1Gi"}}, {}], "Burstable"),
        ([{"limits": {"cpu": "1"}}], "Burstable"),
    ],
)
def test_qos_classes(containers: list[Any], expected: str) -> None:
    """The class that the API server computes; if the status has one, that one counts."""
    assert qos_class(pod(containers=containers)) == expected
    assert qos_class(pod(containers=containers, status={"qosClass": "Guaranteed"})) == "Guaranteed"


def test_pod_level_resources_determine_the_qos_class() -> None:
    """KEP-2837. An empty field counts, too (ComputePodQOS)."""
    whole = {"limits": {"cpu": "1", "memory": "1Gi"}}
    burstable = [{"requests": {"cpu": "1"}}]
    assert qos_class(pod(containers=burstable, resources={})) == "BestEffort"
    assert qos_class(pod(containers=burstable, resources={"requests": {"cpu": "0"}})) == "BestEffort"
    assert qos_class(pod(containers=burstable, resources={"requests": {"memory": "1Gi"}})) == "Burstable"
    assert qos_class(pod(containers=[{}, {"requests": {"cpu": "1"}}], resources=whole)) == "Guaranteed"
