"""The node of each series: layouts of labels of known installations, and invariants of all of them."""

import random
from collections.abc import Mapping, Sequence

import pytest

from watcher.core.naming.candidates import NamingEvidence
from watcher.core.naming.evidence import KnownNode
from watcher.core.naming.identity import Identities, identify
from watcher.core.naming.labels import has_duplicates
from watcher.core.naming.machines import IdleReading
from watcher.core.naming.name_resolver import NodeIndex
from watcher.model import FindingKind

Labels = Mapping[str, str]


def cluster(*names: str, net: str = "10.0.0") -> NodeIndex:
    """Nodes with the addresses NET.1, NET.2, ..."""
    return NodeIndex(
        KnownNode(name, (("InternalIP", f"{net}.{i}"), ("Hostname", name))) for i, name in enumerate(names, 1)
    )


def exporters(count: int, *, net: str = "10.0.0", **labels: str) -> list[dict[str, str]]:
    """Series of node exporters at NET.1:9100, …; `#` is the number in other labels."""
    return [
        {
            "instance": f"{net}.{i}:9100",
            "job": "node",
            **{name: text.replace("#", str(i)) for name, text in labels.items()},
        }
        for i in range(1, count + 1)
    ]


def unames(rows: Sequence[Labels], name: str) -> list[dict[str, str]]:
    return [{**row, "nodename": name.replace("#", str(i))} for i, row in enumerate(rows, 1)]


W3 = ("w-1", "w-2", "w-3")
ADDRESSES = tuple(f"10.0.0.{i}" for i in (1, 2, 3))
FEDERATED = [
    {"instance": "prometheus:9090", "job": "federate", "exported_instance": f"10.0.0.{i}:9100", "exported_job": "node"}
    for i in (1, 2, 3)
]
ON_PODS = [
    {"instance": f"10.244.{i}.5:9100", "job": "node", "namespace": "mon", "pod": f"exporter-{i}"} for i in (1, 2, 3)
]
PODS = [{"namespace": "mon", "pod": f"exporter-{i}", "node": f"w-{i}", "pod_ip": f"10.244.{i}.5"} for i in (1, 2, 3)]

LAYOUTS: dict[str, tuple[Sequence[Labels], NamingEvidence, Sequence[str | None]]] = {
    "label node": (exporters(3, node="w-#"), NamingEvidence(), W3),
    "label kubernetes_node": (exporters(3, kubernetes_node="w-#"), NamingEvidence(), W3),
    "dcgm-exporter": (
        [{"Hostname": f"w-{i}", "instance": f"10.244.{i}.7:9400", "exported_pod": "train"} for i in (1, 2, 3)],
        NamingEvidence(),
        W3,
    ),
    "Kepler": ([{"node_name": f"w-{i}", "instance": f"10.244.{i}.8:28282"} for i in (1, 2, 3)], NamingEvidence(), W3),
    "the node of the scraper on all series": (
        exporters(3, node="w-9"),
        NamingEvidence(host_names=unames(exporters(3), "w-#")),
        W3,
    ),
    "the node of the scraper on all series, also of node_uname_info": (
        exporters(3, node="w-9"),
        NamingEvidence(host_names=unames(exporters(3, node="w-9"), "w-#")),
        W3,
    ),
    "node_uname_info": (exporters(3), NamingEvidence(host_names=unames(exporters(3), "w-#")), W3),
    "addresses alone": (exporters(3), NamingEvidence(), ADDRESSES),
    "named ports": ([{"instance": f"w-{i}:metrics"} for i in (1, 2, 3)], NamingEvidence(), W3),
    "IPv6": (
        [{"instance": f"[2001:db8::{i}]:9100"} for i in (1, 2)],
        NamingEvidence(
            NodeIndex([KnownNode(f"w-{i}", (("InternalIP", f"2001:DB8:0::{i}"),)) for i in (1, 2)]),
        ),
        ("w-1", "w-2"),
    ),
    "ports of one host": (
        [{"instance": f"127.0.0.1:910{i}"} for i in range(4)],
        NamingEvidence(),
        [f"127.0.0.1:910{i}" for i in range(4)],
    ),
    "clones called localhost": (
        exporters(3),
        NamingEvidence(host_names=unames(exporters(3), "localhost")),
        ADDRESSES,
    ),
    "addresses are known": (exporters(3), NamingEvidence(cluster(*W3)), W3),
    "names are addresses": (
        exporters(3),
        NamingEvidence(cluster(*ADDRESSES), unames(exporters(3), "oke-abc-#")),
        ADDRESSES,
    ),
    "federated": (FEDERATED, NamingEvidence(host_names=unames(FEDERATED, "w-#")), W3),
    "federated, addresses are known": (FEDERATED, NamingEvidence(cluster(*W3)), W3),
    "the federated server is on a node": (
        [{**row, "instance": "10.0.0.2:9090"} for row in FEDERATED],
        NamingEvidence(cluster(*W3)),
        W3,
    ),
    "exporters on the pod network": (ON_PODS, NamingEvidence(None, unames(ON_PODS, "exporter-#"), PODS), W3),
    "pod network, nodes are known": (ON_PODS, NamingEvidence(cluster(*W3), unames(ON_PODS, "exporter-#"), PODS), W3),
    "pod network, no labels of pods": (
        [{"instance": row["instance"]} for row in ON_PODS],
        NamingEvidence(cluster(*W3), (), PODS),
        W3,
    ),
    "a label with another name": (
        [{"instance": f"10.244.{i}.5:9100", "kubernetes_io_hostname": f"w-{i}"} for i in (1, 2, 3)],
        NamingEvidence(cluster(*W3)),
        W3,
    ),
    "one exporter for all nodes": (
        [{"instance": "10.0.0.1:9290", "node": f"w-{i}"} for i in (1, 2, 3)],
        NamingEvidence(cluster(*W3)),
        W3,
    ),
    "one exporter for machines outside": (
        [*exporters(3), *({"instance": "10.0.0.1:9290", "node": f"box-{i}"} for i in (1, 2))],
        NamingEvidence(cluster(*W3)),
        (*W3, None, None),
    ),
    "machines outside": (
        [*exporters(3), *exporters(2, net="192.168.0")],
        NamingEvidence(cluster(*W3)),
        (*W3, None, None),
    ),
    "one series without the label": (
        [*exporters(2, node="w-#"), {"instance": "10.0.0.9:9100", "job": "node"}],
        NamingEvidence(),
        ("w-1", "w-2", "10.0.0.9"),
    ),
    "a second job without the label": (
        [*exporters(2, node="w-#"), {"instance": "10.0.0.2:9100", "job": "other"}],
        NamingEvidence(),
        ("w-1", "w-2", "w-2"),
    ),
    "two replicas": (
        [*exporters(2, node="w-#", prometheus_replica="a"), *exporters(2, node="w-#", prometheus_replica="b")],
        NamingEvidence(),
        ("w-1", "w-2", "w-1", "w-2"),
    ),
    "two jobs in two regions of the same machines": (
        [
            *exporters(2, node="w-#", region="x"),
            *[{**row, "job": "annotated", "region": "y"} for row in exporters(2, node="w-#")],
        ],
        NamingEvidence(
            idle=[
                IdleReading({**row, "job": job, "region": region}, 90_000.0, 1_000.0)
                for job, region in (("node", "x"), ("annotated", "y"))
                for row in exporters(2, node="w-#")
            ]
        ),
        ("w-1", "w-2", "w-1", "w-2"),
    ),
    "a cluster on some of the series": (
        [*exporters(2, node="w-#", cluster="a"), *exporters(2, node="w-#")],
        NamingEvidence(),
        ("w-1", "w-2", "w-1", "w-2"),
    ),
    "two clusters with one equal name": (
        [*exporters(2, node="w-#", cluster="a"), *exporters(1, node="w-#", cluster="b"), {"node": "x", "cluster": "b"}],
        NamingEvidence(),
        (None, "w-2", None, "x"),
    ),
    "two clusters, one of them known": (
        [*exporters(2, node="w-#", cluster="a"), *exporters(2, net="10.1.0", node="w-#", cluster="b")],
        NamingEvidence(cluster("w-1", "w-2")),
        ("w-1", "w-2", None, None),
    ),
    "two machines with one name": (
        [*exporters(2), {"instance": "10.1.0.1:9100", "job": "node"}],
        NamingEvidence(
            host_names=[*unames(exporters(2), "w-#"), {"instance": "10.1.0.1:9100", "job": "node", "nodename": "w-1"}]
        ),
        (None, "w-2", None),
    ),
    "a machine outside with the name of a node": (
        [*exporters(2), {"instance": "10.1.0.1:9100", "job": "node"}],
        NamingEvidence(
            cluster("w-1", "w-2"),
            [*unames(exporters(2), "w-#"), {"instance": "10.1.0.1:9100", "job": "node", "nodename": "w-1"}],
        ),
        ("w-1", "w-2", None),
    ),
    "the node of the scraper on both nodes": (
        exporters(2, node="w-1"),
        NamingEvidence(cluster("w-1", "w-2"), unames(exporters(2, node="w-1"), "w-#")),
        ("w-1", "w-2"),
    ),
    "a node that was recreated with another address": (
        [
            {"instance": "10.0.0.1:9100", "job": "node", "node": "w-1", "pod": "exporter-a", "namespace": "mon"},
            {"instance": "10.0.9.9:9100", "job": "node", "node": "w-1", "pod": "exporter-b", "namespace": "mon"},
            {"instance": "10.244.1.7:9400", "job": "gpu", "node": "w-1", "pod": "gpu-a", "namespace": "mon"},
        ],
        NamingEvidence(cluster("w-1")),
        ("w-1", None, "w-1"),
    ),
    "a wrong address of one series of a job of one node": (
        [
            {"job": "extra", "node": "w-1", "instance": "10.0.0.1:9100", "device": "eth0"},
            {"job": "extra", "node": "w-1", "instance": "10.0.0.2:9100", "device": "eth1"},
        ],
        NamingEvidence(
            cluster("w-1", "w-2"),
            [{"job": "extra", "node": "w-1", "instance": "10.0.0.1:9100", "nodename": "w-1"}],
        ),
        ("w-1", None),
    ),
    "a series of two clusters without their label": (
        [
            *exporters(2, node="w-#", cluster="a"),
            *exporters(2, node="w-#", cluster="b"),
            {"instance": "10.0.0.3:9100", "job": "node", "node": "w-3"},
            {"instance": "10.0.0.3:9100", "job": "node", "node": "w-3", "cluster": "b"},
        ],
        NamingEvidence(),
        (None, None, None, None, None, "w-3"),
    ),
    "a machine outside with the host name of a node without series": (
        [*exporters(1), {"instance": "192.168.0.2:9100", "job": "vm"}],
        NamingEvidence(
            cluster("w-1", "w-2"),
            [*unames(exporters(1), "w-#"), {"instance": "192.168.0.2:9100", "job": "vm", "nodename": "w-2"}],
        ),
        ("w-1", None),
    ),
    "a second network of all nodes": (
        exporters(2, net="192.168.0"),
        NamingEvidence(cluster("w-1", "w-2"), unames(exporters(2, net="192.168.0"), "w-#")),
        ("w-1", "w-2"),
    ),
    "labels of two nodes": (
        [*exporters(2), {"instance": "10.0.0.2:9101", "node": "w-1"}],
        NamingEvidence(cluster("w-1", "w-2")),
        ("w-1", "w-2", None),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_series_of_each_layout_are_named(layout: str):
    """With their nodes by the known evidence; without a name if it is not certain."""
    rows, evidence, nodes = LAYOUTS[layout]

    assert tuple(nodes) == identify(rows, evidence).nodes


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_order_of_the_series_does_not_matter(layout: str):
    """The result for a shuffled order is the same."""
    rows, evidence, nodes = LAYOUTS[layout]
    order = random.Random(layout).sample(range(len(rows)), len(rows))

    assert [nodes[i] for i in order] == list(identify([rows[i] for i in order], evidence).nodes)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_history_resolves_the_names_to_the_same_nodes(layout: str):
    rows, evidence, nodes = LAYOUTS[layout]
    if evidence.nodes is None:
        return
    found = identify(rows, evidence)
    resolution = evidence.nodes.resolve(tuple(sorted({name for name in found.names if name})))

    assert list(nodes) == [resolution.matches[name].node if name else None for name in found.names]


@pytest.mark.parametrize(
    ("layout", "kind", "words"),
    [
        ("two clusters with one equal name", FindingKind.AMBIGUOUS_NODE, "label cluster is a and b for the nodes w-1"),
        ("two machines with one name", FindingKind.AMBIGUOUS_NODE, "2 machines have this name (10.0.0.1, 10.1.0.1)"),
        ("labels of two nodes", FindingKind.AMBIGUOUS_NODE, "names the nodes w-1 and w-2"),
        ("machines outside", FindingKind.UNKNOWN_NODE, "2 of 5 series"),
        ("two clusters, one of them known", FindingKind.UNKNOWN_NODE, "another machine"),
    ],
)
def test_series_that_are_left_out_are_reported_with_the_cause(layout: str, kind: FindingKind, words: str):
    rows, evidence, _ = LAYOUTS[layout]

    assert any(each.kind is kind and words in each.reason for each in identify(rows, evidence).problems)


@pytest.mark.parametrize("label", ["cluster", "k8s_cluster", "k8s.cluster.name", "clusterName"])
def test_labels_that_distinguish_clusters_are_reported_with_a_value(label: str):
    """A value that selects one of the clusters."""
    rows = [*exporters(2, node="w-#", **{label: "east"}), *exporters(2, node="w-#", **{label: "west"})]
    (problem,) = identify(rows, NamingEvidence()).problems

    assert f"label {label} is east and west" in problem.reason
    assert f'provider.matchers = {{ "{label}" = "east" }}' in problem.reason


@pytest.mark.parametrize(
    "label", ["environment", "env", "region", "site", "datacenter", "dc", "cloud_region", "tenant_id", "exported_stage"]
)
@pytest.mark.parametrize("known", [True, False])
def test_labels_of_places_distinguish_clusters_with_equal_names_and_addresses(label: str, known: bool):
    """As the external labels of several Prometheus servers, with known and unknown nodes."""
    rows = [*exporters(2, node="w-#", **{label: "east"}), *exporters(2, node="w-#", **{label: "west"})]
    found = identify(rows, NamingEvidence(cluster("w-1", "w-2") if known else None))

    assert (None,) * 4 == found.nodes
    assert f"label {label} is east and west for the nodes w-1, w-2" in found.problems[0].reason
    assert f'provider.matchers = {{ "{label}" = "east" }}' in found.problems[0].reason


@pytest.mark.parametrize("label", ["region", "datacenter", "shop"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("ids", "served"),
    [
        (["boot_id", "system_uuid"], True),
        (["system_uuid"], True),
        (["machine_id"], False),
        ([], False),
    ],
    ids=str,
)
def test_a_machine_that_two_servers_scrape_is_one_node(label: str, known: bool, ids: Sequence[str], served: bool):
    """Although the external labels of the servers differ: the machine has one boot ID and one UUID. Clones have one
    machine_id."""
    rows = [*exporters(2, node="w-#", **{label: "1"}), *exporters(2, node="w-#", **{label: "2"})]
    machines = [{"node": row["node"], label: row[label], **dict.fromkeys(ids, f"{row['node']}-id")} for row in rows]
    index = cluster("w-1", "w-2") if known else None
    found = identify(rows, NamingEvidence(index, unames(rows, "w"), machines=machines))

    assert (("w-1", "w-2") * 2 if served else (None,) * 4) == found.nodes
    assert bool(found.problems) != served


def test_series_with_different_identifiers_are_of_several_machines():
    """Also if one identifier is equal, and if the label names clusters."""
    rows = [*exporters(1, node="w-1", region="1"), *exporters(1, node="w-1", region="2")]
    machines = [{"node": "w-1", "region": row["region"], "system_uuid": "1", "boot_id": row["region"]} for row in rows]
    named = [{"cluster" if key == "region" else key: text for key, text in row.items()} for row in rows]

    assert (None, None) == identify(rows, NamingEvidence(machines=machines)).nodes
    assert (None, None) == identify(
        named, NamingEvidence(machines=[{**row, "system_uuid": "1"} for row in named])
    ).nodes


def _idle(rows: Sequence[Labels], seconds: Sequence[float], at: Sequence[float]) -> list[IdleReading]:
    return [IdleReading(row, idle, time) for row, idle, time in zip(rows, seconds, at, strict=True)]


@pytest.mark.parametrize("label", ["environment", "prometheus", "region", "prometheus_replica", "job", "ha", "origin"])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("idle", "served"),
    [
        ([90_000.0, 90_014.0], True),
        ([90_000.0, 40_000.0], False),
        ([90_000.0, 99_000.0], False),
    ],
    ids=str,
)
def test_cpu_counters_show_whether_series_are_of_one_machine(
    label: str, known: bool, idle: Sequence[float], served: bool
):
    """For any differing label, also between two jobs: the idle time of a CPU grows by at most the elapsed time."""
    rows = [
        {**row, "job": f"job-{value}", label: value}
        for value in ("1", "2")
        for row in exporters(1, node="w-#", replica="x")
    ]
    index = cluster("w-1") if known else None
    found = identify(rows, NamingEvidence(index, idle=_idle(rows, idle, [1000.0, 1015.0])))

    assert (("w-1",) * 2 if served else (None,) * 2) == found.nodes
    assert bool(found.problems) != served
    assert served or any(f"label {each} is" in found.problems[0].reason for each in (label, "job"))


@pytest.mark.parametrize(
    ("label", "known"),
    [("node", True), ("node", False), ("k8s.node.name", True), ("k8s.node.name", False), ("kube_host", True)],
)
def test_series_of_agents_that_scrape_localhost_belong_to_their_nodes(label: str, known: bool):
    """Two jobs of an agent on each node, with a label of the data centre, recording rules without it, and GPUs."""
    rows = [
        {**row, "instance": "localhost:9100", "job": job, "dc": row["dc"].replace("3", "1")}
        for job in ("x", "y")
        for row in exporters(3, dc="#", **{label: "w-#"})
    ]
    devices = [
        {"instance": "localhost:9400", "job": "gpu", label: f"w-{i}", "pci_bus_id": str(k)}
        for i in (1, 2, 3)
        for k in (1, 2)
    ]
    rules = [{name: text for name, text in row.items() if name != "dc"} for row in rows]
    idle = _idle(rows, [90_000.0, 40_000.0, 10_000.0] * 2, [1000.0] * 6)
    evidence = NamingEvidence(cluster(*W3) if known else None, unames(rows[:3], "w-#") * 2, idle=idle)

    assert (W3 * 2, W3 * 2) == (identify(rows, evidence).nodes, identify(rules, evidence).nodes)
    assert ("w-1", "w-1", "w-2", "w-2", "w-3", "w-3") == identify(devices, evidence).nodes


def test_targets_of_one_proxy_belong_to_their_nodes():
    """The proxy has one address for exporters of all nodes, which are in two regions."""
    rows = [{**row, "instance": "10.0.0.9:9100"} for row in exporters(3, node="w-#", region="#")]
    idle = _idle(rows, [90_000.0, 40_000.0, 10_000.0], [1000.0] * 3)

    assert W3 == identify(rows, NamingEvidence(cluster(*W3), unames(rows, "w"), idle=idle)).nodes


def test_two_agents_with_one_node_name_that_scrape_localhost_are_on_two_machines():
    """Two clusters have the name; only the job distinguishes their labels."""
    rows = [{"instance": "localhost:9100", "job": job, "node": "w-1"} for job in ("a", "b")]

    assert (None, None) == identify(rows, NamingEvidence(idle=_idle(rows, [90_000.0, 40_000.0], [1000.0] * 2))).nodes


def test_gpus_with_different_buses_are_not_duplicates():
    """Duplicates would cost a query for the identifiers of machines."""
    rows = [{"instance": "10.0.0.1:9400", "job": "gpu", "pci_bus_id": f"0000:{k}"} for k in range(8)]

    assert not has_duplicates(rows)
    assert has_duplicates([*rows, rows[0]])


@pytest.mark.parametrize("label", ["stage", "prometheus"])
def test_two_clusters_with_different_jobs_are_not_merged(label: str):
    """There is no evidence that each node is one machine."""
    rows = [{**row, "job": value, label: value} for value in ("a", "b") for row in exporters(2, node="w-#")]
    found = identify(rows, NamingEvidence())

    assert (None,) * 4 == found.nodes
    assert f'provider.matchers = {{ "{label}" = "a" }}' in found.problems[0].reason


def test_a_machine_that_starts_between_two_readings_stays_one():
    """Its counters begin again at 0."""
    rows = [*exporters(1, node="w-#", replica="a"), *exporters(1, node="w-#", replica="b")]

    assert ("w-1", "w-1") == identify(rows, NamingEvidence(idle=_idle(rows, [90_000.0, 4.0], [1000.0, 1015.0]))).nodes


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("idle", "near"), [(3_000.0, 18.0), (80_000.0, 5.0), (90_000.0, 60.0)])
def test_machines_that_started_together_are_not_merged(known: bool, idle: float, near: float):
    """As those of two regions after a power failure. After a day, idle times of two machines are far apart, or those of
    one machine very close."""
    rows = [*exporters(1, node="w-#", region="eu"), *exporters(1, node="w-#", region="us")]
    readings = _idle(rows, [idle, idle - near], [1000.0, 1000.0])

    assert (None, None) == identify(rows, NamingEvidence(cluster("w-1") if known else None, idle=readings)).nodes


def test_late_readings_are_of_one_machine():
    """A federated job without honor_timestamps has the time of its own scrape."""
    rows = [{**row, "job": job} for job in ("node", "federate") for row in exporters(1, node="w-#")]

    assert ("w-1", "w-1") == identify(rows, NamingEvidence(idle=_idle(rows, [190_000.0, 189_900.0], [1e3] * 2))).nodes


@pytest.mark.parametrize("kind", ["boot_id", "system_uuid"])
@pytest.mark.parametrize("job", ["node", "vms"])
def test_identifiers_count_before_counters(kind: str, job: str):
    """Readings of the second server are late; the identifiers do not identify a machine of another job."""
    rows = [*exporters(1, node="w-#", region="eu"), *({**row, "job": job} for row in exporters(1, node="w-#"))]
    rows[1]["region"] = "us"
    machines = [{"node": "w-1", "job": "kubelet", "region": region, kind: "1"} for region in ("eu", "us")]
    idle = _idle(rows, [190_000.0, 150_000.0], [1000.0] * 2)

    served = ("w-1",) * 2 if job == "node" else (None,) * 2
    assert served == identify(rows, NamingEvidence(idle=idle, machines=machines)).nodes


def test_two_machines_with_one_name_change_no_other_name():
    """Replicas have their own labels, and one node is another machine for each of them."""
    rows = [*exporters(2, node="w-#", replica="a"), *exporters(2, node="w-#", replica="b")]
    idle = [190_000.0, 170_000.0, 40_000.0, 170_001.0]
    found = identify(rows, NamingEvidence(idle=_idle(rows, idle, [1000.0] * 4)))

    assert (None, "w-2") * 2 == found.nodes
    assert "label replica is a and b for the nodes w-1" in found.problems[0].reason


@pytest.mark.parametrize("label", ["cluster", "environment"])
@pytest.mark.parametrize("known", [True, False])
def test_a_metric_of_only_one_cluster_does_not_identify_it(label: str, known: bool):
    """Only one of two clusters with equal names has its recording rule; a query in the settings has selected one."""
    rows = exporters(2, node="w-#", **{label: "a"})
    others = exporters(1, node="w-#", **{label: "b"})
    evidence = NamingEvidence(cluster("w-1", "w-2") if known else None, unames([*rows, *others], "w"))
    found = identify(rows, evidence)

    assert (None, "w-2") == found.nodes
    assert f"label {label} is a and b for the nodes w-1" in found.problems[0].reason
    assert ("w-1", "w-2") == identify(rows, evidence, chosen=True).nodes


def test_another_server_for_other_exporters_does_not_mean_another_cluster():
    """Its label is not a label of node_uname_info."""
    rows = exporters(2, node="w-#", prometheus="mon/kubelets")
    others = exporters(2, node="w-#", prometheus="mon/nodes")

    assert ("w-1", "w-2") == identify(rows, NamingEvidence(None, unames(others, "w"))).nodes


def test_a_name_of_several_machines_does_not_affect_other_jobs():
    """w-1 is two machines; w-2 has two exporters without CPU counters."""
    first, second = exporters(1, node="w-1"), [{**row, "job": "b"} for row in exporters(1, node="w-1")]
    others = [{**row, "node": "w-2", "instance": "10.0.0.2:9400", "job": job} for row in first for job in ("x", "y")]
    idle = _idle([*first, *second], [90_000.0, 40_000.0], [1000.0, 1000.0])
    found = identify([*first, *second, *others], NamingEvidence(idle=idle))

    assert (None, None, "w-2", "w-2") == found.nodes


def test_another_cluster_changes_no_names():
    """Its nodes have the same names and other addresses, and the nodes of the own cluster are known."""
    rows = exporters(2, node="w-#", cluster="a")
    others = exporters(2, net="10.1.0", node="w-#", cluster="b")

    found = identify(rows, NamingEvidence(cluster("w-1", "w-2"), unames([*rows, *others], "w")))
    assert ("w-1", "w-2") == found.nodes


def test_different_kernels_are_different_machines():
    rows = [*exporters(1, node="w-#", replica="a"), *exporters(1, node="w-#", replica="b")]
    host_names = [{**row, "nodename": "w-1", "release": f"6.{i}"} for i, row in enumerate(rows)]

    assert (None, None) == identify(rows, NamingEvidence(None, host_names)).nodes
    same = [{**row, "release": "6.1"} for row in host_names]
    assert ("w-1", "w-1") == identify(rows, NamingEvidence(None, same)).nodes


def test_one_identifier_of_all_machines_is_ignored():
    """Some vendors give one UUID to all machines."""
    rows = [*exporters(2, node="w-#", region="1"), *exporters(2, node="w-#", region="2")]
    machines = [{"node": row["node"], "region": row["region"], "system_uuid": "0300-0200"} for row in rows]

    assert (None,) * 4 == identify(rows, NamingEvidence(machines=machines)).nodes


@pytest.mark.parametrize("label", ["shop", "zone", "k8s"])
def test_any_label_of_targets_with_two_values_distinguishes_clusters(label: str):
    """node_uname_info has no labels of devices, so a label that differs there belongs to the exporter."""
    rows = [*exporters(2, node="w-#", **{label: "1"}), *exporters(2, node="w-#", **{label: "2"})]
    doubtful = identify(rows, NamingEvidence())
    found = identify(rows, NamingEvidence(None, unames(rows, "w")))

    assert doubtful.is_uncertain
    assert (None,) * 4 == found.nodes
    assert f"label {label} is 1 and 2" in found.problems[0].reason


@pytest.mark.parametrize("label", ["prometheus_replica", "replica", "thanos_replica", "ha_replica_id"])
def test_labels_of_replicas_do_not_distinguish_clusters(label: str):
    rows = [*exporters(2, node="w-#", **{label: "1"}), *exporters(2, node="w-#", **{label: "2"})]

    assert ("w-1", "w-2") * 2 == identify(rows, NamingEvidence(None, unames(rows, "w"))).nodes


@pytest.mark.parametrize("label", ["device", "mountpoint", "zone"])
def test_labels_of_devices_do_not_distinguish_clusters(label: str):
    """node_uname_info does not have them."""
    rows = [*exporters(2, node="w-#", **{label: "1"}), *exporters(2, node="w-#", **{label: "2"})]

    assert ("w-1", "w-2") * 2 == identify(rows, NamingEvidence(None, unames(exporters(2), "w-#"))).nodes


def test_sites_with_equal_names_are_clusters_and_a_scraping_server_with_machines_in_several_regions_is_none():
    """Each site has other machines with other names; the label of the server is the same for all of them."""
    sites = [row for i in range(3) for row in exporters(2, net=f"10.{i}.0", node="w-#", site=f"s-{i}")]
    regions = [row for i in range(3) for row in exporters(2, net=f"10.{i}.0", node="mon-1", region=f"r-{i}")]

    assert (None,) * 6 == identify(sites, NamingEvidence()).nodes
    assert tuple(host.partition(":")[0] for host in [row["instance"] for row in regions]) == (
        identify(regions, NamingEvidence()).nodes
    )


def test_other_labels_distinguish_clusters_if_the_machines_differ():
    """For example a site."""
    rows = [*exporters(2, node="w-#", site="x"), *exporters(2, net="10.1.0", node="w-#", site="y")]
    found = identify(rows, NamingEvidence())

    assert (None,) * 4 == found.nodes
    assert "label site is x and y" in found.problems[0].reason


def test_only_the_configured_label_is_used():
    """Series without it have no node."""
    rows = [*exporters(2, host="h-#", node="w-#"), {"node": "w-3"}]

    assert ("h-1", "h-2", None) == identify(rows, NamingEvidence(), configured="host").nodes


def test_the_evidence_is_counted_by_candidate():
    """For the doctor."""
    found = identify(exporters(3), NamingEvidence(cluster(*ADDRESSES), unames(exporters(3), "oke-#")))

    assert [("nodename (of node_uname_info, by instance)", 3, 0, 0), ("instance without its port", 3, 3, 3)] == [
        (each.candidate, each.series, each.mapped, each.nodes) for each in found.counts
    ]
    assert "instance without its port: 3 of 3 series are 3 known nodes" in found.evidence


# --- invariants ------------------------------------------------------------------------------------------------------

FOREIGN: Sequence[Labels] = (
    {"instance": "192.168.7.7:9100", "job": "elsewhere"},
    {"instance": "192.168.7.7:9100", "job": "node"},
    {"instance": "192.168.7.8:9100", "job": "node", "node": "stranger"},
    {"instance": "192.168.7.8:9100", "job": "node", "cluster": "elsewhere", "node": "stranger"},
    {"instance": "box.example:9100", "job": "node", "Hostname": "box", "region": "mars"},
    {"job": "node", "kubernetes_node": "stranger"},
    {"exported_instance": "192.168.7.9:9100", "instance": "prometheus:9090", "job": "federate"},
    {"job": "rule"},
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
def test_series_of_other_machines_change_no_name(layout: str, seed: int):
    """For any number and positions of them."""
    rows, evidence, nodes = LAYOUTS[layout]
    chance = random.Random(f"{layout} {seed}")
    places = [(chance.random(), row, node) for row, node in zip(rows, nodes, strict=True)]
    more = [(chance.random(), row, "?") for row in chance.sample(FOREIGN, chance.randint(1, 4))]
    mixed = sorted([*places, *more], key=lambda each: each[0])
    found = identify([row for _, row, _ in mixed], evidence)

    assert [node for _, _, node in mixed if node != "?"] == [
        got for (_, _, node), got in zip(mixed, found.nodes, strict=True) if node != "?"
    ]


# Without its address, the node cannot be distinguished from an external machine with the same name.
NECESSARY = {
    "a machine outside with the name of a node": {"instance"},
    "a machine outside with the host name of a node without series": {"instance"},
    "the node of the scraper on both nodes": {"instance"},
    "a wrong address of one series of a job of one node": {"node"},
    "a node that was recreated with another address": {"instance", "job"},
    "a series of two clusters without their label": {"cluster"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", range(12))
def test_lost_labels_never_give_a_series_the_name_of_another_machine(layout: str, seed: int):
    """Without a label of one series, or a part of the evidence, its name is unknown or differs from all others."""
    rows, evidence, nodes = LAYOUTS[layout]
    chance = random.Random(f"{layout} {seed}")
    others = {node for node in nodes if node}
    kept = NECESSARY.get(layout, set())
    poorer = chance.choice([i for i, node in enumerate(nodes) if node])
    lost = chance.choice(sorted(rows[poorer].keys() - kept) or [""])
    changed = [
        {label: text for label, text in row.items() if i != poorer or label != lost} for i, row in enumerate(rows)
    ]
    if chance.random() < 0.5:
        evidence = NamingEvidence(evidence.nodes, evidence.host_names[:-1], evidence.pods[:-1])
    found = identify(changed, evidence)

    for node, got in zip(nodes, found.nodes, strict=True):
        assert got is None or got == node or got not in others, (changed, found)


def test_a_thousand_nodes_are_named_in_one_pass():
    """Each series is read once."""
    rows = exporters(250, node="w-#") + exporters(250, net="10.0.1", node="x-#")
    found: Identities = identify(rows, NamingEvidence())

    assert 500 == len(set(found.nodes))


# --- equal names of different machines -------------------------------------------------------------------------------


@pytest.mark.parametrize("clusters", [2, 3, 5])
@pytest.mark.parametrize("label", ["node", "nodename"])
def test_any_number_of_clusters_is_named(clusters: int, label: str):
    """A name in each cluster is not the name of a scraping server."""
    rows = [
        row for i in range(clusters) for row in exporters(2, net=f"10.{i}.0", k8s_cluster_name=f"c-{i}", job="node")
    ]
    named = [{**row, label: f"w-{row['instance'][-6]}"} for row in rows]
    found = identify(named, NamingEvidence()) if label == "node" else identify(rows, NamingEvidence(None, named))

    assert (None,) * len(rows) == found.nodes
    assert "label k8s_cluster_name is c-0 and c-1" in found.problems[0].reason


@pytest.mark.parametrize("place", ["node", "instance"])
def test_a_host_of_another_domain_is_another_machine(place: str):
    """Also if the first part of its name is the name of a node, which keeps its own series."""
    texts = ("w-1", "w-1.dmz.example", "w-2.lan.example")
    rows = [{place: text if place == "node" else f"{text}:9100", "job": "node"} for text in texts]
    found = identify(rows, NamingEvidence(cluster("w-1", "w-2")))

    assert ("w-1", None, "w-2") == found.nodes
    assert [(FindingKind.UNKNOWN_NODE, "w-1")] == [(each.kind, each.node) for each in found.problems]
    assert "w-1.dmz.example" in found.problems[0].reason


def test_hosts_of_two_domains_are_two_machines():
    """Without the node's own name, neither is certain."""
    rows = [{"instance": f"{host}.example:9100"} for host in ("w-1.dmz", "w-1.lan", "w-2.lan")]
    found = identify(rows, NamingEvidence(cluster("w-1", "w-2")))

    assert (None, None, "w-2") == found.nodes
    assert [(FindingKind.AMBIGUOUS_NODE, "w-1")] == [(each.kind, each.node) for each in found.problems]


def test_a_host_name_in_the_series_of_a_node_belongs_to_the_node():
    """Two jobs scrape one exporter, and only one of them adds the label."""
    rows = [{"instance": "w-1.lan:9100", "job": "a", "node": "w-1"}, {"instance": "w-1.lan:9100", "job": "b"}]

    assert ("w-1", "w-1") == identify(rows, NamingEvidence(cluster("w-1", "w-2"))).nodes


def test_the_address_of_a_proxy_is_not_that_of_its_targets():
    """A pod with one address at a time may get another one at each rollout; targets of a proxy have several at the same
    time."""
    proxied = [{"instance": f"192.168.0.{i}", "node": "w-1", "namespace": "mon", "pod": "proxy-1"} for i in (1, 2)]
    replaced = [{"instance": f"10.244.2.{i}:9100", "node": "w-2", "namespace": "mon", "pod": f"x-{i}"} for i in (1, 2)]
    found = identify([*proxied, *replaced], NamingEvidence())

    assert (None, None, "w-2", "w-2") == found.nodes
    assert [(FindingKind.AMBIGUOUS_NODE, "w-1")] == [(each.kind, each.node) for each in found.problems]
